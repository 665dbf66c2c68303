"""SIGTERM ends the parent tasks of this process in order, where nobody else has claimed that signal.

Its default action would kill the process at once and leave containers to the reaper. A program that handles SIGTERM
itself (a server, say) keeps its handler and cancels its tasks. SIGINT needs nothing here: the event loop turns it into
a cancellation, which closes the task.
"""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Interrupt = Callable[[int], None]

_live: dict[asyncio.AbstractEventLoop, list[Interrupt]] = {}


@contextmanager
def interrupted_by_sigterm(interrupt: Interrupt) -> Iterator[None]:
    """While the body runs, SIGTERM calls `interrupt(signum)`; of several bodies at once, each one's."""
    loop = asyncio.get_running_loop()
    waiting = _live.get(loop)
    if waiting is None:
        if not _unclaimed():
            yield
            return
        waiting = _live[loop] = []
        loop.add_signal_handler(signal.SIGTERM, _interrupt_all, waiting)
    waiting.append(interrupt)
    try:
        yield
    finally:
        waiting.remove(interrupt)
        if not waiting:
            del _live[loop]
            loop.remove_signal_handler(signal.SIGTERM)


def _unclaimed() -> bool:
    in_main_thread = threading.current_thread() is threading.main_thread()
    return in_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def _interrupt_all(waiting: list[Interrupt]) -> None:
    for interrupt in list(waiting):
        interrupt(signal.SIGTERM)
