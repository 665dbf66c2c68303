"""Compare-and-swap on files: an agent overwrites only what it has seen, and learns when somebody else was faster."""

from __future__ import annotations

import hashlib

from kinfold.errors import PathError, ToolError
from kinfold.sandbox.base import FileStat
from kinfold.tools.base import ToolContext
from kinfold.tools.names import shown

ABSENT = "absent"
"""What `Sandbox.write` takes for `if_match` where the file must not exist."""


def digest(data: bytes) -> str:
    """The sha256 that stands for a version, in hex."""
    return hashlib.sha256(data).hexdigest()


async def save(context: ToolContext, path: str, data: bytes, *, seen: str | None) -> FileStat:
    """Write `data` at the absolute `path` if its content is still `seen` (None: if nothing is there).

    Notes the new version. Raises `ToolError` where the file is another one by now, `PathError` for the rest.
    """
    try:
        written = await context.sandbox.write(path, data, if_match=seen or ABSENT)
    except PathError as error:
        if error.reason != "conflict":
            raise
        context.state.read_versions.pop(path, None)
        raise _conflict(path, seen, context) from error
    note(context, path, written.sha256 or digest(data))
    return written


def note(context: ToolContext, path: str, sha256: str) -> None:
    """The file at the absolute `path` is as this run's tool wrote it."""
    context.state.read_versions[path] = sha256
    context.state.written.add(path)
    context.writers.wrote(path, context.run_id, sha256)


async def is_there(context: ToolContext, path: str, sha256: str) -> bool:
    """Whether the file has this content now."""
    (found,) = await context.sandbox.stat([path], digest=True)
    return isinstance(found, FileStat) and found.sha256 == sha256


def written_by(context: ToolContext, path: str) -> str:
    """Whose tool wrote the file last, as a clause; empty where that was this run, or no tool."""
    other = context.writers.last(path, but=context.run_id)
    return f" ({other} wrote it last)" if other else ""


def _conflict(path: str, seen: str | None, context: ToolContext) -> ToolError:
    by = written_by(context, path)
    if seen is None:
        return ToolError(
            f"{shown(path)} exists{by}, and you have not read it; nothing was written",
            hint="read_file it first if it is yours to replace, or choose another name",
        )
    return ToolError(
        f"{shown(path)} was changed or removed since you last read or wrote it{by}; nothing was written",
        hint="somebody else works on it: read_file it again and decide anew",
    )
