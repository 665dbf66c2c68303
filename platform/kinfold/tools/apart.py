"""Runs what a user wrote, so that code which swallows its cancellation cannot hold up the end of a task."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from typing import Any, TypeVar

import anyio

T = TypeVar("T")

log = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds that cancelled work has to clean up; then it is left behind."""


async def run(work: Awaitable[T], name: str) -> T:
    """Await it in an asyncio task of its own. Raises what it raises; a cancellation passes on within `PATIENCE`.

    `name` says in the log what was left behind.
    """
    running = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if running.cancelled():  # it ended itself that way, or did as it was told
            raise
        running.cancel()
        with anyio.CancelScope(shield=True):
            done, _ = await asyncio.wait({running}, timeout=PATIENCE)
        if not done:
            log.error("%s swallowed its cancellation and was left behind still running", name)
            running.add_done_callback(_forget)
        else:
            _forget(running)
        raise


def _forget(running: asyncio.Future[Any]) -> None:
    """Take note of how cancelled work ended, so that asyncio does not complain that nobody did."""
    if not running.cancelled() and (error := running.exception()) is not None:
        log.warning("cancelled work failed: %s: %s", type(error).__name__, error)
