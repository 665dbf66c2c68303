"""Turns a `ModelRequest` into the body of a Messages request: the same bytes each time, so that the cache can match.

The cached prefix is tools, then system, then messages. Tools are sorted, keys keep their order, and nothing that
changes from request to request stands before the last message.
"""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterator
from typing import Any

from kinfold.messages import (
    Block,
    ImageBlock,
    Message,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from kinfold.models.base import ModelRequest
from kinfold.models.families import thinking_body

CACHE = {"type": "ephemeral"}
LOOK_BACK = 15
"""A breakpoint finds an earlier entry at most 20 blocks back; a turn that adds more than this gets one in between."""
MOST_BETWEEN = 2
"""Four breakpoints are allowed: the system's, the last message's, and these."""
_CACHEABLE = frozenset({"text", "image", "tool_use", "tool_result"})


def build_body(request: ModelRequest, model: str, *, force: bool = True) -> dict[str, Any]:
    """The body for `model`, without `stream`.

    With `force` off, a `tool_choice` is asked for in words: some models refuse to be forced.
    """
    force = force and not isinstance(
        request.thinking, int
    )  # a budget of reasoning and a forced tool exclude each other
    messages = _messages(request.messages)
    if request.tool_choice is not None and not force:
        _append_text(messages, _forced_tool_words(request.tool_choice))
    _mark_messages(messages)
    body: dict[str, Any] = {"model": model, "max_tokens": request.reply_tokens}
    tools = [_tool(tool) for tool in sorted(request.tools, key=lambda tool: tool.name)]
    system = [{"type": "text", "text": _clean(text)} for text in request.system if text.strip()]
    if system:
        system[-1]["cache_control"] = CACHE
    elif tools:
        tools[-1]["cache_control"] = CACHE
    if system:
        body["system"] = system
    if tools:
        body["tools"] = tools
    if request.tool_choice is not None and force:
        body["tool_choice"] = {"type": "tool", "name": request.tool_choice}
    return {**body, **_reasoning(request, model), "messages": messages}


def _reasoning(request: ModelRequest, model: str) -> dict[str, Any]:
    effort = {} if request.effort is None else {"output_config": {"effort": request.effort}}
    thinking = None if request.thinking is None else thinking_body(model, request.thinking)
    return effort if thinking is None else {**effort, "thinking": thinking}


def _forced_tool_words(tool: str) -> str:
    words = importlib.resources.files("kinfold.models").joinpath("forced_tool.md").read_text(encoding="utf-8")
    return words.strip().replace("{tool}", tool)


def _tool(tool: ToolSpec) -> dict[str, Any]:
    schema = _clean(tool.input_schema)
    return {"name": tool.name, "description": _clean(tool.description), "input_schema": schema}


def _messages(messages: tuple[Message, ...]) -> list[dict[str, Any]]:
    """The turns, alternating: neighbours of one role become one, empty ones vanish (the service refuses them)."""
    turns: list[dict[str, Any]] = []
    for message in messages:
        blocks = list(_blocks(message.content))
        if not blocks:
            continue
        if turns and turns[-1]["role"] == message.role:
            turns[-1]["content"].extend(blocks)
        else:
            turns.append({"role": message.role, "content": blocks})
    for turn in turns:
        if turn["role"] == "user":
            # Results come first, in their order; the service takes a text before them for a missing result.
            turn["content"].sort(key=lambda block: block["type"] != "tool_result")
    return turns


def _blocks(content: tuple[Block, ...]) -> Iterator[dict[str, Any]]:
    for block in content:
        if (wire := _block(block)) is not None:
            yield wire


def _block(block: Block) -> dict[str, Any] | None:
    """One block as the service takes it; None for what it would refuse: blank text, reasoning without signature."""
    match block:
        case TextBlock():
            return {"type": "text", "text": _clean(block.text)} if block.text.strip() else None
        case ImageBlock():
            return {
                "type": "image",
                "source": {"type": "base64", "media_type": block.media_type, "data": block.data},
            }
        case ThinkingBlock() | RedactedThinkingBlock():
            return _thinking(block)
        case ToolCall():
            return {"type": "tool_use", "id": block.id, "name": block.name, "input": _clean(block.input)}
        case ToolResult():
            return _result(block)
        case OpaqueBlock():
            cleaned: dict[str, Any] = _clean(block.raw)
            return cleaned


def _thinking(block: ThinkingBlock | RedactedThinkingBlock) -> dict[str, Any] | None:
    if isinstance(block, RedactedThinkingBlock):
        return {"type": "redacted_thinking", "data": block.data}
    if not block.signature:
        return None
    return {"type": "thinking", "thinking": _clean(block.thinking), "signature": block.signature}


def _result(block: ToolResult) -> dict[str, Any]:
    wire: dict[str, Any] = {"type": "tool_result", "tool_use_id": block.tool_use_id}
    if content := list(_blocks(block.content)):
        wire["content"] = content
    if block.is_error:
        wire["is_error"] = True
    return wire


def _append_text(messages: list[dict[str, Any]], text: str) -> None:
    block = {"type": "text", "text": text}
    if messages and messages[-1]["role"] == "user":
        messages[-1]["content"].append(block)
    else:
        messages.append({"role": "user", "content": [block]})


def _mark_messages(messages: list[dict[str, Any]]) -> None:
    """Put a breakpoint on the last block, and on some in between where the last turn added many."""
    if not messages:
        return
    added = [block for message in messages[-2:] for block in message["content"]]
    mark, left = len(added) - 1, MOST_BETWEEN + 1
    while mark >= 0 and left > 0:
        while mark >= 0 and added[mark]["type"] not in _CACHEABLE:
            mark -= 1
        if mark >= 0:
            added[mark]["cache_control"] = CACHE
        left -= 1
        # The entry of the request before ends just before the first added block, `mark` + 1 blocks back.
        mark = mark - LOOK_BACK if mark >= LOOK_BACK else -1


def _clean(value: Any) -> Any:
    """`value` with lone surrogates replaced: a model may write them as escapes, and UTF-8 cannot carry them."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value
