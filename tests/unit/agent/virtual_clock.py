"""A clock that jumps: an event loop with nothing to do moves its time on to the next timer instead of sleeping.

So the real limits, minutes long, are tested as they are, to the second, in no time. For tests without threads.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

BACKEND: tuple[str, dict[str, Any]] = ("asyncio", {"loop_factory": lambda: VirtualClock()})
"""For an `anyio_backend` fixture."""


class _Jumping(selectors.DefaultSelector):
    """Never waits for longer than it takes to look; counts what it would have waited."""

    waited = 0.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if found or timeout is None:
            return found or super().select(None)
        self.waited += max(timeout, 0.0)
        return found


class VirtualClock(asyncio.SelectorEventLoop):
    """The loop whose `time()` is what would have been waited."""

    def __init__(self) -> None:
        self._jumping = _Jumping()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.waited
