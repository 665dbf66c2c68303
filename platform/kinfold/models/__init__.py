"""Who thinks: `resolve` turns a model's name, as an operator writes it, into a `Model`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kinfold.errors import ConfigError

if TYPE_CHECKING:
    from kinfold.models.base import Model

__all__ = ["resolve"]

_ALLOWED = "use `scripted:FILE`, `anthropic:NAME` or a bare name that begins with `claude-`"


def resolve(name: str) -> Model:
    """The model called `name`: `scripted:FILE`, `anthropic:NAME` or a bare `claude-…` name.

    Raises `ConfigError` for any other name, for a script that cannot be used and for a missing key. Nothing heavy is
    imported before it is needed.
    """
    kind, colon, rest = name.strip().partition(":")
    if not colon and kind.startswith("claude-"):
        kind, rest = "anthropic", kind
    if kind not in ("scripted", "anthropic", "cassette") or not (colon or kind == "anthropic"):
        raise ConfigError(f"unknown model {name!r}", hint=_ALLOWED)
    if kind == "cassette":
        raise ConfigError(f"model {name!r}: cassettes cannot be recorded or replayed yet", hint=_ALLOWED)
    if not rest.strip():
        raise ConfigError(f"model {name!r} names no {'file' if kind == 'scripted' else 'model'}", hint=_ALLOWED)
    if kind == "scripted":
        from kinfold.models.scripted import ScriptedModel

        return ScriptedModel.from_file(Path(rest))
    from kinfold.models.anthropic import AnthropicModel

    return AnthropicModel(rest.strip())
