"""Reads what a tool says to the model from the `.md` file beside it."""

from __future__ import annotations

from pathlib import Path


def beside(module_file: str) -> str:
    """The words in the `.md` next to `module_file` (a module's `__file__`), without the blank lines around them."""
    return Path(module_file).with_suffix(".md").read_text(encoding="utf-8").strip()


def read(name: str) -> str:
    """The words in this folder's `NAME.md`, which belong to no tool of their own."""
    return (Path(__file__).parent / f"{name}.md").read_text(encoding="utf-8").strip()
