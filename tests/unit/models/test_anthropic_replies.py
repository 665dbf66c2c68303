"""Whole replies of the Messages API, through the real SDK and real HTTP."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import anyio
import pytest
from tests.unit.models.asking import Ask, MakeModel, question, reply_in

from kinfold.errors import ConfigError
from kinfold.messages import (
    ImageBlock,
    Message,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResult,
    Usage,
)
from kinfold.models import resolve
from kinfold.models.anthropic import AnthropicModel
from kinfold.models.base import TextChunk, ThinkingChunk
from kinfold.models.pricing import cost_usd
from kinfold.testing.messages_api import Answer, Interruption, MessagesApi

pytestmark = pytest.mark.anyio


async def test_a_reply_streams_its_text_and_ends_in_one_message(model_of: MakeModel, ask: Ask) -> None:
    async with MessagesApi([Answer.text("It is a small house, and it stands.")]) as api:
        events = await ask(model_of(api))
    reply = reply_in(events)
    chunks = [event.text for event in events if isinstance(event, TextChunk)]
    assert len(chunks) > 1
    assert "".join(chunks) == reply.message.text == "It is a small house, and it stands."
    assert (reply.stop_reason, reply.incomplete) == ("end_turn", False)
    assert reply.message_id == "msg_loopback_1"
    assert reply.request_id == "req_loopback_1"
    assert reply.model == "claude-sonnet-5"


async def test_reasoning_comes_back_to_the_service_as_it_came(model_of: MakeModel, ask: Ask) -> None:
    blocks = (
        {"type": "thinking", "thinking": "Let me look at it first.", "signature": "sig=="},
        {"type": "redacted_thinking", "data": "ENCRYPTED"},
        {"type": "tool_use", "id": "toolu_a", "name": "bash", "input": {"command": "ls", "z": 1, "a": [2]}},
    )
    async with MessagesApi([Answer(blocks=blocks), Answer.text("Done.")]) as api:
        model = model_of(api)
        events = await ask(model)
        reply = reply_in(events)
        assert reply.message.content == (
            ThinkingBlock(thinking="Let me look at it first.", signature="sig=="),
            RedactedThinkingBlock(data="ENCRYPTED"),
            ToolCall(id="toolu_a", name="bash", input={"command": "ls", "z": 1, "a": [2]}),
        )
        shown = "".join(event.text for event in events if isinstance(event, ThinkingChunk))
        assert shown == "Let me look at it first."
        answer = Message(role="user", content=(ToolResult(tool_use_id="toolu_a", content=(TextBlock(text="a"),)),))
        await ask(model, question(messages=(Message.user("What is it?"), reply.message, answer)))
    assert api.requests[1]["messages"][1]["content"] == [dict(block) for block in blocks]


async def test_usage_counts_are_cumulative_and_the_last_ones_hold(model_of: MakeModel, ask: Ask) -> None:
    counted = {
        "input_tokens": 10,
        "output_tokens": 77,
        "cache_creation_input_tokens": 20,
        "cache_read_input_tokens": 3_000,
    }
    async with MessagesApi([Answer.text("yes", usage=counted)]) as api:
        reply = reply_in(await ask(model_of(api)))
    assert reply.usage == Usage(input_tokens=10, output_tokens=77, cache_creation_tokens=20, cache_read_tokens=3_000)


async def test_the_rest_of_a_bill_is_kept_and_its_iterations_are_the_bill(model_of: MakeModel, ask: Ask) -> None:
    folded = {"type": "compaction", "input_tokens": 900, "output_tokens": 90, "model": "claude-haiku-4-5"}
    said = {"type": "message", "input_tokens": 10, "output_tokens": 7, "cache_creation_input_tokens": 30}
    told = {
        "input_tokens": 10,
        "output_tokens": 7,
        "service_tier": "priority",
        "server_tool_use": {"web_search_requests": 2, "strange": None},
        "iterations": [folded, {**said, "cache_creation": {"ephemeral_1h_input_tokens": 20}}, "nonsense"],
    }
    async with MessagesApi([Answer.text("yes", usage=told)]) as api:
        usage = reply_in(await ask(model_of(api))).usage
    assert (usage.input_tokens, usage.output_tokens, usage.context_tokens) == (910, 97, 40)
    assert (usage.cache_creation_tokens, usage.cache_creation_hour_tokens) == (30, 20)
    assert usage.detail is not None
    assert (usage.detail.service_tier, usage.detail.server_tool_use) == ("priority", {"web_search_requests": 2})
    assert [(one.kind, one.model) for one in usage.detail.iterations] == [
        ("compaction", "claude-haiku-4-5"), ("message", None),
    ]  # fmt: skip
    assert (usage + usage).detail is None
    sonnet, haiku = 3e-6, 1e-6
    expected = (10 + 10 * 1.25 + 20 * 2.0 + 7 * 5) * sonnet + (900 + 90 * 5) * haiku + 2 * 0.01
    assert cost_usd("claude-sonnet-4-6", usage) == pytest.approx(expected)
    assert cost_usd("claude-of-no-price", usage) is None


@pytest.mark.parametrize("told", ["many", -3, True, None, [], {"ephemeral_1h_input_tokens": "x"}])
async def test_a_bill_that_makes_no_sense_fails_nothing(told: Any, model_of: MakeModel, ask: Ask) -> None:
    strange = dict.fromkeys(("cache_creation", "server_tool_use", "service_tier", "iterations"), told)
    async with MessagesApi([Answer.text("yes", usage={"input_tokens": 10, **strange})]) as api:
        usage = reply_in(await ask(model_of(api))).usage
    assert (usage.input_tokens, usage.cache_creation_hour_tokens) == (10, 0)


async def test_unknown_events_are_ignored_and_unknown_blocks_kept(model_of: MakeModel, ask: Ask) -> None:
    blocks = (
        {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "houses"}},
        {"type": "hologram", "rays": [1, 2], "depth": {"m": 3}},
        {"type": "text", "text": "Seen."},
    )
    strange = ({"type": "content_block_shimmer", "index": 0, "delta": {"x": 1}}, {"type": "weather", "rain": True})
    async with MessagesApi([Answer(blocks=blocks, extra_events=strange), Answer.text("ok")]) as api:
        model = model_of(api)
        reply = reply_in(await ask(model))
        assert reply.message.content[:2] == (OpaqueBlock(raw=blocks[0]), OpaqueBlock(raw=blocks[1]))
        assert reply.message.text == "Seen."
        await ask(model, question(messages=(Message.user("Look."), reply.message, Message.user("Go on."))))
    assert api.requests[1]["messages"][1]["content"] == [dict(block) for block in blocks]


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        ('{"command": "rm -rf bui', "not valid JSON"),
        ('{"command": "ls"} trailing', "not valid JSON"),
        ('["ls"]', "must be a JSON object, not an array"),
        ('"ls"', "must be a JSON object, not a string"),
        ("null", "must be a JSON object, not null"),
        ('{"seconds": NaN}', "not valid JSON"),
    ],
)
async def test_a_wrong_tool_input_is_an_error_and_never_a_smaller_call(
    raw: str, reason: str, model_of: MakeModel, ask: Ask
) -> None:
    block = {"type": "tool_use", "id": "toolu_a", "name": "bash", "raw_input": raw}
    async with MessagesApi([Answer(blocks=(block,))]) as api:
        (call,) = reply_in(await ask(model_of(api))).message.tool_calls
    assert call.input == {}
    assert call.input_error is not None
    assert reason in call.input_error


async def test_an_empty_tool_input_is_an_empty_object(model_of: MakeModel, ask: Ask) -> None:
    async with MessagesApi([Answer.call("complete", {})]) as api:
        (call,) = reply_in(await ask(model_of(api))).message.tool_calls
    assert (call.input, call.input_error) == ({}, None)


@pytest.mark.parametrize("raw", ['{"command": "make cl', "", '{"command": "make"}'])
async def test_a_call_in_which_max_tokens_fell_is_never_runnable(raw: str, model_of: MakeModel, ask: Ask) -> None:
    blocks = (
        {"type": "tool_use", "id": "toolu_a", "name": "bash", "input": {"command": "ls"}},
        {"type": "tool_use", "id": "toolu_b", "name": "bash", "raw_input": raw},
    )
    async with MessagesApi([Answer(blocks=blocks, stop_reason="max_tokens")]) as api:
        reply = reply_in(await ask(model_of(api)))
    whole, cut = reply.message.tool_calls
    assert (whole.input, whole.input_error) == ({"command": "ls"}, None)
    assert cut.input == {}
    assert "max_tokens" in str(cut.input_error)
    assert (reply.stop_reason, reply.incomplete) == ("max_tokens", False)


async def test_an_empty_turn_is_a_reply_without_content(model_of: MakeModel, ask: Ask) -> None:
    async with MessagesApi([Answer()]) as api:
        reply = reply_in(await ask(model_of(api)))
    assert (reply.message.content, reply.stop_reason, reply.incomplete) == ((), "end_turn", False)


@pytest.mark.parametrize("reason", ["refusal", "pause_turn", "a_reason_of_next_year"])
async def test_every_stop_reason_comes_through_as_the_service_said_it(
    reason: str, model_of: MakeModel, ask: Ask
) -> None:
    details = {"type": "refusal", "category": None, "explanation": None}
    async with MessagesApi([Answer.text("I would rather", stop_reason=reason, stop_details=details)]) as api:
        reply = reply_in(await ask(model_of(api)))
    assert (reply.stop_reason, reply.incomplete) == (reason, False)


async def test_text_images_and_effort_reach_the_service(model_of: MakeModel, ask: Ask) -> None:
    picture = ToolResult(tool_use_id="toolu_a", content=(ImageBlock(media_type="image/png", data="iVBORw0KGgo="),))
    call = Message(role="assistant", content=(ToolCall(id="toolu_a", name="bash", input={}),))
    history = (Message.user("Draw."), call, Message(role="user", content=(picture,)))
    async with MessagesApi([Answer.text("A house.")]) as api:
        await ask(model_of(api), question(messages=history, effort="low"))
    (body,) = api.requests
    assert body["output_config"] == {"effort": "low"}
    assert body["messages"][2]["content"][0]["content"][0]["source"] == {
        "type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo=",
    }  # fmt: skip


async def test_a_consumer_that_leaves_early_closes_the_stream(model_of: MakeModel) -> None:
    endless = Answer.text("never the end of it", interruption=Interruption(where="inside_block", how="stall"))
    async with MessagesApi([endless]) as api:
        stream = model_of(api).stream(question())
        async for event in stream:
            assert isinstance(event, TextChunk)
            break
        assert api.open_streams == 1
        await stream.aclose()  # type: ignore[attr-defined]
        with anyio.fail_after(5):
            await api.until_open(0)


async def test_a_cancel_closes_the_stream(model_of: MakeModel, ask: Ask) -> None:
    endless = Answer.text("never the end of it", interruption=Interruption(where="inside_block", how="stall"))
    async with MessagesApi([endless]) as api:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, model_of(api))
            with anyio.fail_after(20):
                await api.until_open(1)
            tasks.cancel_scope.cancel()
        with anyio.fail_after(5):
            await api.until_open(0)


async def test_many_requests_of_one_model_run_at_once(model_of: MakeModel, ask: Ask) -> None:
    replies: list[str] = []

    async def one(model: AnthropicModel, number: int) -> None:
        replies.append(reply_in(await ask(model, question(f"number {number}"))).message.text)

    async with MessagesApi(lambda body: Answer.text(body["messages"][0]["content"][0]["text"])) as api:
        model = model_of(api)
        async with anyio.create_task_group() as tasks:
            for number in range(8):
                tasks.start_soon(one, model, number)
    assert sorted(replies) == [f"number {number}" for number in range(8)]


def test_a_missing_key_is_a_config_error_that_names_both_ways_out() -> None:
    with pytest.raises(ConfigError) as caught:
        resolve("claude-sonnet-5")
    assert "ANTHROPIC_API_KEY" in caught.value.hint
    assert "--model scripted:FILE" in caught.value.hint


async def test_key_and_address_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, ask: Ask) -> None:
    async with MessagesApi([Answer.text("here")], api_key="sk-env") as api:
        monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-env")
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.base_url)
        reply = reply_in(await ask(resolve("anthropic:claude-opus-5")))
    assert reply.message.text == "here"
    assert api.requests[0]["model"] == "claude-opus-5"


def test_an_address_that_is_none_is_a_config_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "localhost:8080")
    with pytest.raises(ConfigError, match="localhost:8080"):
        AnthropicModel("claude-sonnet-5", api_key="k")


def test_the_sdk_is_not_imported_before_a_request_is_made() -> None:
    program = (
        "import sys\n"
        "from kinfold.models import resolve\n"
        "import kinfold.models.anthropic, kinfold.testing.messages_api\n"
        "kinfold.models.anthropic.AnthropicModel('claude-sonnet-5', api_key='k')\n"
        "sys.exit('anthropic' in sys.modules or 'httpx2' in sys.modules)\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": ":".join(sys.path)}, timeout=60)
    assert ran.returncode == 0
