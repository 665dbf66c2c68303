"""The definitions that serve when an operator names none: `general`, `research`, `coding`, each in its own `.md`."""

from __future__ import annotations

from pathlib import Path

from kinfold.definitions import agent_file
from kinfold.definitions.definition import SubagentDefinition

_ORDER = ("general", "research", "coding")


def _shipped(name: str) -> SubagentDefinition:
    path = Path(__file__).with_name(f"{name}.md")
    (draft,) = agent_file.drafts(path, path.read_text(encoding="utf-8"))
    return draft.build(()).model_copy(update={"source": "kinfold"})


DEFAULT: tuple[SubagentDefinition, ...] = tuple(_shipped(name) for name in _ORDER)
"""In the order in which the main agent's model reads of them."""
