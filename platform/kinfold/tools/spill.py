"""Keeps what goes to a model within its budget; the whole goes to a file under `.kinfold/`, with a pointer to it."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kinfold.errors import PathError
from kinfold.messages import ImageBlock, TextBlock
from kinfold.sandbox.base import SCRATCH
from kinfold.tools.base import ToolContext, ToolOutcome

if TYPE_CHECKING:
    from kinfold.sandbox.sandbox import Sandbox

SUMMARY_LIMIT = 8_000
"""Characters of a summary that cross to the parent."""
POINTER_ROOM = 300
"""Of a budget, set aside for the sentence that says what was left out."""


async def fit(outcome: ToolOutcome, *, tool: str, budget: int, context: ToolContext) -> ToolOutcome:
    """`outcome` with at most `budget` bytes of text: head and tail stay, the whole text is written to a file.

    Images are not counted. Where the file cannot be written, the cut is said all the same.
    """
    text = "\n".join(block.text for block in outcome.content if isinstance(block, TextBlock))
    data = text.encode("utf-8", "replace")
    if len(data) <= budget:
        return outcome
    context.state.spills += 1
    path = f"{SCRATCH}/results/{context.run_id}/{context.state.spills:03d}-{tool}.txt"
    problem = await _write(context.sandbox, path, data)
    where = problem or f"the whole result is in {path}: read_file with offset and limit, or grep"
    head, tail = _cut(data, max(budget - POINTER_ROOM, 0))
    left_out = len(data) - len(head) - len(tail)
    note = f"\n\n[… {left_out:,} of {len(data):,} bytes left out here; {where} …]\n\n"
    kept = head.decode("utf-8", "ignore") + note + tail.decode("utf-8", "ignore")
    images = tuple(block for block in outcome.content if isinstance(block, ImageBlock))
    return replace(outcome, content=(TextBlock(text=kept), *images))


async def bounded_summary(text: str, *, sandbox: Sandbox, run_id: str) -> tuple[str, tuple[str, ...]]:
    """A run's summary in at most `SUMMARY_LIMIT` characters, and warnings; the whole of a longer one is in a file."""
    if len(text) <= SUMMARY_LIMIT:
        return text, ()
    path = f"{SCRATCH}/summaries/{run_id}.md"
    problem = await _write(sandbox, path, text.encode("utf-8", "replace"))
    where = problem or f"the whole summary is in {path}"
    note = f"\n\n[… cut at {SUMMARY_LIMIT:,} of {len(text):,} characters; {where}]"
    warning = f"the summary had {len(text):,} characters and was cut; {where}"
    return text[: SUMMARY_LIMIT - len(note)] + note, (warning,)


async def _write(sandbox: Sandbox, path: str, data: bytes) -> str:
    """Empty when written, else why not: a full or spoilt scratch directory must not fail the tool itself."""
    try:
        await sandbox.write(path, data)
    except PathError as error:
        return f"the rest could not be kept ({error.message})"
    return ""


def _cut(data: bytes, room: int) -> tuple[bytes, bytes]:
    """Two thirds from the start, one third from the end, as a command's last lines matter, too."""
    tail = room // 3
    return data[: room - tail], data[len(data) - tail :] if tail else b""
