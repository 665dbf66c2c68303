"""The seam to whoever thinks: one request object, one streaming method."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

from kinfold.messages import Message, RunKind, StopReason, ToolSpec, Usage

Effort = Literal["low", "medium", "high", "xhigh", "max"]
Thinking = Literal["adaptive", "off"] | int
"""Whether a model reasons before it answers: as it sees fit, not at all, or within so many tokens."""
MAX_TOKENS = 16_384
"""Of a reply; what it may reason within comes on top."""
Purpose = Literal["step", "finalisation", "compaction"]
"""What a request is for: a step of the run, its last one that may only complete, or a summary of what came before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """One request: the whole prefix and the whole history, for the API has no memory."""

    system: tuple[str, ...]
    """Blocks, stable over a run; the last one carries the cache breakpoint."""
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    """Sorted by name and the same in every request of a run."""
    max_tokens: int = MAX_TOKENS
    tool_choice: str | None = None
    """None: the model's choice; else the one tool that it must call."""
    effort: Effort | None = None
    thinking: Thinking | None = None
    """None: the service's default for the model."""
    # Who asks; never sent to a service. A scripted model chooses its reply by these.
    purpose: Purpose = "step"
    run_kind: RunKind = "main"
    label: str | None = None
    subagent_type: str | None = None
    step: int = 1
    """1-based within the run."""

    @property
    def reply_tokens(self) -> int:
        """The most that the reply may have, with what it is reasoned within."""
        return self.max_tokens + (self.thinking if isinstance(self.thinking, int) else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TextChunk:
    """A piece of the reply's text as it arrives."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingChunk:
    """A piece of the model's reasoning as it arrives."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryNotice:
    """The request failed and will be made again after `delay` seconds; what was streamed so far is void."""

    attempt: int
    """The one that failed, counted from 1."""
    delay: float
    reason: str
    usage: Usage | None = None
    """What the failed attempt is billed for, as far as it was heard; None: it reported nothing."""
    message_id: str | None = None
    """Of the failed attempt's message, where one had begun."""
    request_id: str | None = None
    """By which the service knows the failed attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The complete turn; always the last item of a stream."""

    message: Message
    stop_reason: StopReason | str
    """As the service said it; a value that kinfold does not know stays a plain string."""
    usage: Usage
    message_id: str
    model: str
    """The model that answered."""
    request_id: str | None = None
    incomplete: bool = False
    """The stream was cut after completed blocks; those stand, the rest is lost."""

    @property
    def calls_stand(self) -> bool:
        """Whether its tool calls may be run: the model stopped for them, or the stream broke after they were whole.

        After any other stop reason an input may be cut, or the turn may have gone on without the answers.
        """
        return self.incomplete or self.stop_reason == "tool_use"


ModelEvent = TextChunk | ThinkingChunk | RetryNotice | Reply


class Model(Protocol):
    """Anything that answers a request with a stream ending in one `Reply`; raises `ModelError`."""

    name: str

    def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Stream the reply. The iterator is closed by its consumer, also early (a cancel)."""
        ...


@runtime_checkable
class CountsTokens(Protocol):
    """A model whose service counts a request's tokens without answering it."""

    async def count_tokens(self, request: ModelRequest) -> int:
        """Everything that the request would send; raises `ModelError`."""
        ...
