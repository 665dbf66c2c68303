"""Lists a directory of the workspace; a link to one counts as one."""

from __future__ import annotations

import posixpath

from kinfold.errors import PathError
from kinfold.sandbox.base import FileStat, Listing
from kinfold.sandbox.workspace import normalize
from kinfold.tools.base import ToolContext

MAX_HOPS = 8
"""Links that are followed to the directory."""


async def entries(context: ToolContext, path: str, *, depth: int, max_entries: int) -> tuple[str, Listing]:
    """The directory that the absolute `path` means, and what lies beneath it. Raises `PathError`.

    The container lists without following the last component; each hop is resolved here on its words and checked there
    again, so a link that leaves the workspace is refused like any other path.
    """
    for _ in range(MAX_HOPS):
        try:
            return path, await context.sandbox.list(path, depth=depth, max_entries=max_entries)
        except PathError as error:
            if error.reason != "not_a_directory":
                raise
            (found,) = await context.sandbox.stat([path])
            if not isinstance(found, FileStat) or found.type != "symlink" or found.target is None:
                raise
        path = normalize(posixpath.join(posixpath.dirname(path), found.target))
    raise PathError("invalid", path, f"is behind more than {MAX_HOPS} links")
