"""The tool `list_dir`: what a directory holds."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from kinfold.sandbox.base import FileStat, Listing
from kinfold.sandbox.workspace import normalize
from kinfold.tools import directory, words
from kinfold.tools.base import Tool, ToolContext, ToolOutcome
from kinfold.tools.names import shown

MAX_ENTRIES = 1_000


class ListDirArguments(BaseModel):
    """A directory and how deep to look."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(default=".", description="The directory, relative to the workspace or absolute beneath it.")
    depth: int = Field(default=1, ge=1, le=10, description="1: its own entries; 2: also those of its directories; …")


async def _call(context: ToolContext, arguments: ListDirArguments) -> ToolOutcome:
    return ToolOutcome.of(await listed(context, normalize(arguments.path), arguments.depth))


async def listed(context: ToolContext, path: str, depth: int = 1) -> str:
    """The directory at the absolute `path` as text, one entry a line. Raises `PathError`."""
    return _render(*await directory.entries(context, path, depth=depth, max_entries=MAX_ENTRIES))


def _render(path: str, listing: Listing) -> str:
    lines = [f"{shown(path)}/ ({len(listing.entries)} entries)" if listing.entries else f"{shown(path)}/ is empty"]
    lines += [_line(path, entry) for entry in listing.entries]
    if listing.truncated:
        lines.append(f"(only the first {len(listing.entries):,}; list a directory further down, or use glob)")
    return "\n".join(lines)


def _line(root: str, entry: FileStat) -> str:
    name = shown(entry.path.removeprefix(f"{root}/"))
    match entry.type:
        case "directory":
            return f"{name}/"
        case "symlink":
            return f"{name} -> {shown(entry.target or '?')}"
        case "file":
            return f"{name}  {entry.size:,} bytes"
        case "other":
            return f"{name}  (no regular file)"


TOOL = Tool(
    key="list_dir", words=words.beside(__file__), arguments=ListDirArguments, call=_call, recover=_call, parallel=True
)
