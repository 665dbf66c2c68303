"""Runs a command's coroutine so that Ctrl-C and TERM cancel it in order.

Left to itself the event loop would answer Ctrl-C by a cancellation that no shield withstands, and what a provider must
not leave half done would be left.
"""

from __future__ import annotations

import signal
from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio
import anyio.abc

T = TypeVar("T")


def run_async(work: Callable[[], Awaitable[T]]) -> T:
    """The value of `work()`; raises `SystemExit(128 + number)` when a signal ended it, after it cleaned up."""
    caught: list[signal.Signals] = []
    results: list[T] = []

    async def main() -> None:
        async with anyio.create_task_group() as group:

            def cancel(received: signal.Signals) -> None:
                caught.append(received)
                group.cancel_scope.cancel()

            watcher = await group.start(watch_signals, cancel)
            results.append(await work())
            watcher.cancel()

    anyio.run(main)
    if caught:
        raise SystemExit(128 + caught[0])
    return results[0]


async def watch_signals(
    react: Callable[[signal.Signals], None], *, task_status: anyio.abc.TaskStatus[anyio.CancelScope]
) -> None:
    """Call `react` for each SIGINT and SIGTERM until the scope that it is started with is cancelled."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals, anyio.CancelScope() as scope:
        task_status.started(scope)
        async for received in signals:
            react(received)
