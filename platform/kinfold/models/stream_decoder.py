"""Assembles a reply from the raw events of a stream, block by block, and lets nothing unfinished out.

The SDK's own accumulator is not used: it completes a cut tool input by guessing, so that a call with half of its
arguments looks whole. Here the fragments of a block stay text until its `content_block_stop`.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from kinfold.messages import (
    Block,
    Message,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    Usage,
)
from kinfold.models.base import Reply, TextChunk, ThinkingChunk
from kinfold.models.reported_usage import ReportedUsage
from kinfold.models.tool_input import parse_tool_input

INCOMPLETE = "incomplete"
"""The stop reason of a reply that was cut after completed blocks: the service gave none."""
_CUT_SHORT = frozenset({"max_tokens", "model_context_window_exceeded"})


class MalformedStream(Exception):
    """Raised when an event lacks what its type promises, or stands where it cannot; a failure of the transport."""


class _OpenBlock:
    """A block whose `content_block_stop` has not come: its first form and the fragments since."""

    def __init__(self, start: dict[str, Any]) -> None:
        self.start = start
        self.type = _string(start, "type")
        self.fragments: dict[str, list[str]] = {}

    def add(self, field: str, fragment: str) -> None:
        self.fragments.setdefault(field, []).append(fragment)

    def text(self, field: str) -> str:
        """What the block began with in a field and all that was added to it."""
        first = self.start.get(field)
        return (first if isinstance(first, str) else "") + "".join(self.fragments.get(field, ()))


class StreamDecoder:
    """Feed it every event of one stream, in order; ask it then for the reply."""

    def __init__(self, request_id: str | None = None) -> None:
        self._request_id = request_id
        self._open: dict[int, _OpenBlock] = {}
        self._done: dict[int, Block] = {}
        self._reported = ReportedUsage()
        self._message_id = ""
        self._model = ""
        self._stop_reason: str | None = None
        self.stopped = False
        """`message_stop` was seen: nothing more is to come."""

    @property
    def finished(self) -> bool:
        """The service said why it stopped and every block is closed: the reply is whole."""
        return self._stop_reason is not None and not self._open

    @property
    def began(self) -> bool:
        """The reply has its first token."""
        return bool(self._open or self._done)

    @property
    def has_completed(self) -> bool:
        """A text or a tool call (or a block not known here) is whole, so asking again would do it twice.

        Reasoning alone does not count: nothing was said or asked for yet.
        """
        return any(_says_something(block) for block in self._done.values())

    def feed(self, event: object) -> tuple[TextChunk | ThinkingChunk | None, bool]:
        """Take one event; returns what to show of it and whether it moved the reply on.

        Events and deltas of unknown type are ignored. Raises `MalformedStream`.
        """
        if not isinstance(event, dict):
            raise MalformedStream(f"an event is not an object: {str(event)[:200]}")
        match event.get("type"):
            case "message_start":
                self._start_message(_mapping(event, "message"))
            case "content_block_start":
                return self._start_block(_index(event), _mapping(event, "content_block")), True
            case "content_block_delta":
                return self._add(self._block(event), _mapping(event, "delta"))
            case "content_block_stop":
                self._done[_index(event)] = _close(self._block(event))
                del self._open[_index(event)]
            case "message_delta":
                self._end_message(_mapping(event, "delta"), event.get("usage"))
            case "message_stop":
                self.stopped = True
            case _:
                return None, False
        return None, True

    @property
    def usage(self) -> Usage | None:
        """What is reported of the bill so far; None: nothing."""
        return self._reported.usage

    @property
    def message_id(self) -> str | None:
        """The message's id, as soon as the service named one."""
        return self._message_id or None

    def reply(self) -> Reply:
        """The whole reply; what was completed of it, marked incomplete, where the stream was cut."""
        blocks = [self._done[index] for index in sorted(self._done)]
        if self._stop_reason in _CUT_SHORT and blocks and isinstance(blocks[-1], ToolCall):
            # Whatever its input looks like, the limit fell into it: not even an empty input is the model's word.
            reason = f"the reply reached {self._stop_reason} inside this call: its input is cut off, it was not run"
            blocks[-1] = blocks[-1].model_copy(update={"input": {}, "input_error": reason})
        return Reply(
            message=Message(role="assistant", content=tuple(blocks)),
            stop_reason=(self._stop_reason or INCOMPLETE) if self.finished else INCOMPLETE,
            usage=self.usage or Usage(),
            # The ledger keys requests by this id, so a server that gives none must not make all of them one.
            message_id=self._message_id or f"msg_unnamed_{secrets.token_hex(8)}",
            model=self._model,
            request_id=self._request_id,
            incomplete=not self.finished,
        )

    def _start_message(self, message: Mapping[str, Any]) -> None:
        self._message_id = str(message.get("id") or "")
        self._model = str(message.get("model") or "")
        self._reported.take(message.get("usage"))

    def _end_message(self, delta: Mapping[str, Any], usage: object) -> None:
        reason = delta.get("stop_reason")
        if isinstance(reason, str):
            self._stop_reason = reason
        self._reported.take(usage)

    def _start_block(self, index: int, start: Mapping[str, Any]) -> TextChunk | ThinkingChunk | None:
        if index in self._open or index in self._done:
            raise MalformedStream(f"block {index} starts twice")
        block = self._open[index] = _OpenBlock(dict(start))
        if block.type == "text" and block.text("text"):
            return TextChunk(text=_said(block.text("text")))
        return None

    def _block(self, event: Mapping[str, Any]) -> _OpenBlock:
        block = self._open.get(_index(event))
        if block is None:
            raise MalformedStream(f"{event['type']} for block {_index(event)}, which is not open")
        return block

    def _add(self, block: _OpenBlock, delta: Mapping[str, Any]) -> tuple[TextChunk | ThinkingChunk | None, bool]:
        match delta.get("type"):
            case "text_delta":
                block.add("text", text := _string(delta, "text"))
                return (TextChunk(text=_said(text)) if text else None), True
            case "thinking_delta":
                block.add("thinking", text := _string(delta, "thinking"))
                return (ThinkingChunk(text=_said(text)) if text else None), True
            case "signature_delta":
                block.add("signature", _string(delta, "signature"))
            case "input_json_delta":
                block.add("partial_json", _string(delta, "partial_json"))
            case "compaction_delta":
                block.add("content", str(delta.get("content") or ""))
            case _:
                return None, False
        return None, True


