"""Runs an exec for a tool, showing the start of its output to whoever watches while it still runs.

A watcher must never slow a program down or make the host carry a flood: nothing is streamed. What the container keeps
of the output is looked at from time to time, up to a bound per call, and the rest is seen in the result.
"""

from __future__ import annotations

from kinfold.events import ToolOutput
from kinfold.sandbox.base import ExecRequest, ExecResult
from kinfold.tools.base import ToolContext

SHOWN_BYTES = 16_384
"""Of each stream, in events of one call."""


async def run(context: ToolContext, request: ExecRequest) -> ExecResult:
    """Run to the end. Raises `PathError` for a missing `cwd`, `SandboxError` for a lost sandbox."""
    result = await context.sandbox.run(request)
    for stream, data in (("stdout", result.stdout), ("stderr", result.stderr)):
        if data:
            await _show(context, stream, data[:SHOWN_BYTES])
    return result


async def _show(context: ToolContext, stream: str, data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    await context.emit(ToolOutput(call_id=context.call_id, stream=stream, text=text, **context.event_fields))
