"""The tool `glob`: files by the pattern of their path, the newest first."""

from __future__ import annotations

import anyio.lowlevel
from pydantic import BaseModel, ConfigDict, Field

from kinfold.errors import ToolError
from kinfold.sandbox.base import FileStat
from kinfold.sandbox.workspace import normalize
from kinfold.tools import directory, words
from kinfold.tools.base import Tool, ToolContext, ToolOutcome
from kinfold.tools.names import shown
from kinfold.tools.patterns import MAX_PATTERN, Pattern

MAX_RESULTS = 300
MAX_SEEN = 100_000
"""Entries that are looked at."""
ALL_LEVELS = 200
KINDS = ("file", "symlink")
BATCH = 2_000
"""Entries that are matched in one go."""


class GlobArguments(BaseModel):
    """A pattern and where to begin."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pattern: str = Field(
        min_length=1, max_length=MAX_PATTERN, description="For example `**/*.py`, `src/**/test_*.{js,ts}`, `*.md`."
    )
    path: str = Field(default=".", description="The directory that the pattern is relative to.")


async def _call(context: ToolContext, arguments: GlobArguments) -> ToolOutcome:
    root = normalize(arguments.path)
    root, found, complete = await matching(context, root, arguments.pattern)
    found.sort(key=lambda entry: (-entry.mtime_ns, entry.path))
    lines = [shown(_below(root, entry)) for entry in found[:MAX_RESULTS]]
    if not found:
        lines.append(f"No file matches {arguments.pattern!r} under {shown(root)}.")
    if len(found) > MAX_RESULTS:
        lines.append(f"(the newest {MAX_RESULTS} of {len(found):,}; narrow the pattern for the rest)")
    if not complete:
        lines.append(f"(only the first {MAX_SEEN:,} entries were looked at; begin further down by `path`)")
    if found and arguments.path not in (".", ""):
        lines.insert(0, f"under {shown(root)}:")
    return ToolOutcome.of("\n".join(lines))


async def matching(context: ToolContext, root: str, pattern: str) -> tuple[str, list[FileStat], bool]:
    """Where `root` really is, the files and links beneath it that match, and whether everything was looked at.

    Raises `ToolError` for a pattern that is none, `PathError` for the directory.
    """
    try:
        compiled = Pattern(pattern)
    except ValueError as error:
        raise ToolError(str(error), hint="simplify the pattern") from error
    root, listing = await directory.entries(context, root, depth=ALL_LEVELS, max_entries=MAX_SEEN)
    found = []
    for start in range(0, len(listing.entries), BATCH):
        batch = listing.entries[start : start + BATCH]
        found += [entry for entry in batch if entry.type in KINDS and compiled.matches(_below(root, entry))]
        await anyio.lowlevel.checkpoint()  # other runs go on while a large tree is matched
    return root, found, not listing.truncated


def _below(root: str, entry: FileStat) -> str:
    return entry.path.removeprefix(f"{root}/")


TOOL = Tool(key="glob", words=words.beside(__file__), arguments=GlobArguments, call=_call, recover=_call, parallel=True)