def _says_something(block: Block) -> bool:
    if isinstance(block, TextBlock):
        return bool(block.text)
    return not isinstance(block, ThinkingBlock | RedactedThinkingBlock)


def _said(text: str) -> str:
    """The text with whole surrogate pairs joined, also over two deltas, and halves replaced: no file can hold those."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _close(block: _OpenBlock) -> Block:
    match block.type:
        case "text":
            return TextBlock(text=_said(block.text("text")))
        case "thinking":
            return ThinkingBlock(thinking=block.text("thinking"), signature=block.text("signature"))
        case "redacted_thinking":
            return RedactedThinkingBlock(data=_string(block.start, "data"))
        case "tool_use":
            arguments, error = _input_of(block)
            name, call_id = _string(block.start, "name"), _string(block.start, "id")
            return ToolCall(id=call_id, name=name, input=arguments, input_error=error)
        case _:
            return _opaque(block)


def _input_of(block: _OpenBlock) -> tuple[dict[str, Any], str | None]:
    """The strictly parsed fragments; without any, the input that the block began with (an empty one as a rule)."""
    raw = block.text("partial_json")
    first = block.start.get("input")
    return (dict(first), None) if not raw and isinstance(first, dict) else parse_tool_input(raw)


def _opaque(block: _OpenBlock) -> OpaqueBlock:
    """A block kinfold does not know, with the fragments put where the service's own kinds have them."""
    raw = dict(block.start)
    for field in block.fragments:
        if field == "partial_json":
            arguments, error = parse_tool_input(block.text(field))
            if error is not None:
                raise MalformedStream(f"block of type {block.type!r}: {error}")
            raw["input"] = arguments
        else:
            raw[field] = block.text(field)
    return OpaqueBlock(raw=raw)


def _index(event: Mapping[str, Any]) -> int:
    index = event.get("index")
    if not isinstance(index, int):
        raise MalformedStream(f"{event.get('type')} without an index")
    return index


def _mapping(event: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = event.get(key)
    if not isinstance(value, dict):
        raise MalformedStream(f"{event.get('type')} without {key!r}")
    return value


def _string(value: Mapping[str, Any], key: str) -> str:
    found = value.get(key)
    if not isinstance(found, str):
        raise MalformedStream(f"{value.get('type', 'message')} without {key!r}")
    return found
