"""What an agent does with an exec that left processes running: read on, or end it. Only its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import anyio

from kinfold.errors import ToolError
from kinfold.sandbox.base import MIB, Output
from kinfold.tools import exec_text
from kinfold.tools.base import ToolContext

if TYPE_CHECKING:
    from kinfold.sandbox.execs import ExecInfo

READ_BYTES = MIB
"""Of each stream, in one call; what is beyond it comes with the next."""
LEAVE_TIMEOUT = 5.0
"""Seconds to fetch the last words of an exec that is proved dead."""

_STATES = {
    "running": "its command still runs",
    "background": "its command ended, processes that it started still run",
    "ended": "everything of it has ended",
}


async def read_on(context: ToolContext, exec_id: str) -> str:
    """What the exec printed since it was last looked at. Raises `ToolError` for what is not this run's exec."""
    info = await _own(context, exec_id)
    seen = context.state.exec_offsets.get(exec_id, (0, 0))
    out, out_end = await _since(context, exec_id, "stdout", seen[0])
    err, err_end = await _since(context, exec_id, "stderr", seen[1])
    context.state.exec_offsets[exec_id] = (out_end, err_end)
    parts = [f"{exec_id}: {_STATES[info.state]} (started {info.age:.0f} s ago)"]
    if out:
        parts.append(f"stdout since:\n{out}")
    if err:
        parts.append(f"stderr since:\n{err}")
    if not out and not err:
        parts.append("(no new output)")
    return "\n".join(parts)


async def end(context: ToolContext, exec_id: str, grace: float) -> str:
    """Kill what runs of it, with proof, and give what it printed last. Raises `ToolError` as `read_on` does."""
    info = await _own(context, exec_id)
    if info.state == "ended":
        return f"{exec_id}: {_STATES['ended']} already"
    process = await context.sandbox.attach(exec_id, context.state.exec_offsets.pop(exec_id, (0, 0)))
    ended = await process.kill(grace)
    parts = [f"{exec_id}: ended ({ended.killed} processes had to be killed, {ended.survivors} are left)"]
    with anyio.move_on_after(LEAVE_TIMEOUT):
        result = await process.wait()
        parts += [f"stdout since:\n{exec_text.text_of(result.stdout)}"] if result.stdout else []
        parts += [f"stderr since:\n{exec_text.text_of(result.stderr)}"] if result.stderr else []
    return "\n".join(parts)


async def _own(context: ToolContext, exec_id: str) -> ExecInfo:
    own = [info for info in await context.sandbox.execs() if info.owner == context.run_id]
    for info in own:
        if info.id == exec_id:
            return info
    still = ", ".join(info.id for info in own if info.state != "ended") or "none"
    raise ToolError(f"{exec_id[:64]!r} is no background exec of this run", hint=f"those that still run: {still}")


async def _since(
    context: ToolContext, exec_id: str, stream: Literal["stdout", "stderr"], offset: int
) -> tuple[str, int]:
    """The text from `offset` on, with a note where bytes were dropped, and the offset behind it."""
    kept = await context.sandbox.kept(exec_id, stream, offset, READ_BYTES)
    parts = []
    for piece in kept.pieces:
        parts.append(_gap(offset, piece))
        parts.append(exec_text.text_of(piece.data))
        offset = piece.offset + len(piece.data)
    return "".join(parts).rstrip("\n"), offset


def _gap(offset: int, piece: Output) -> str:
    dropped = piece.offset - offset
    return f"\n[… {dropped:,} bytes were not kept …]\n" if dropped > 0 else ""
