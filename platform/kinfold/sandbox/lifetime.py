"""The end that a sandbox's spec sets: `ttl` after its making, `idle_ttl` after the last request; and its renewal.

Whoever has a sandbox open keeps watch: requests renew the lease for other processes to see, and at its end the sandbox
is ended with a reason, by which every further call fails. Time is counted as this machine runs, not while it sleeps.
Where nobody watches, the reaper goes by the record.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio

from kinfold.errors import KinfoldError, LeaseLost
from kinfold.sandbox.link import Link

logger = logging.getLogger(__name__)

Renew = Callable[[float], Awaitable[None]]
"""Moves the lease's end, seconds since the epoch. Raises `LeaseLost` where the sandbox is another's by now."""
Expire = Callable[[str, bool], Awaitable[bool]]
"""Ends the sandbox for this reason; the second argument: for idleness, so that a request through another process
saves it: then False."""
LONGEST_NAP = 30.0
SHORTEST_NAP = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """How long it may live. Seconds; None: without end."""

    created_at: float
    """Since the epoch."""
    ttl: float | None
    idle_ttl: float | None

    def lease(self, now: float) -> float | None:
        """When it ends if it is used now and never again; seconds since the epoch."""
        ends = [self.created_at + self.ttl] if self.ttl is not None else []
        ends += [now + self.idle_ttl] if self.idle_ttl is not None else []
        return min(ends, default=None)


class Lifetime:
    """Watches one open sandbox."""

    def __init__(self, terms: Terms, *, expire: Expire, renew: Renew | None = None) -> None:
        self._terms = terms
        self._expire = expire
        self._renew = renew
        self._task: asyncio.Task[None] | None = None

    def watch(self, link: Link) -> None:
        """Begin; nothing to do where the terms have no end."""
        if self._terms.lease(0.0) is not None:
            self._task = asyncio.get_running_loop().create_task(self._watch(link))

    async def aclose(self) -> None:
        """Watch no more."""
        if self._task is not None and self._task is not asyncio.current_task():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self, link: Link) -> None:
        terms, loop = self._terms, asyncio.get_running_loop()
        dies = loop.time() + terms.created_at + terms.ttl - time.time() if terms.ttl is not None else float("inf")
        idle_ttl = terms.idle_ttl if terms.idle_ttl is not None else float("inf")
        told = loop.time()
        while True:
            now = loop.time()
            used = link.last_use
            if now >= dies and await self._end(link, f"its ttl of {terms.ttl:g} s is over", by_idle=False):
                return
            if now >= used + idle_ttl and await self._end(
                link, f"unused for its idle_ttl of {idle_ttl:g} s", by_idle=True
            ):
                return
            if used > told and now - told >= idle_ttl / 4:
                if not await self._tell(link, time.time() - (now - used)):
                    return
                told = now
            await anyio.sleep(_nap(dies - now, used + idle_ttl - now, idle_ttl / 4))

    async def _end(self, link: Link, reason: str, *, by_idle: bool) -> bool:
        try:
            if not await self._expire(reason, by_idle):
                link.touch()  # another process used it just now
                return False
        except KinfoldError as error:
            logger.warning("sandbox %s: %s, but it could not be ended: %s", link.ref.id, reason, error)
            await anyio.sleep(1.0)
            return False
        link.lose(f"sandbox {link.ref.id} has ended: {reason}")
        return True

    async def _tell(self, link: Link, used_at: float) -> bool:
        """Renew the lease; False where it is not ours any more."""
        lease = self._terms.lease(used_at)
        if self._renew is None or lease is None:
            return True
        try:
            await self._renew(lease)
        except LeaseLost as error:
            link.lose(error.message)
            return False
        except KinfoldError as error:
            logger.warning("the lease of sandbox %s could not be renewed: %s", link.ref.id, error)
        return True


def _nap(*until: float) -> float:
    return max(SHORTEST_NAP, min(*until, LONGEST_NAP))
