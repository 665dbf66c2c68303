"""What the Messages API refuses, with the words that it uses, as far as a client can get it wrong."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_KNOWN = frozenset({
    "model", "max_tokens", "messages", "stream", "system", "tools", "tool_choice", "output_config", "thinking",
    "metadata", "stop_sequences", "cache_control", "service_tier",
})  # fmt: skip
_TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,128}")
_SERVER_TOOL = re.compile(r"server_tool_use|\w+_tool_result")
_EFFORTS = ("low", "medium", "high", "xhigh", "max")
_UNCACHEABLE = ("thinking", "redacted_thinking")
_IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_REQUIRED_FIELDS = {
    "text": ("text",), "image": ("source",), "thinking": ("thinking", "signature"), "redacted_thinking": ("data",),
    "tool_use": ("id", "name", "input"), "tool_result": ("tool_use_id",),
}  # fmt: skip
_ROLE_OF = {"tool_use": "assistant", "thinking": "assistant", "redacted_thinking": "assistant", "tool_result": "user"}
MOST_BREAKPOINTS = 4

Body = Mapping[str, Any]


class Invalid(Exception):
    """Raised with the message of the 400 that the body earns."""


def validate(body: object, *, refuses_forced_tools: bool = False) -> None:
    """Raise `Invalid` for the first thing in a body that the API would refuse."""
    if not isinstance(body, dict):
        raise Invalid("The request body is not valid JSON: it must be an object")
    _fields(body)
    _tools(body, refuses_forced_tools)
    messages = _messages(body)
    _breakpoints(body, messages)
    _pairs(messages)
    # A turn of server tools that the service paused is sent back as it is, and goes on from there.
    if messages[-1]["role"] == "assistant" and not _SERVER_TOOL.fullmatch(messages[-1]["content"][-1]["type"]):
        raise Invalid(
            "This model does not support assistant message prefill. The conversation must end with a user message."
        )


def _fields(body: Body) -> None:
    for name in ("model", "max_tokens", "messages"):
        if name not in body:
            raise Invalid(f"{name}: Field required")
    for name in body:
        if name not in _KNOWN:
            raise Invalid(f"{name}: Extra inputs are not permitted")
    if not isinstance(body["max_tokens"], int) or body["max_tokens"] < 1:
        raise Invalid("max_tokens: Input should be greater than or equal to 1")
    if body.get("stream") is not True:
        raise Invalid("stream: this loopback server only streams")
    effort = body.get("output_config", {}).get("effort", "high")
    if effort not in _EFFORTS:
        raise Invalid(f"output_config.effort: Input should be {', '.join(map(repr, _EFFORTS))}")


def _tools(body: Body, refuses_forced_tools: bool) -> None:
    names = [_tool_name(index, tool) for index, tool in enumerate(body.get("tools", []))]
    if len(set(names)) != len(names):
        raise Invalid("tools: Tool names must be unique.")
    choice = body.get("tool_choice", {"type": "auto"})
    if choice.get("type") not in ("auto", "any", "tool", "none"):
        raise Invalid("tool_choice: Input tag does not match any of the expected tags: 'auto', 'any', 'tool', 'none'")
    if choice["type"] == "tool" and choice.get("name") not in names:
        raise Invalid(f"Tool '{choice.get('name')}' not found in provided tools")
    if choice["type"] in ("tool", "any") and refuses_forced_tools:
        raise Invalid("tool_choice: forced tool use is not supported by this model")


def _tool_name(index: int, tool: Body) -> str:
    for name in ("name", "input_schema"):
        if name not in tool:
            raise Invalid(f"tools.{index}.custom.{name}: Field required")
    if not _TOOL_NAME.fullmatch(tool["name"]):
        raise Invalid(f"tools.{index}.custom.name: String should match pattern '^[a-zA-Z0-9_-]{{1,128}}$'")
    if tool["input_schema"].get("type") != "object":
        raise Invalid(f"tools.{index}.custom.input_schema.type: Input should be 'object'")
    return str(tool["name"])


def _messages(body: Body) -> list[dict[str, Any]]:
    """The turns with content as blocks, neighbours of one role combined, as the API reads them."""
    if not isinstance(body["messages"], list) or not body["messages"]:
        raise Invalid("messages: at least one message is required")
    turns: list[dict[str, Any]] = []
    for index, message in enumerate(body["messages"]):
        where = f"messages.{index}"
        if message.get("role") not in ("user", "assistant"):
            raise Invalid(f"{where}.role: Input should be 'user' or 'assistant'")
        content = message.get("content")
        blocks = [{"type": "text", "text": content}] if content and isinstance(content, str) else content
        if not blocks:
            raise Invalid(
                f"{where}: all messages must have non-empty content except for the optional final assistant message"
            )
        for place, block in enumerate(blocks):
            _block(f"{where}.content.{place}", block, message["role"])
        if turns and turns[-1]["role"] == message["role"]:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": message["role"], "content": list(blocks)})
    if turns[0]["role"] != "user":
        raise Invalid('messages: first message must use the "user" role')
    return turns


def _block(where: str, block: Any, role: str) -> None:
    match _kind(where, block, role):
        case "text":
            _text(block["text"])
        case "image":
            _image(where, block["source"])
        case "tool_use":
            if not isinstance(block["input"], dict):
                raise Invalid(f"{where}.tool_use.input: Input should be a valid dictionary")
        case "tool_result":
            _result(where, block.get("content", []), role)


def _kind(where: str, block: Any, role: str) -> str:
    """The block's type, once its fields are there and its role may hold it."""
    kind = block.get("type") if isinstance(block, dict) else None
    if not isinstance(kind, str):
        raise Invalid(f"{where}.type: Field required")
    for field in _REQUIRED_FIELDS.get(kind, ()):
        if field not in block:
            raise Invalid(f"{where}.{kind}.{field}: Field required")
    if _ROLE_OF.get(kind, role) != role:
        raise Invalid(f"{where}: `{kind}` blocks can only be in `{_ROLE_OF[kind]}` messages")
    return kind


