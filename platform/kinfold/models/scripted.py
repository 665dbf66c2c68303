"""A model that answers from a script: a function of the request, or a YAML file; it costs nothing and never varies.

Replies are chosen from the request alone, so subagents that run at once and requests that are made again get what the
script says, whatever their order.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel

from kinfold.messages import Block, Message, StopReason, TextBlock, ToolCall, Usage
from kinfold.models import estimate
from kinfold.models.base import ModelEvent, ModelRequest, Reply, TextChunk
from kinfold.models.tool_input import parse_tool_input

CHUNKS = 4
"""At most so many pieces does a reply's text stream in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedCall:
    """One tool call of a reply."""

    tool: str
    input: Mapping[str, Any] = field(default_factory=dict)
    raw: str | None = None
    """Instead of `input`: the text as a model would stream it, perhaps no valid JSON."""
    id: str | None = None
    """None: made from who asks, the step and the call's place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptedReply:
    """One turn of a scripted model; with neither text nor calls it is an empty turn."""

    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    stop_reason: StopReason | str | None = None
    """None: `tool_use` with calls, else `end_turn`."""
    usage: Usage | None = None
    """None: estimated."""
    delay: float = 0.0
    """Seconds before the reply begins."""
    incomplete: bool = False
    """The stream was cut after what stands here."""


ReplyFunction = Callable[[ModelRequest], ScriptedReply | Awaitable[ScriptedReply]]


class ScriptedModel:
    """Answers each request with what `reply` returns for it; an error that `reply` raises is the model's."""

    name = "scripted"
    scripted = True
    overrides_definitions = True
    """All subagents use this model, whatever their definitions say."""

    def __init__(self, reply: ReplyFunction) -> None:
        self._reply = reply

    @classmethod
    def from_file(cls, path: Path) -> ScriptedModel:
        """The model that plays a YAML script; raises `ConfigError` with the file and line of what is wrong in it."""
        from kinfold.models.script_file import load_script

        return cls(load_script(path).reply)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Stream the scripted reply: its text in a few chunks, then the `Reply`."""
        answer = self._reply(request)
        scripted = await answer if inspect.isawaitable(answer) else answer
        await anyio.sleep(scripted.delay)
        for piece in _pieces(scripted.text):
            await anyio.lowlevel.checkpoint()
            yield TextChunk(text=piece)
        yield _assemble(request, scripted)


def turn_of(request: ModelRequest) -> int:
    """Which reply of its run a request asks for, counted from 1.

    The turns that the model has taken in the conversation tell; the step does where turns are missing from it,
    because they were empty or compacted away.
    """
    taken = sum(message.role == "assistant" for message in request.messages)
    return max(taken + 1, request.step)


def _assemble(request: ModelRequest, scripted: ScriptedReply) -> Reply:
    turn = turn_of(request)
    who = _who(request)
    content: list[Block] = [TextBlock(text=scripted.text)] if scripted.text else []
    for number, call in enumerate(scripted.calls, 1):
        content.append(_tool_call(call, f"toolu_{who}_{turn}_{number}"))
    message = Message(role="assistant", content=tuple(content))
    usage = scripted.usage or Usage(
        input_tokens=estimate.request_tokens(request), output_tokens=estimate.message_tokens(message)
    )
    return Reply(
        message=message,
        stop_reason=scripted.stop_reason or ("tool_use" if scripted.calls else "end_turn"),
        usage=usage,
        message_id=f"msg_{who}_{turn}",
        model=ScriptedModel.name,
        incomplete=scripted.incomplete,
    )


def _tool_call(call: ScriptedCall, fallback_id: str) -> ToolCall:
    arguments, error = dict(call.input), None
    if call.raw is not None:
        arguments, error = parse_tool_input(call.raw)
    return ToolCall(id=call.id or fallback_id, name=call.tool, input=arguments, input_error=error)


def _who(request: ModelRequest) -> str:
    """A short name of the asking run: the same each time, another for a sibling with another prompt."""
    first = request.messages[0].text if request.messages else ""
    parts = (request.run_kind, request.label or "", request.subagent_type or "", first)
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:10]


def _pieces(text: str) -> Iterator[str]:
    """The text in at most `CHUNKS` pieces, cut before white space; joined they are the text."""
    words = re.findall(r"\s*\S+\s*$|\s*\S+", text) or ([text] if text else [])
    size = -(-len(words) // CHUNKS) or 1
    for start in range(0, len(words), size):
        yield "".join(words[start : start + size])
