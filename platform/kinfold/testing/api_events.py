"""The server-sent events of a scripted answer, in the order in which the API sends them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kinfold.testing.api_outcomes import Answer

_STREAMED = {"text": ("text_delta", "text"), "thinking": ("thinking_delta", "thinking")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """All events of an answer, and where its last block begins, is open and has ended (indexes into them)."""

    events: tuple[Mapping[str, Any], ...]
    before_block: int
    inside_block: int
    after_block: int


def timeline(answer: Answer, *, message_id: str, model: str, prompt_tokens: int) -> Timeline:
    """Lay out an answer's events."""
    usage = {"input_tokens": prompt_tokens, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    usage |= {name: count for name, count in answer.usage.items() if name != "output_tokens"}
    output = answer.usage.get("output_tokens", max(1, sum(len(json.dumps(dict(b))) for b in answer.blocks) // 4))
    message: dict[str, Any] = {
        "id": message_id, "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": None, "stop_sequence": None, "usage": {**usage, "output_tokens": 1},
    }  # fmt: skip
    events: list[Mapping[str, Any]] = [{"type": "message_start", "message": message}, {"type": "ping"}]
    events += answer.extra_events
    starts = inside = len(events)
    for index, block in enumerate(answer.blocks):
        starts = len(events)
        events += block_events(index, block, answer.fragment)
        inside = starts + max(1, (len(events) - starts) // 2)
    ends = len(events)
    called = any(block["type"] == "tool_use" for block in answer.blocks)
    delta = {
        "stop_reason": answer.stop_reason or ("tool_use" if called else "end_turn"),
        "stop_sequence": None,
        "stop_details": answer.stop_details,
    }
    events.append({"type": "message_delta", "delta": delta, "usage": {**usage, "output_tokens": output}})
    events.append({"type": "message_stop"})
    return Timeline(events=tuple(events), before_block=starts, inside_block=inside, after_block=ends)


def block_events(index: int, block: Mapping[str, Any], fragment: int) -> Iterator[Mapping[str, Any]]:
    """One block's start, its deltas and its stop; kinds without deltas come whole in their start."""
    start, deltas = dict(block), list(_deltas(block, fragment))
    if block["type"] in _STREAMED:
        start[_STREAMED[block["type"]][1]] = ""
    if block["type"] == "thinking":
        start["signature"] = ""
    if block["type"] in ("tool_use", "server_tool_use"):
        start.pop("raw_input", None)
        start["input"] = {}
    yield {"type": "content_block_start", "index": index, "content_block": start}
    for delta in deltas:
        yield {"type": "content_block_delta", "index": index, "delta": delta}
    yield {"type": "content_block_stop", "index": index}


def encode(event: Mapping[str, Any]) -> bytes:
    """One event on the wire."""
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _deltas(block: Mapping[str, Any], fragment: int) -> Iterator[Mapping[str, Any]]:
    kind = block["type"]
    if kind in _STREAMED:
        delta, field = _STREAMED[kind]
        for piece in _pieces(block[field], fragment):
            yield {"type": delta, field: piece}
    if kind == "thinking" and block.get("signature"):
        yield {"type": "signature_delta", "signature": block["signature"]}
    if kind in ("tool_use", "server_tool_use"):
        raw = block["raw_input"] if "raw_input" in block else json.dumps(block["input"]) if block["input"] else ""
        # The API begins an input with an empty fragment.
        yield {"type": "input_json_delta", "partial_json": ""}
        for piece in _pieces(raw, fragment):
            yield {"type": "input_json_delta", "partial_json": piece}


def _pieces(text: str, size: int) -> Iterator[str]:
    for start in range(0, len(text), size):
        yield text[start : start + size]
