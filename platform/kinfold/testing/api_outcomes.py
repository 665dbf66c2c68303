"""What a test tells the loopback Messages API to do with a request: answer, refuse, or break off."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Where = Literal["before_block", "inside_block", "after_block"]
"""Relative to the answer's last block: before its start, between its fragments, after its stop."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """How a stream that began well ends badly."""

    where: Where
    how: Literal["cut", "error", "stall", "end"] = "cut"
    """`cut`: the connection breaks; `error`: an error event; `stall`: nothing but `stall_event`, until the client
    leaves; `end`: the stream ends in good order, without the events that are still due."""
    error_type: str = "overloaded_error"
    error_message: str = "Overloaded"
    stall_event: Mapping[str, Any] = field(default_factory=lambda: {"type": "ping"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A streamed reply."""

    blocks: tuple[Mapping[str, Any], ...] = ()
    """Content blocks as the API writes them. A `tool_use` may have `raw_input`, a text, instead of `input`."""
    stop_reason: str | None = None
    """None: `tool_use` with a tool call among the blocks, else `end_turn`."""
    stop_details: Mapping[str, Any] | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)
    """Overrides the counted tokens, and adds what else the API tells of a bill."""
    interruption: Interruption | None = None
    extra_events: tuple[Mapping[str, Any], ...] = ()
    """Events of kinds that no client knows; they come after `message_start`."""
    fragment: int = 7
    """Characters of a delta."""

    @classmethod
    def text(cls, text: str, **more: Any) -> Answer:
        """An answer of one text block."""
        return cls(blocks=({"type": "text", "text": text},), **more)

    @classmethod
    def call(cls, name: str, arguments: Mapping[str, Any], *, id: str = "toolu_1", **more: Any) -> Answer:
        """An answer of one tool call."""
        return cls(blocks=({"type": "tool_use", "id": id, "name": name, "input": dict(arguments)},), **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """An error instead of an answer."""

    status: int
    type: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    """None: the API's JSON; else these bytes, as a proxy's error page."""
    details: Mapping[str, Any] | None = None

    def encode(self, request_id: str) -> bytes:
        """The body on the wire."""
        if self.body is not None:
            return self.body
        error: dict[str, Any] = {"type": self.type, "message": self.message}
        if self.details is not None:
            error["details"] = dict(self.details)
        return json.dumps({"type": "error", "error": error, "request_id": request_id}).encode()


def rate_limited(retry_after: str | None = "1") -> Refusal:
    """A 429, with `retry-after` unless it is None."""
    headers = {} if retry_after is None else {"retry-after": retry_after}
    message = "This request would exceed the rate limit for your organization."
    return Refusal(status=429, type="rate_limit_error", message=message, headers=headers)


def overloaded() -> Refusal:
    """A 529."""
    return Refusal(status=529, type="overloaded_error", message="Overloaded")


def internal() -> Refusal:
    """A 500."""
    return Refusal(status=500, type="api_error", message="Internal server error")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hangup:
    """The connection breaks before anything is answered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Silence:
    """Nothing is answered at all, until the client leaves."""


Outcome = Answer | Refusal | Hangup | Silence
