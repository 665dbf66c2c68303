"""A definition as a file gives it, with the line of every field: becomes a `SubagentDefinition` or one clear error."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from pydantic import ValidationError

from kinfold.definitions.aliases import did_you_mean, granted_keys
from kinfold.definitions.definition import DEFAULT_TOOL_KEYS, IgnoredField, SubagentDefinition
from kinfold.errors import ConfigError

_SLUG_WORDS = "must be a slug: lower-case letters, digits, '-' and '_', at most 64, as in 'code-reviewer'"
_STOP_FORMS = {"has_tool_call": "key", "tokens_over": "n", "text_matches": "pattern"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """Raw values by the field names of `SubagentDefinition`, and where each stands."""

    path: Path
    line: int
    """1-based; where the definition begins."""
    values: dict[str, Any]
    lines: dict[str, int] = field(default_factory=dict)
    written: dict[str, str] = field(default_factory=dict)
    """Field name → how the file spells it, where that differs."""
    ignored: tuple[IgnoredField, ...] = ()
    dialect: str = "kinfold"
    """Which system's file this is; decides which tool names are known."""
    fault: tuple[str, str] | None = None
    """A field that is wrong by its very name, and why; `build` refuses it."""
    skip: str = ""
    """Why this is no definition for kinfold, by its author's own will (switched off, say); empty: it is one."""

    def refuse(self, name: str | None, reason: str) -> NoReturn:
        """Raise the `ConfigError` for one field; `name` None speaks of the whole definition."""
        line = self.lines.get(name, self.line) if name else self.line
        subject = f"{self.written.get(name, name)!r} " if name else ""
        refuse(self.path, line, f"{subject}{reason}")

    def build(self, extra: Collection[str]) -> SubagentDefinition:
        """The definition. Raises `ConfigError` with file, line and reason."""
        if self.fault is not None:
            self.refuse(*self.fault)
        for name in ("type", "description"):
            if name not in self.values:
                self.refuse(None, f"a definition needs {self.written.get(name, name)!r}")
        values = dict(self.values)
        values["tool_keys"] = self._tools(values.get("tool_keys", DEFAULT_TOOL_KEYS), extra)
        values["stop_conditions"] = self._stops(values.get("stop_conditions", ()), values["tool_keys"])
        try:
            return SubagentDefinition(**values, source=f"{self.path}:{self.line}", ignored_fields=self.ignored)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            self.refuse(str(first["loc"][0]), f"{_words(first['type'], first['msg'])}{_got(first['input'])}")

    def _tools(self, names: Any, extra: Collection[str]) -> tuple[str, ...]:
        if not isinstance(names, (list, tuple)) or not all(isinstance(name, str) for name in names):
            self.refuse("tool_keys", "must be a list of tool names")
        if not names:
            self.refuse("tool_keys", "leaves no tool; leave the field out for the default set")
        keys: list[str] = []
        for name in names:
            try:
                keys += granted_keys(name, extra, self.dialect)
            except ValueError as error:
                self.refuse("tool_keys", str(error))
        return tuple(dict.fromkeys(keys))

    def _stops(self, entries: Any, keys: tuple[str, ...]) -> list[dict[str, Any]]:
        """The short form of a file (`{tokens_over = 50000}`) as the discriminated form of the model."""
        if not isinstance(entries, (list, tuple)):
            self.refuse("stop_conditions", "must be a list")
        return [self._stop(entry, keys) for entry in entries]

    def _stop(self, entry: Any, keys: tuple[str, ...]) -> dict[str, Any]:
        if not isinstance(entry, dict) or len(entry) != 1:
            self.refuse("stop_conditions", f"holds entries of one key each, one of: {', '.join(_STOP_FORMS)}")
        kind, value = next(iter(entry.items()))
        if kind not in _STOP_FORMS:
            near = did_you_mean(str(kind), _STOP_FORMS)
            self.refuse("stop_conditions", f"does not know {kind!r} (there are: {', '.join(_STOP_FORMS)}){near}")
        if kind == "has_tool_call" and value not in (*keys, "complete"):
            self.refuse("stop_conditions", f"waits for the tool {value!r}, which this definition does not have")
        return {"type": kind, _STOP_FORMS[kind]: value}


class Refused(ConfigError):
    """Raised when a definition file is wrong; a `ConfigError` that keeps its line and reason apart."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}", hint=hint_for(path))
        self.line = line
        self.reason = reason


def hint_for(path: Path) -> str:
    """What to do about a definition file that is wrong."""
    return f"correct {path.name}, or run with --agents none to have no subagents"


def refuse(path: Path, line: int, reason: str) -> NoReturn:
    """Raise the one `ConfigError` of a definition file: file, line, reason."""
    raise Refused(path, line, reason)


def _got(value: Any) -> str:
    """What stands there instead, where it is short enough to help."""
    shown = repr(value)
    return f" (got {shown})" if isinstance(value, (str, int, float)) and len(shown) <= 80 else ""


def _words(kind: str, message: str) -> str:
    if kind == "string_pattern_mismatch":
        return _SLUG_WORDS
    message = message.removeprefix("Value error, ").removeprefix("Input ")
    return message[:1].lower() + message[1:]
