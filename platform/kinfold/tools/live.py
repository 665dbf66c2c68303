"""Runs an exec for a tool, showing the start of its output to whoever watches while it still runs.

A watcher must never slow a program down or make the host carry a flood: nothing is streamed. What the container keeps
of the output is looked at from time to time, up to a bound per call, and the rest is seen in the result.
"""

from __future__ import annotations

import codecs
from typing import TYPE_CHECKING, Any, Literal

import anyio

from kinfold.errors import NotFound
from kinfold.events import ToolOutput
from kinfold.sandbox.base import ExecRequest, ExecResult
from kinfold.tools.base import ToolContext

if TYPE_CHECKING:
    from kinfold.sandbox.sandbox import Process

SHOWN_BYTES = 16_384
"""Of each stream, in the events of one call."""
FIRST_LOOK = 0.2
INTERVAL = 1.0
"""Seconds between looks."""

Stream = Literal["stdout", "stderr"]


async def run(context: ToolContext, request: ExecRequest) -> ExecResult:
    """Run to the end. Raises `PathError` for a missing `cwd`, `SandboxError` for a lost sandbox.

    A cancelled caller leaves nothing running: the whole tree is dead before the cancellation goes on.
    """
    return await _see_through(context, await context.sandbox.start(request), request)


async def take_up(context: ToolContext, request: ExecRequest) -> ExecResult:
    """As `run`, of an exec that was started with this request's id by a process that died. Raises `NotFound`."""
    return await _see_through(context, await context.sandbox.take_up(request), request)


async def _see_through(context: ToolContext, process: Process, request: ExecRequest) -> ExecResult:
    views = (_View("stdout", context, process.id), _View("stderr", context, process.id))
    try:
        result = await _watch(process, views)
    except anyio.get_cancelled_exc_class():
        with anyio.CancelScope(shield=True):
            await process.kill(request.grace)
        raise
    await views[0].last(result.stdout, result.stdout_head_bytes)
    await views[1].last(result.stderr, result.stderr_head_bytes)
    return result


async def _watch(process: Process, views: tuple[_View, _View]) -> ExecResult:
    pause = FIRST_LOOK
    while any(view.room for view in views):
        with anyio.move_on_after(pause):
            return await process.wait()
        for view in views:
            await view.look()
        pause = INTERVAL
    return await process.wait()


class _View:
    """What was shown of one stream."""

    def __init__(self, stream: Stream, context: ToolContext, exec_id: str) -> None:
        self._stream: Stream = stream
        self._context = context
        self._exec_id = exec_id
        self._shown = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    @property
    def room(self) -> int:
        return SHOWN_BYTES - self._shown

    async def look(self) -> None:
        """Show what came since the last look. An exec that ended meanwhile is shown by `last`."""
        if not self.room:
            return
        try:
            kept = await self._context.sandbox.kept(self._exec_id, self._stream, self._shown, self.room)
        except NotFound:
            return
        for piece in kept.pieces:
            if piece.offset == self._shown:
                await self._show(piece.data)

    async def last(self, kept: bytes, head_bytes: int) -> None:
        """Show what the result holds beyond it, still from the stream's beginning and within the bound."""
        await self._show(kept[self._shown : min(head_bytes, SHOWN_BYTES)], final=True)

    async def _show(self, data: bytes, *, final: bool = False) -> None:
        data = data[: self.room]
        self._shown += len(data)
        text = self._decoder.decode(data, final)
        if text:
            fields = {"tool_call_id": self._context.call_id, **_given(self._context.event_fields)}
            await self._context.emit(
                ToolOutput(call_id=self._context.call_id, stream=self._stream, text=text, **fields)
            )


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
