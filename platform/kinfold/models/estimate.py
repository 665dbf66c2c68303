"""The one estimator of tokens, for whoever must know a size before a service has counted it.

About four bytes of UTF-8 make a token in English and in code; a character of Chinese, three bytes long, comes out at
0.75. It is an estimate: bills are made from what the service reports.
"""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from typing import TypeVar

from kinfold.messages import (
    Block,
    ImageBlock,
    Message,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from kinfold.models.base import ModelRequest

BYTES_PER_TOKEN = 4
IMAGE_TOKENS = 1_600
"""What a picture costs at most: the service scales it down to about 1.15 megapixels, at 750 pixels a token."""
BLOCK_OVERHEAD = 4
"""Tokens of framing around a block, a message or a tool."""


T = TypeVar("T")


def _measured_once(measure: Callable[[T], int]) -> Callable[[T], int]:
    """`measure`, made once for each object: a history's turns never change, and are measured at every step."""
    known: dict[int, tuple[weakref.ref[T], int]] = {}

    def measured(thing: T) -> int:
        found = known.get(id(thing))
        if found is not None:
            return found[1]
        size = measure(thing)
        key = id(thing)
        known[key] = (weakref.ref(thing, lambda _: known.pop(key)), size)
        return size

    return measured


def text_tokens(text: str) -> int:
    """The estimated tokens of a text; 0 for an empty one."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // BYTES_PER_TOKEN)


def block_tokens(block: Block) -> int:
    """The estimated tokens of one block, framing included."""
    match block:
        case TextBlock():
            return BLOCK_OVERHEAD + text_tokens(block.text)
        case ImageBlock():
            return BLOCK_OVERHEAD + IMAGE_TOKENS
        case ThinkingBlock():
            return BLOCK_OVERHEAD + text_tokens(block.thinking)
        case RedactedThinkingBlock():
            return BLOCK_OVERHEAD + text_tokens(block.data)
        case ToolCall():
            return BLOCK_OVERHEAD + text_tokens(block.name) + _json_tokens(block.input)
        case ToolResult():
            return BLOCK_OVERHEAD + sum(block_tokens(inner) for inner in block.content)
        case _:
            return BLOCK_OVERHEAD + _json_tokens(block.raw)


@_measured_once
def message_tokens(message: Message) -> int:
    """The estimated tokens of one turn."""
    return BLOCK_OVERHEAD + sum(block_tokens(block) for block in message.content)


@_measured_once
def card_tokens(message: Message) -> int:
    """The estimated tokens of what a turn says, asks of tools and answers, without framing, thinking or the date."""
    total = 0
    for block in message.content:
        match block:
            case TextBlock() if not block.text.startswith("Today's date:"):
                total += text_tokens(block.text)
            case ToolCall():
                total += text_tokens(block.name) + sum(text_tokens(str(value)) for value in block.input.values())
            case ToolResult():
                total += sum(text_tokens(inner.text) for inner in block.content if isinstance(inner, TextBlock))
    return total


@_measured_once
def tool_tokens(tool: ToolSpec) -> int:
    """The estimated tokens of one tool's name, words and schema."""
    return BLOCK_OVERHEAD + text_tokens(tool.name) + text_tokens(tool.description) + _json_tokens(tool.input_schema)


def request_tokens(request: ModelRequest) -> int:
    """The estimated tokens of everything that a request sends: tools, system and messages."""
    system = sum(BLOCK_OVERHEAD + text_tokens(text) for text in request.system)
    return system + sum(map(tool_tokens, request.tools)) + sum(map(message_tokens, request.messages))


def _json_tokens(value: object) -> int:
    return text_tokens(json.dumps(value, ensure_ascii=False, default=str))
