"""The loopback Messages API is as strict as the real one; a lenient double would prove nothing."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest

from kinfold.testing.api_validation import Invalid, validate
from kinfold.testing.messages_api import Answer, MessagesApi

pytestmark = pytest.mark.anyio

USER = {"role": "user", "content": "Go."}
CALL = {"type": "tool_use", "id": "toolu_a", "name": "bash", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "toolu_a", "content": "fine"}
TEXT = {"type": "text", "text": "words"}
TOOL = {"name": "bash", "input_schema": {"type": "object"}}
VALID: dict[str, Any] = {"model": "claude-sonnet-5", "max_tokens": 10, "stream": True, "messages": [USER]}


def said(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "assistant", "content": list(blocks)}


def answered(*blocks: dict[str, Any]) -> dict[str, Any]:
    return {"role": "user", "content": list(blocks)}


@pytest.mark.parametrize(
    "messages",
    [
        [USER, said(TEXT, CALL), answered(RESULT)],
        [USER, said(CALL), answered(RESULT, TEXT)],
        [USER, said(CALL, {**CALL, "id": "toolu_b"}), answered({**RESULT, "tool_use_id": "toolu_b"}, RESULT)],
        [USER, said(CALL), answered(RESULT), answered(TEXT)],
        [USER, said(CALL), answered(RESULT), said(TEXT), USER],
        [USER, said(TEXT, {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {}})],
    ],
)
def test_a_right_conversation_is_taken(messages: list[dict[str, Any]]) -> None:
    validate({**VALID, "messages": messages, "tools": [TOOL]})


WITHOUT_RESULT = "`tool_use` ids were found without `tool_result` blocks immediately after: toolu_a"
UNEXPECTED = "unexpected `tool_use_id` found in `tool_result` blocks: toolu_a"


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([USER, said(CALL), USER], WITHOUT_RESULT),
        ([USER, said(CALL)], WITHOUT_RESULT),
        ([USER, said(CALL), answered(TEXT, RESULT)], WITHOUT_RESULT),
        ([USER, said(CALL), USER, said(TEXT), answered(RESULT)], WITHOUT_RESULT),
        ([USER, said(TEXT), answered(RESULT)], UNEXPECTED),
        ([answered(RESULT)], UNEXPECTED),
        ([USER, said(CALL), answered(RESULT, RESULT)], "each tool_use must have a single result"),
        ([USER, said(CALL, CALL), answered(RESULT)], "`tool_use` ids must be unique"),
        ([USER, said(), USER], "all messages must have non-empty content"),
        ([{"role": "user", "content": ""}], "all messages must have non-empty content"),
        ([answered({"type": "text", "text": ""})], "text content blocks must be non-empty"),
        ([answered({"type": "text", "text": " \n"})], "must contain non-whitespace text"),
        ([said(TEXT), USER], 'first message must use the "user" role'),
        ([USER, said(TEXT)], "does not support assistant message prefill"),
        ([{"role": "system", "content": "x"}], "role: Input should be 'user' or 'assistant'"),
        ([answered(CALL)], "`tool_use` blocks can only be in `assistant` messages"),
        ([USER, said({"type": "thinking", "thinking": "a"}), USER], "thinking.signature: Field required"),
        ([USER, said({**CALL, "input": "{}"}), answered(RESULT)], "input: Input should be a valid dictionary"),
        ([], "at least one message is required"),
        (
            [answered({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%"}})],
            "invalid base64 data",
        ),
    ],
)
def test_a_wrong_conversation_is_refused_in_the_services_words(messages: list[dict[str, Any]], words: str) -> None:
    with pytest.raises(Invalid) as caught:
        validate({**VALID, "messages": messages, "tools": [TOOL]})
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"model": None}, "model: Field required"),
        ({"max_tokens": 0}, "max_tokens: Input should be"),
        ({"temprature": 1}, "temprature: Extra inputs are not permitted"),
        ({"stream": False}, "only streams"),
        ({"tool_choice": {"type": "tool", "name": "complete"}}, "Tool 'complete' not found in provided tools"),
        ({"tool_choice": {"type": "must"}}, "tool_choice: Input tag"),
        ({"tools": [TOOL, TOOL]}, "Tool names must be unique"),
        ({"tools": [{**TOOL, "name": "no spaces"}]}, "should match pattern"),
        ({"tools": [{"name": "bash"}]}, "input_schema: Field required"),
        ({"tools": [{"name": "bash", "input_schema": {}}]}, "input_schema.type"),
        ({"system": [{"type": "text", "text": ""}]}, "system.0"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"system": [{**TEXT, "cache_control": {}}] * 5}, "A maximum of 4 blocks with cache_control"),
        (
            {"messages": [USER, said({"type": "redacted_thinking", "data": "d", "cache_control": {}}), USER]},
            "redacted_thinking.cache_control",
        ),
    ],
)
def test_a_wrong_body_is_refused_in_the_services_words(change: dict[str, Any], words: str) -> None:
    body = {name: value for name, value in {**VALID, **change}.items() if value is not None}
    with pytest.raises(Invalid) as caught:
        validate(body)
    assert words in str(caught.value)


async def post(api: MessagesApi, body: bytes, head: str = "POST /v1/messages HTTP/1.1", **headers: str) -> bytes:
    """One request in plain bytes; the whole response."""
    port = int(api.base_url.rpartition(":")[2])
    fields = {"x-api-key": api.api_key, "anthropic-version": "2023-06-01", "content-length": str(len(body)), **headers}
    lines = [head, *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items())]
    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
        await stream.send("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
        received = b""
        with anyio.fail_after(5):
            async for chunk in stream:
                received += chunk
    return received


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"body": b"{"}, 400, b"not valid JSON"),
        ({"body": b"[]"}, 400, b"not valid JSON"),
        ({"x-api-key": "wrong"}, 401, b"invalid x-api-key"),
        ({"x-api-key": ""}, 401, b"x-api-key header is required"),
        ({"head": "POST /v1/complete HTTP/1.1"}, 404, b"Not Found"),
        ({"head": "GET /v1/messages HTTP/1.1"}, 404, b"Not Found"),
        ({"head": "POST /v1/messages HTTP/1.0"}, 400, b"not a request line"),
        ({"content-length": "many"}, 400, b"content-length"),
        ({"body": json.dumps({**VALID, "model": "claude-none"}).encode()}, 404, b"model: claude-none"),
        ({"body": json.dumps({**VALID, "max_tokens": -1}).encode()}, 400, b"max_tokens"),
    ],
)
async def test_a_wrong_request_gets_the_services_status(change: dict[str, Any], status: int, words: bytes) -> None:
    async with MessagesApi([], models=["claude-sonnet-5"]) as api:
        received = await post(api, change.pop("body", json.dumps(VALID).encode()), **change)
    assert received.startswith(f"HTTP/1.1 {status} ".encode())
    assert words in received


async def test_events_come_in_the_services_order_with_a_ping() -> None:
    async with MessagesApi([Answer.text("abcdefghij")]) as api:
        received = await post(api, json.dumps(VALID).encode())
    kinds = [line.removeprefix(b"event: ").decode() for line in received.splitlines() if line.startswith(b"event: ")]
    assert kinds == [
        "message_start", "ping", "content_block_start", "content_block_delta", "content_block_delta",
        "content_block_stop", "message_delta", "message_stop",
    ]  # fmt: skip


async def test_a_script_that_is_used_up_says_so() -> None:
    async with MessagesApi([]) as api:
        received = await post(api, json.dumps(VALID).encode())
    assert b"no outcome left for request 1" in received


async def test_a_fault_of_the_script_surfaces_where_the_server_is_closed() -> None:
    def broken(body: object) -> Answer:
        raise LookupError("no such scene")

    with pytest.raises(ExceptionGroup) as caught:
        async with MessagesApi(broken) as api:
            await post(api, json.dumps(VALID).encode())
    assert caught.group_contains(LookupError, match="no such scene")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, b"greater than or equal to 1024"),
        ({"thinking": {"type": "enabled", "budget_tokens": 2_000}}, b"`max_tokens` must be greater"),
        ({"thinking": {"type": "adaptive"}}, b"thinking.type.adaptive"),
        ({"model": "claude-opus-4-7", "thinking": {"type": "enabled", "budget_tokens": 5}}, b"thinking.type.enabled"),
        ({"model": "claude-opus-5-5", "thinking": {"type": "disabled"}}, b"thinking.type.disabled"),
        ({"output_config": {"effort": "low"}}, b"effort parameter"),
        (
            {
                "thinking": {"type": "enabled", "budget_tokens": 2_000}, "max_tokens": 9_000, "tools": [TOOL],
                "tool_choice": {"type": "tool", "name": "bash"},
            },
            b"forces tool use",
        ),
    ],
)  # fmt: skip
async def test_settings_that_a_model_does_not_take_are_refused(change: dict[str, Any], words: bytes) -> None:
    async with MessagesApi([]) as api:
        received = await post(api, json.dumps({**VALID, "model": "claude-sonnet-4-5", **change}).encode())
    assert b"HTTP/1.1 400" in received
    assert words in received.replace(b'\\"', b'"')


async def test_reasoning_is_taken_back_only_as_it_was_and_by_the_model_that_made_it() -> None:
    thought = {"type": "thinking", "thinking": "I wonder", "signature": "c2ln"}
    async with MessagesApi([Answer(blocks=(thought, TEXT)), Answer.text("fine")]) as api:
        await post(api, json.dumps(VALID).encode())

        async def again(block: dict[str, Any], model: str = "claude-sonnet-5") -> bytes:
            body = {**VALID, "model": model, "messages": [USER, said(block, TEXT), USER]}
            return await post(api, json.dumps(body).encode())

        assert b"Invalid `signature` in `thinking` block" in await again(thought, "claude-opus-5")
        assert b"cannot be modified" in await again({**thought, "thinking": "I know"})
        assert b"message_stop" in await again(thought)


COUNT = "POST /v1/messages/count_tokens HTTP/1.1"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"stream": True}, b"stream: Extra inputs are not permitted"),
        ({"max_tokens": 5}, b"max_tokens: Extra inputs are not permitted"),
        ({"messages": [USER, said(CALL)]}, b"were found without `tool_result` blocks"),
        ({"model": "gpt-9"}, b"not_found_error"),
        ({}, b'{"input_tokens": 7}'),
    ],
)
async def test_a_count_is_as_strict_as_a_request_and_takes_no_outcome(change: dict[str, Any], words: bytes) -> None:
    body = {"model": "claude-sonnet-5", "messages": [USER], **change}
    async with MessagesApi([], count=7) as api:
        received = await post(api, json.dumps(body).encode(), head=COUNT)
    assert words in received
    assert (api.requests, api.counted) == ([], [body])
