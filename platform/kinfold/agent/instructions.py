"""The words that the loop itself says to a model; they live in the `.md` files of `instructions/`."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Final

from kinfold.messages import RunKind

_FOLDER = Path(__file__).parent / "instructions"


@cache
def words(name: str) -> str:
    """The text of `instructions/<name>.md`."""
    return (_FOLDER / f"{name}.md").read_text(encoding="utf-8").strip()


MAIN_INSTRUCTIONS: Final = words("main")
"""The system prompt of a main agent."""
TASK_INSTRUCTIONS: Final = words("task")
"""The system prompt of a subagent."""

INSTRUCTIONS: Final[dict[RunKind, str]] = {"main": MAIN_INSTRUCTIONS, "subagent": TASK_INSTRUCTIONS}
