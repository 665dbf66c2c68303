"""One gate for all who share a key: when the service limits one of them, the others wait too, and fewer go at once.

A request is inside from its sending until the service answers it, not until its stream ends. A refusal (429, 529) shuts
the gate for as long as its sender waits, and halves how many may be inside; each answer widens it a little. What the
service's `anthropic-ratelimit-*` headers say closes it before anybody is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime

import anyio
from anyio.lowlevel import RunVar

WIDEST = 64
"""Requests of one key inside at once, before any was refused."""
LIMITED = frozenset({"rate_limit", "overloaded"})
"""The kinds of failure that close the gate."""
_LONGEST = 60.0
"""Seconds: whoever is told to wait longer gives up, and the others try."""
_ROUND = 0.25
"""Seconds within which several refusals are one: they answer requests that went out together."""
_COUNTS = ("requests", "tokens", "input-tokens", "output-tokens")

_GATES: RunVar[dict[str, Gate]] = RunVar("kinfold-gates")


def gate_of(base_url: str | None, key: str) -> Gate:
    """The gate of this key at this service, in this event loop. Only a digest of the key is held."""
    try:
        gates = _GATES.get()
    except LookupError:
        gates = {}
        _GATES.set(gates)
    name = hashlib.sha256(f"{base_url}\0{key}".encode()).hexdigest()
    return gates.setdefault(name, Gate())


class Gate:
    """See the module. Times are the loop's."""

    def __init__(self) -> None:
        self._opens_at = 0.0
        self._width = float(WIDEST)
        self._inside = 0
        self._peak = 0
        """The most that were inside since the last refusal: a stream that is refused later has long left."""
        self._shrunk_at = -_ROUND
        self._changed = anyio.Event()

    @property
    def width(self) -> int:
        """How many may be inside at once."""
        return max(1, int(self._width))

    @asynccontextmanager
    async def turn(self, sleep: Callable[[float], Awaitable[object]], *, waited_until: float) -> AsyncIterator[None]:
        """Go through, as soon as there is room; `waited_until`: a closing up to then was sat out already."""
        while True:
            wait = self._opens_at - anyio.current_time()
            if wait > 0 and self._opens_at > waited_until:
                waited_until = self._opens_at
                await sleep(wait)
            elif self._inside >= self.width:
                await self._changed.wait()
            else:
                break
        self._inside += 1
        self._peak = max(self._peak, self._inside)
        try:
            yield
        finally:
            self._inside -= 1
            self._tell()

    def refused(self, delay: float) -> float:
        """Somebody comes back in `delay` seconds; gives until when that is, which the gate may be closed beyond."""
        now = anyio.current_time()
        if now - self._shrunk_at >= _ROUND:
            self._shrunk_at = now
            self._width = max(1.0, min(self._width, float(self._peak)) / 2)
            self._peak = self._inside
        self._close(now + min(delay, _LONGEST))
        return now + delay

    def answered(self, headers: Mapping[str, str]) -> None:
        """The service took a request, and said how much is left of what it allows."""
        self._width = min(float(WIDEST), self._width + 1.0 / self._width)
        for count in _COUNTS:
            if headers.get(f"anthropic-ratelimit-{count}-remaining") == "0":
                left = _seconds_until(headers.get(f"anthropic-ratelimit-{count}-reset", ""))
                self._close(anyio.current_time() + min(left, _LONGEST))
        self._tell()

    def _close(self, until: float) -> None:
        self._opens_at = max(self._opens_at, until)

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _seconds_until(moment: str) -> float:
    """From now to a time in RFC 3339; 0 for what is none."""
    try:
        left = (datetime.fromisoformat(moment) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return 0.0
    return max(0.0, left)
