"""Who thinks: `resolve` turns a model's name, as an operator writes it, into a `Model`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kinfold.errors import ConfigError

if TYPE_CHECKING:
    from kinfold.models.base import Model

__all__ = ["LINES", "full_name", "resolve"]

LINES = {
    "fable": "claude-fable-5-1",
    "opus": "claude-opus-5-5",
    "sonnet": "claude-sonnet-5-5",
    "haiku": "claude-haiku-5-5",
}
"""What agent files of other tools call a line of models, and the model that it means as of autumn 2026."""
_ALLOWED = f"use `scripted:FILE`, `cassette:FILE`, `anthropic:NAME`, a name like `claude-…`, or {', '.join(LINES)}"


def resolve(name: str) -> Model:
    """The model called `name`: `scripted:FILE`, `cassette:FILE`, `anthropic:NAME`, `claude-…`, or one of `LINES`.

    Raises `ConfigError` for any other name, for a script or a recording that cannot be used and for a missing key.
    Nothing heavy is imported before it is needed.
    """
    kind, _, rest = full_name(name).partition(":")
    if kind == "scripted":
        from kinfold.models.scripted import ScriptedModel

        return ScriptedModel.from_file(Path(rest))
    if kind == "cassette":
        from kinfold.models.cassette import ReplayModel

        return ReplayModel(Path(rest))
    from kinfold.models.anthropic import AnthropicModel

    return AnthropicModel(rest)


def full_name(name: str) -> str:
    """`KIND:NAME` of what `resolve` would make of `name`, without making it: no key is asked for, no file is read.

    Raises `ConfigError` for a name that cannot be right.
    """
    bare = LINES.get(name.strip(), name.strip())
    kind, colon, rest = (f"anthropic:{bare}" if bare.startswith("claude-") else bare).partition(":")
    if kind not in ("scripted", "anthropic", "cassette") or not colon:
        raise ConfigError(f"unknown model {name!r}", hint=_ALLOWED)
    if not rest.strip():
        raise ConfigError(f"model {name!r} names no {'model' if kind == 'anthropic' else 'file'}", hint=_ALLOWED)
    return f"{kind}:{rest.strip()}"
