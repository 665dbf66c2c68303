"""Calls a tool that a user wrote, so that one which swallows its cancellation cannot hold up the end of a task."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import anyio

from kinfold.tools.base import Completion, Tool, ToolContext, ToolOutcome

log = logging.getLogger(__name__)

PATIENCE = 5.0
"""Seconds that a cancelled tool has to clean up; then it is left behind."""


async def call(tool: Tool, context: ToolContext, arguments: Any) -> ToolOutcome | Completion:
    """Run the tool in an asyncio task of its own. Raises what it raises; a cancellation passes on within `PATIENCE`."""
    running = asyncio.ensure_future(tool.call(context, arguments))
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        if running.cancelled():  # the tool ended itself that way, or did as it was told
            raise
        running.cancel()
        with anyio.CancelScope(shield=True):
            done, _ = await asyncio.wait({running}, timeout=PATIENCE)
        if not done:
            log.error("the tool %r swallowed its cancellation and was left behind still running", tool.key)
            running.add_done_callback(_forget)
        else:
            _forget(running)
        raise


def _forget(running: asyncio.Future[Any]) -> None:
    """Take note of how a cancelled tool ended, so that asyncio does not complain that nobody did."""
    if not running.cancelled() and (error := running.exception()) is not None:
        log.warning("a cancelled tool failed: %s: %s", type(error).__name__, error)
