"""What a subagent definition is: the values that `run_agent_loop` needs, checked once when they are made.

A definition is data: it names tools by key, models by name and stop conditions by value, so it can come from a database
row, a file or Python alike. What cannot be right is refused here, loudly; whether a tool key exists is for whoever
knows the tools (`loaders` for files, `registry.select` for a run).
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, field_validator

Effort = Literal["low", "medium", "high", "xhigh", "max"]
SMALLEST_BUDGET = 1_024
"""Tokens: no model takes a smaller budget for reasoning."""


def _thinks(value: object) -> object:
    budget = isinstance(value, int) and not isinstance(value, bool) and value >= SMALLEST_BUDGET
    if not budget and value not in ("adaptive", "off"):
        raise ValueError(f"must be 'adaptive', 'off', or a budget of at least {SMALLEST_BUDGET:,} tokens")
    return value


Thinking = Annotated[Literal["adaptive", "off"] | int, BeforeValidator(_thinks)]
"""Reasoning as the model sees fit, none, or within so many tokens."""

FORBIDDEN_IN_SUBAGENTS = frozenset({"task", "ask_user_question", "confirm"})
"""Tools that a subagent never has: it cannot start subagents and cannot ask."""
KNOWN_TOOL_KEYS = frozenset(
    {
        "bash", "read_file", "write_file", "edit_file", "list_dir", "glob", "grep", "todo_write",
        "task", "complete", "ask_user_question", "confirm",
    }
)  # fmt: skip
"""Every tool key that kinfold ships; a test keeps it equal to the registry, which lies above this room."""
DEFAULT_TOOL_KEYS = (
    "bash", "read_file", "write_file", "edit_file", "list_dir", "glob", "grep", "todo_write",
)  # fmt: skip
"""What a definition that lists no tools may use."""

MAX_STEPS = 1_000


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"is not a regular expression: {error}") from None
    return pattern


RegularExpression = Annotated[str, Field(min_length=1, max_length=1_000), AfterValidator(_compiles)]
"""Python's `re`; checked when the value is made."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class HasToolCall(_Part):
    """Ends the run after a step that called this tool."""

    type: Literal["has_tool_call"] = "has_tool_call"
    key: str = Field(min_length=1, max_length=64)


class TokensOver(_Part):
    """Ends the run after the step that brought its tokens, sent and received, above `n`."""

    type: Literal["tokens_over"] = "tokens_over"
    n: int = Field(gt=0, strict=True)


class TextMatches(_Part):
    """Ends the run after a step whose text this regular expression is found in (Python's `re.search`)."""

    type: Literal["text_matches"] = "text_matches"
    pattern: RegularExpression


class IgnoredField(_Part):
    """A field of a definition's file that another system knows and kinfold does not act on."""

    name: str
    line: int
    """1-based, in the file."""

    def __str__(self) -> str:
        return f"{self.name} (line {self.line})"


StopCondition = Annotated[HasToolCall | TokensOver | TextMatches, Field(discriminator="type")]


def has_tool_call(key: str) -> HasToolCall:
    """Stop after a step that called the tool `key`."""
    return HasToolCall(key=key)


def tokens_over(n: int) -> TokensOver:
    """Stop when the run's tokens exceed `n`."""
    return TokensOver(n=n)


def text_matches(pattern: str) -> TextMatches:
    """Stop when the regular expression is found in a step's text."""
    return TextMatches(pattern=pattern)


class SubagentDefinition(_Part):
    """One kind of subagent that the `task` tool may start. Raises pydantic's `ValidationError` on what cannot be."""

    type: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")
    """The slug that the parent's model names; unique among a task's definitions."""
    description: str = Field(max_length=10_000)
    """When to choose it, for the parent's model."""
    model: str = Field(default="inherit", min_length=1, max_length=200)
    """A model's name, or `inherit`: the main agent's."""
    max_steps: int = Field(default=30, ge=1, le=MAX_STEPS, strict=True)
    stop_conditions: tuple[StopCondition, ...] = ()
    """Any one of them ends the run, besides `complete` and the limits."""
    tool_keys: tuple[str, ...] = DEFAULT_TOOL_KEYS
    """What it may use; `complete` comes on top, listed or not."""
    compaction_model: str | None = Field(default=None, min_length=1, max_length=200)
    """Who summarises its context when that grows too large; None: its own model."""
    instructions: str = Field(default="", max_length=200_000)
    """Added to the system prompt that every subagent gets."""
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds of wall clock."""
    budget: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """US dollars."""
    effort: Effort | None = None
    """How much the model puts into its answers; None: its service's default."""
    thinking: Thinking | None = None
    """How it reasons before them; None: its service's default. What a model takes is in `models/families.py`."""
    version: int = Field(default=1, ge=1, strict=True)
    """Which revision of the definition a record speaks of."""
    source: str | None = None
    """Where it was read from, for a person."""
    ignored_fields: tuple[IgnoredField, ...] = ()
    """In the file's order."""

    @field_validator("description")
    @classmethod
    def _says_something(cls, description: str) -> str:
        if not description.strip():
            raise ValueError("must say when to choose this subagent")
        return description

    @field_validator("tool_keys")
    @classmethod
    def _allowed(cls, keys: tuple[str, ...]) -> tuple[str, ...]:
        for key in keys:
            if key in FORBIDDEN_IN_SUBAGENTS:
                raise ValueError(f"names {key!r}, which a subagent never has (nor {_others(key)})")
        return tuple(dict.fromkeys(keys))


def _others(key: str) -> str:
    return " or ".join(repr(other) for other in sorted(FORBIDDEN_IN_SUBAGENTS - {key}))
