"""Requests to ask, a clock that does not wait, and a look at what came back."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from kinfold.messages import Message, ToolSpec
from kinfold.models.anthropic import AnthropicModel
from kinfold.models.base import ModelEvent, ModelRequest, Reply

Ask = Callable[..., Coroutine[Any, Any, list[ModelEvent]]]
"""The fixture `ask`: a model and a request, to everything that was streamed."""
MakeModel = Callable[..., AnthropicModel]
"""The fixture `model_of`: a loopback server, to a model that talks to it."""

BASH = ToolSpec(
    name="bash", description="Run a command.", input_schema={"type": "object", "properties": {"command": {}}}
)
COMPLETE = ToolSpec(name="complete", description="Deliver.", input_schema={"type": "object", "properties": {}})


class Clock:
    """Stands in for sleeping: returns at once and remembers how long it was asked to wait."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)


def question(text: str = "What is it?", **more: Any) -> ModelRequest:
    """A small valid request."""
    fields: dict[str, Any] = {"system": ("Be brief.",), "messages": (Message.user(text),), "tools": (BASH, COMPLETE)}
    return ModelRequest(**{**fields, **more})


def reply_in(events: list[ModelEvent]) -> Reply:
    """The reply, which must be the last event and the only one of its kind."""
    replies = [event for event in events if isinstance(event, Reply)]
    assert len(replies) == 1
    assert events[-1] is replies[0]
    return replies[0]
