"""The outputs that a parent declared: whether each of their globs matches a file of the workspace."""

from __future__ import annotations

from kinfold.sandbox.base import WORKSPACE
from kinfold.tools.base import ToolContext
from kinfold.tools.glob import matching
from kinfold.tools.names import shown


async def absent(context: ToolContext) -> list[str]:
    """The declared globs that nothing matches. Raises `ToolError` for a pattern that is none, and `PathError`."""
    missing = []
    for pattern in context.expected_outputs:
        _, found, _ = await matching(context, WORKSPACE, pattern.removeprefix(f"{WORKSPACE}/"))
        if not found:
            missing.append(shown(pattern))
    return missing
