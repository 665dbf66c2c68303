"""What an agent does with an exec that left processes running: read on, or end it. Only its own."""

from __future__ import annotations

from kinfold.errors import ToolError
from kinfold.tools.base import ToolContext


async def read_on(context: ToolContext, exec_id: str) -> str:
    """What the exec printed since it was last looked at."""
    raise ToolError(f"reading {exec_id} on is not wired yet")


async def end(context: ToolContext, exec_id: str, grace: float) -> str:
    """Kill what runs of it, with proof."""
    raise ToolError(f"ending {exec_id} is not wired yet")