def _result(where: str, content: object, role: str) -> None:
    for place, inner in enumerate(content if isinstance(content, list) else []):
        _block(f"{where}.tool_result.content.{place}", inner, role)


def _text(text: object) -> None:
    if not isinstance(text, str) or not text:
        raise Invalid("messages: text content blocks must be non-empty")
    if not text.strip():
        raise Invalid("messages: text content blocks must contain non-whitespace text")


def _image(where: str, source: Body) -> None:
    if source.get("type") != "base64" or source.get("media_type") not in _IMAGES:
        raise Invalid(f"{where}.image.source.media_type: Input should be {', '.join(map(repr, _IMAGES))}")
    try:
        base64.b64decode(source.get("data", ""), validate=True)
    except (binascii.Error, ValueError) as error:
        raise Invalid(f"{where}.image.source.base64: invalid base64 data") from error


def _breakpoints(body: Body, messages: Sequence[Body]) -> None:
    blocks = [*_system(body), *body.get("tools", []), *(block for turn in messages for block in turn["content"])]
    marked = [block for block in blocks if "cache_control" in block]
    for block in marked:
        if block.get("type") in _UNCACHEABLE:
            raise Invalid(f"{block['type']}.cache_control: Extra inputs are not permitted")
    if len(marked) > MOST_BREAKPOINTS:
        raise Invalid(
            f"A maximum of {MOST_BREAKPOINTS} blocks with cache_control may be provided. Found {len(marked)}."
        )


def _system(body: Body) -> Iterator[Body]:
    system = body.get("system", [])
    for index, block in enumerate([] if isinstance(system, str) else system):
        if block.get("type") != "text" or not str(block.get("text", "")).strip():
            raise Invalid(f"system.{index}: text content blocks must be non-empty")
        yield block


def _pairs(messages: Sequence[Body]) -> None:
    """Every call is answered once, at the head of the next message; nothing else is answered."""
    asked: list[str] = []
    for index, message in enumerate([*messages, {"role": "end", "content": []}]):
        if asked:
            _answered(index - 1, asked, message)
        for place, block in enumerate(message["content"]):
            if block["type"] == "tool_result" and block["tool_use_id"] not in asked:
                raise Invalid(
                    f"messages.{index}.content.{place}: unexpected `tool_use_id` found in `tool_result` blocks: "
                    f"{block['tool_use_id']}. Each `tool_result` block must have a corresponding `tool_use` block in "
                    "the previous message."
                )
        asked = [block["id"] for block in message["content"] if block["type"] == "tool_use"]
        if len(set(asked)) != len(asked):
            raise Invalid(f"messages.{index}: `tool_use` ids must be unique")


def _answered(index: int, asked: Sequence[str], following: Body) -> None:
    answers: list[str] = []
    for block in following["content"]:
        if block["type"] != "tool_result":
            break  # results behind other content do not count as immediate
        answers.append(block["tool_use_id"])
    if missing := [call for call in asked if call not in answers]:
        raise Invalid(
            f"messages.{index}: `tool_use` ids were found without `tool_result` blocks immediately after: "
            f"{', '.join(missing)}. Each `tool_use` block must have a corresponding `tool_result` block in the next "
            "message."
        )
    if twice := next((call for call in answers if answers.count(call) > 1), None):
        raise Invalid(
            f"messages.{index + 1}: each tool_use must have a single result. "
            f"Found multiple `tool_result` blocks with id: {twice}"
        )
