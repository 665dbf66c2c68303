"""Requests with one prefix, sent together while no cache holds it, would each pay for writing it: one goes ahead.

The others follow at its first token, for from then on they read what it wrote; or after five seconds, or when it fails.
A prefix is what a service caches as one: model, tools, system and settings. Siblings of one definition share it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.lowlevel import RunVar

from kinfold.models import estimate
from kinfold.models.base import ModelRequest

LONGEST = 5.0
"""Seconds that a request waits at most for another one's first token."""
LIFETIME = 300.0
"""Seconds after its last use for which a service keeps what it cached."""
SMALLEST = 512
"""Tokens: no service caches a smaller prefix, so nobody waits for one."""

_PREFIXES: RunVar[dict[str, Prefix]] = RunVar("kinfold-prefixes")


class Prefix:
    """One prefix in one event loop: whether it is cached by now, and whether somebody is about to have it cached."""

    def __init__(self) -> None:
        self._cached_until = 0.0
        self._led = False
        self._changed = anyio.Event()

    @property
    def cached(self) -> bool:
        """Whether a request would find it in the cache."""
        return anyio.current_time() < self._cached_until

    @property
    def idle(self) -> bool:
        """Whether nobody needs it: it is not cached, and nobody is about to have it cached."""
        return not self._led and not self.cached

    @asynccontextmanager
    async def turn(self) -> AsyncIterator[Callable[[], None]]:
        """Go ahead, or follow whoever does; what it gives is to be called at the reply's first token."""
        with anyio.move_on_after(LONGEST):
            while self._led and not self.cached:
                await self._changed.wait()
        leads = self.idle
        self._led = self._led or leads
        try:
            yield self._answered
        finally:
            if leads and not self.cached:  # it failed: the next one goes ahead
                self._led = False
                self._tell()

    def _answered(self) -> None:
        self._led = False
        self._cached_until = anyio.current_time() + LIFETIME
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def prefix_of(service: str, model: str, request: ModelRequest) -> Prefix:
    """The prefix that a request has at a service (address and key); one of its own where it is too small to cache."""
    try:
        prefixes = _PREFIXES.get()
    except LookupError:
        prefixes = {}
        _PREFIXES.set(prefixes)
    if _tokens(request) < SMALLEST:
        return Prefix()
    name = _name(service, model, request)
    if name not in prefixes:
        for old in [name for name, prefix in prefixes.items() if prefix.idle]:
            del prefixes[old]
    return prefixes.setdefault(name, Prefix())


def _tokens(request: ModelRequest) -> int:
    return sum(map(estimate.text_tokens, request.system)) + sum(map(estimate.tool_tokens, request.tools))


def _name(service: str, model: str, request: ModelRequest) -> str:
    tools = [(tool.name, tool.description, tool.input_schema) for tool in request.tools]
    settings = (request.tool_choice, request.effort, request.thinking)
    whole = json.dumps([service, model, request.system, tools, settings], default=str)
    return hashlib.sha256(whole.encode()).hexdigest()
