"""A conversation that fills its model's window is made smaller, and stays one that the service takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from tests.unit.agent.stage import Stage, calls, complete, tool

from kinfold.agent import compaction
from kinfold.errors import ModelError
from kinfold.events import Compacted, ToolEnded, Warned
from kinfold.messages import ToolResult
from kinfold.models.anthropic import AnthropicModel
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.models.windows import window_of
from kinfold.testing.messages_api import Answer, MessagesApi, Refusal
from kinfold.tools.base import Tool, ToolContext, ToolOutcome

pytestmark = pytest.mark.anyio
TOO_LONG = Refusal(status=400, type="invalid_request_error", message="prompt is too long: 9 tokens > 8 maximum")


async def flood(context: ToolContext, arguments: Any) -> ToolOutcome:
    return ToolOutcome.of("x" * 12_000)


FLOOD = tool("flood", flood)


@pytest.fixture
def small_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "window_of", lambda model: 20_000)


def summaries(stage: Stage) -> list[ModelRequest]:
    return [request for request in stage.requests if request.purpose == "compaction"]


@pytest.mark.usefixtures("small_window")
async def test_old_results_go_first_and_no_call_loses_its_answer() -> None:
    stage = Stage()
    result = await stage.run(*[calls(("flood", {}))] * 5, complete(), tools=(FLOOD,))
    (event,) = stage.of(Compacted)
    assert event.tokens_after < 0.8 * 20_000 <= event.tokens_before
    assert (result.ended_by, summaries(stage)) == ("complete", [])
    answers = [b for m in stage.requests[-1].messages for b in m.content if isinstance(b, ToolResult)]
    assert len(answers) == 5
    sizes = [len(block.text) > 1_000 for answer in answers for block in answer.content if block.type == "text"]
    assert sizes == [False, False, False, True, True]


@pytest.mark.usefixtures("small_window")
async def test_a_summary_keeps_the_brief_what_tools_keep_and_the_files_and_asks_with_the_same_prefix() -> None:
    stage = Stage()
    keeper = Tool(
        key="keeper", words="keeps", arguments=FLOOD.arguments, call=flood, compact=lambda outcome: "kept: report.md"
    )
    long = calls(("flood", {}), text="y" * 45_000)
    first = calls(("keeper", {}), ("write_file", {"path": "a.txt", "content": "A"}))
    result = await stage.run(first, long, "the gist \ud800", complete(), tools=(FLOOD, keeper))
    (asked,) = summaries(stage)
    before, after = stage.requests[1], stage.requests[-1]
    assert (asked.tools, asked.system) == (before.tools, before.system)
    assert asked.messages[0] == after.messages[0] == before.messages[0]
    told = after.messages[1].text
    assert all(part in told for part in ("the gist ?", "kept: report.md", "/workspace/a.txt"))
    assert [message.role for message in after.messages[2:]] == ["assistant", "user"]
    assert (result.ended_by, result.steps) == ("complete", 3)


@pytest.mark.usefixtures("small_window")
async def test_a_failed_compaction_is_a_warning_and_the_run_goes_on() -> None:
    stage = Stage()

    def reply(request: ModelRequest) -> ScriptedReply:
        stage.requests.append(request)
        if request.purpose == "compaction":
            raise ModelError("no summary today", kind="server")
        turns = sum(message.role == "assistant" for message in request.messages)
        return calls(("flood", {}), text="y" * 45_000) if turns < 2 else complete()

    result = await stage.run(model=ScriptedModel(reply), tools=(FLOOD,))
    assert (result.ended_by, result.status) == ("complete", "completed")
    assert "no summary today" in result.warnings[0]


async def test_an_overflow_that_the_service_reports_compacts_once_and_goes_on_over_real_http() -> None:
    bodies: list[Mapping[str, Any]] = []
    script: list[Answer | Refusal] = [
        Answer.call("flood", {}, id="toolu_1"),
        Answer.call("flood", {}, id="toolu_2"),
        TOO_LONG,
        Answer.text("the gist"),
        Answer.call("complete", {"summary": "made", "paths": []}, id="toolu_3"),
    ]
    stage = Stage()
    async with MessagesApi(script) as api:
        model = AnthropicModel("claude-sonnet-5", api_key=api.api_key, base_url=api.base_url)
        result = await stage.run(model=model, tools=(FLOOD,))
        bodies += api.requests
    assert (result.ended_by, result.steps, len(stage.of(Compacted))) == ("complete", 3, 1)
    assert "the gist" in bodies[-1]["messages"][0]["content"][-1]["text"]


async def test_an_overflow_that_compaction_does_not_cure_is_the_context_ending() -> None:
    script: list[Answer | Refusal] = [*(Answer.call("flood", {}, id=f"toolu_{n}") for n in (1, 2)), *[TOO_LONG] * 3]
    stage = Stage()
    async with MessagesApi(script) as api:
        model = AnthropicModel("claude-sonnet-5", api_key=api.api_key, base_url=api.base_url)
        result = await stage.run(model=model, tools=(FLOOD,))
        assert len(api.requests) == len(script)
    assert (result.ended_by, len(stage.of(Compacted))) == ("context", 1)


OUTGROWN = "model_context_window_exceeded"


@pytest.mark.parametrize("holds", ["text", "call", "nothing"])
async def test_a_reply_that_the_windows_end_cut_compacts_once_and_goes_on_over_real_http(holds: str) -> None:
    text = {"type": "text", "text": "so far "}
    call = {"type": "tool_use", "id": "toolu_3", "name": "flood", "raw_input": '{"name": "ha'}
    blocks = {"text": (text,), "call": (text, call), "nothing": ()}[holds]
    script = [
        *(Answer.call("flood", {}, id=f"toolu_{n}") for n in (1, 2)),
        Answer(blocks=blocks, stop_reason=OUTGROWN),
        Answer.text("the gist"),
        Answer.text("and on"),
    ]
    stage = Stage()
    async with MessagesApi(script) as api:
        model = AnthropicModel("claude-sonnet-5", api_key=api.api_key, base_url=api.base_url)
        result = await stage.run(model=model, tools=(FLOOD,))
        last = api.requests[-1]["messages"]
    assert (result.ended_by, result.steps, len(stage.of(Compacted))) == ("text", 4, 1)
    assert result.summary == ("so far and on" if holds == "text" else "and on")
    assert "the gist" in last[0]["content"][-1]["text"]
    assert [event.is_error for event in stage.of(ToolEnded)] == [False, False, *([True] if holds == "call" else [])]


async def test_a_window_that_is_full_again_at_once_is_the_context_ending() -> None:
    full = Answer.text("no room ", stop_reason=OUTGROWN)
    script = [*(Answer.call("flood", {}, id=f"toolu_{n}") for n in (1, 2)), full, Answer.text("the gist"), full]
    stage = Stage()
    async with MessagesApi(script) as api:
        model = AnthropicModel("claude-sonnet-5", api_key=api.api_key, base_url=api.base_url)
        result = await stage.run(model=model, tools=(FLOOD,))
        assert len(api.requests) == len(script)
    assert (result.ended_by, len(stage.of(Compacted))) == ("context", 1)


async def test_a_brief_that_alone_outgrows_the_window_is_not_summarised() -> None:
    stage = Stage()
    async with MessagesApi([TOO_LONG]) as api:
        model = AnthropicModel("claude-sonnet-5", api_key=api.api_key, base_url=api.base_url)
        result = await stage.run(model=model, tools=(FLOOD,))
        assert len(api.requests) == 1
    assert (result.ended_by, result.warnings) == ("context", ())


async def test_a_model_of_unknown_window_is_taken_to_be_small_and_that_is_said_once() -> None:
    stage = Stage()
    model = stage.model(*[calls(("flood", {}))] * 2, complete())
    model.name = "somebodys-own"
    await stage.run(model=model, tools=(FLOOD,))
    assert [event.code for event in stage.of(Warned)] == ["window_unknown"]
    assert (window_of("claude-opus-5"), window_of("claude-haiku-4-5")) == (1_000_000, 200_000)
    assert window_of("somebodys-own") is None
