"""The YAML script of a scripted model: read, checked with line numbers, and played.

    main:                                  # the main agent's replies, in order
      - text: I delegate.
        calls: [{tool: task, input: {subagent_type: coding, description: Fix the test, prompt: …}}]
      - The result says ${result.1.text}   # a plain string is a reply of text
    subagents:                             # by the call's label, else by the subagent's type
      Fix the test: [{calls: [{tool: complete, input: {summary: done, paths: []}}]}]

A reply holds `text`, `calls`, `stop_reason`, `usage`, `delay` (seconds); all are optional.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from kinfold.errors import ConfigError, ModelError
from kinfold.messages import ImageBlock, Message, TextBlock, ToolCall, ToolResult, Usage
from kinfold.models.base import ModelRequest
from kinfold.models.script_references import UnknownReference, quote, quote_text
from kinfold.models.scripted import ScriptedCall, ScriptedReply, turn_of

HINT = "a script is `main: [reply…]` and `subagents: {label-or-type: [reply…]}`; a reply has text, calls, delay…"
SHOWN = 400
"""Characters of the last message that an error of the script quotes."""


class CallEntry(BaseModel):
    """One entry of a reply's `calls`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    tool: str = Field(min_length=1)
    input: dict[str, Any] = Field(default_factory=dict)

    @field_validator("input")
    @classmethod
    def _is_json(cls, value: dict[str, Any]) -> dict[str, Any]:
        """YAML knows dates, sets and keys that are no strings; a tool call does not."""
        if (odd := _not_json(value)) is not None:
            raise ValueError(f"{odd!r} is a {type(odd).__name__}, which JSON does not have; quote it")
        return value


class UsageEntry(BaseModel):
    """The tokens that a reply claims to have used."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    input_tokens: int = Field(default=0, ge=0)
    output_tokens: int = Field(default=0, ge=0)
    cache_creation_tokens: int = Field(default=0, ge=0)
    cache_read_tokens: int = Field(default=0, ge=0)


class ReplyEntry(BaseModel):
    """One reply; a plain string stands for its text."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: str = ""
    calls: list[CallEntry] = Field(default_factory=list)
    stop_reason: str | None = None
    usage: UsageEntry | None = None
    delay: float = Field(default=0.0, ge=0, allow_inf_nan=False)


class Script(BaseModel):
    """A whole script; `reply` plays it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    main: list[ReplyEntry] = Field(default_factory=list)
    subagents: dict[str, list[ReplyEntry]] = Field(default_factory=dict)
    source: str = ""

    @field_validator("main", mode="before")
    @classmethod
    def _texts(cls, value: object) -> object:
        return _expand(value)

    @field_validator("subagents", mode="before")
    @classmethod
    def _texts_by_name(cls, value: object) -> object:
        return {name: _expand(replies) for name, replies in value.items()} if isinstance(value, dict) else value

    def reply(self, request: ModelRequest) -> ScriptedReply:
        """The reply for a request; raises `ModelError` of kind `script` where the script has none."""
        name, replies = self._list_for(request)
        turn = turn_of(request)
        if turn > len(replies):
            raise self._error(f"{name} has {len(replies)} replies and was asked for reply {turn}", request)
        entry = replies[turn - 1]
        try:
            calls = tuple(
                ScriptedCall(tool=call.tool, input=quote(call.input, request.messages)) for call in entry.calls
            )
            text = quote_text(entry.text, request.messages)
        except UnknownReference as error:
            raise self._error(f"{name}, reply {turn}: {error}", request) from error
        usage = Usage(**entry.usage.model_dump()) if entry.usage else None
        return ScriptedReply(text=text, calls=calls, stop_reason=entry.stop_reason, usage=usage, delay=entry.delay)

    def _list_for(self, request: ModelRequest) -> tuple[str, list[ReplyEntry]]:
        if request.run_kind == "main":
            return "`main`", self.main
        for name in (request.label, request.subagent_type):
            if name is not None and name in self.subagents:
                return f"`subagents: {name}`", self.subagents[name]
        known = ", ".join(repr(name) for name in self.subagents) or "none"
        asked = f"label {request.label!r}, type {request.subagent_type!r}"
        raise self._error(f"no list for the subagent with {asked}; the script has {known}", request)

    def _error(self, reason: str, request: ModelRequest) -> ModelError:
        last = describe_message(request.messages[-1]) if request.messages else "nothing"
        return ModelError(
            f"script {self.source}: {reason}; the request ended with {last}",
            kind="script",
            hint=f"correct {self.source or 'the script'}",
        )


def load_script(path: Path) -> Script:
    """Read and check a script; raises `ConfigError` that names the file and, where there is one, the line."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ConfigError(f"no script at {path}", hint="give the path of a YAML file: `scripted:FILE`") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the script {path}: {error}", hint=HINT) from error
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise _yaml_error(path, error) from error
    if not isinstance(root, yaml.MappingNode) or not isinstance(value, dict):
        raise ConfigError(f"{path}, line 1: a script is a mapping with `main` and perhaps `subagents`", hint=HINT)
    _refuse_repeated_keys(path, root)
    if "source" in value:
        raise ConfigError(f"{path}, line {_line(root, ('source',))}: `source`: unknown key", hint=HINT)
    try:
        return Script.model_validate({**value, "source": str(path)})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"]) or "the script"
        reason = "unknown key" if first["type"] == "extra_forbidden" else first["msg"]
        raise ConfigError(f"{path}, line {_line(root, first['loc'])}: `{where}`: {reason}", hint=HINT) from error


def describe_message(message: Message) -> str:
    """One line that shows a message: role, kinds and the beginning of each text."""
    parts: list[str] = []
    for block in message.content:
        match block:
            case TextBlock():
                parts.append(f"text {block.text!r}")
            case ToolCall():
                parts.append(f"call of {block.name} {block.input!r}")
            case ToolResult():
                parts.append(f"{'failed ' if block.is_error else ''}result {block.text!r}")
            case ImageBlock():
                parts.append(f"image {block.media_type}")
            case _:
                parts.append(block.type)
    line = f"{message.role}: {'; '.join(parts) or 'no content'}"
    return line if len(line) <= SHOWN else f"{line[:SHOWN]}… ({len(line)} characters)"


def _expand(replies: object) -> object:
    if not isinstance(replies, list):
        return replies
    return [{"text": reply} if isinstance(reply, str) else reply for reply in replies]


def _not_json(value: object) -> object | None:
    """The first part of a value that JSON cannot hold; None where all of it can."""
    if isinstance(value, dict):
        wrong_key = next((key for key in value if not isinstance(key, str)), None)
        return wrong_key if wrong_key is not None else _first(_not_json(item) for item in value.values())
    if isinstance(value, list):
        return _first(_not_json(item) for item in value)
    if value is None or isinstance(value, str | bool | int):
        return None
    return None if isinstance(value, float) and math.isfinite(value) else value


def _first(values: Iterable[object]) -> object | None:
    return next((value for value in values if value is not None), None)


def _yaml_error(path: Path, error: yaml.YAMLError) -> ConfigError:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        line = error.problem_mark.line + 1
        return ConfigError(f"{path}, line {line}: not valid YAML: {error.problem or error.context}", hint=HINT)
    return ConfigError(f"{path}: not valid YAML: {error}", hint=HINT)


def _refuse_repeated_keys(path: Path, node: yaml.Node, seen: set[int] | None = None) -> None:
    """YAML readers keep the last of two equal keys; a script that loses replies so would be a riddle."""
    seen = set() if seen is None else seen
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_repeated_keys(path, item, seen)
    elif isinstance(node, yaml.MappingNode):
        keys: set[str] = set()
        for key, item in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in keys:
                    line = key.start_mark.line + 1
                    raise ConfigError(f"{path}, line {line}: `{key.value}` stands twice", hint=HINT)
                keys.add(key.value)
            _refuse_repeated_keys(path, item, seen)


def _line(node: yaml.Node, loc: tuple[int | str, ...]) -> int:
    """The line, counted from 1, of the deepest node on the way of a validation error's location."""
    for part in loc:
        if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
        elif isinstance(node, yaml.MappingNode):
            found = [(key, item) for key, item in node.value if getattr(key, "value", None) == part]
            if not found:
                break
            key, item = found[0]
            if part == loc[-1] and isinstance(item, yaml.ScalarNode):
                return int(key.start_mark.line) + 1
            node = item
        else:
            break
    return int(node.start_mark.line) + 1
