"""Refusals of a conversation that have a cure: it is applied once, and the run goes on; over real HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.agent.stage import Stage, tool
from tests.unit.agent.test_calls import check_history

from kinfold.agent.history import paired, without_thinking
from kinfold.agent.loop import LoopConfig, LoopInput, RunResult, run_agent_loop
from kinfold.events import Compacted, Warned
from kinfold.messages import Message, TextBlock, ThinkingBlock, ToolCall, ToolResult
from kinfold.models.anthropic import AnthropicModel
from kinfold.testing.messages_api import Answer, MessagesApi, Outcome, Refusal
from kinfold.tools.base import ToolContext, ToolOutcome

pytestmark = pytest.mark.anyio
BRIEF = Message.user("do it")
DONE = Answer.call("complete", {"summary": "made", "paths": []}, id="toolu_9")
THOUGHT = {"type": "thinking", "thinking": "I wonder", "signature": "sig=="}
MODIFIED = Refusal(
    status=400,
    type="invalid_request_error",
    message="messages.1.content.0: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
    "modified. These blocks must remain as they were in the original response.",
)


async def flood(context: ToolContext, arguments: Any) -> ToolOutcome:
    return ToolOutcome.of("x" * 12_000)


FLOOD = tool("flood", flood)


def said(*blocks: Any) -> Message:
    return Message(role="assistant", content=blocks)


def answers(*ids: str) -> Message:
    return Message(role="user", content=tuple(ToolResult(tool_use_id=id) for id in ids))


def model_of(api: MessagesApi, name: str = "claude-sonnet-5") -> AnthropicModel:
    return AnthropicModel(name, api_key=api.api_key, base_url=api.base_url)


async def play(api: MessagesApi, stage: Stage, *messages: Message, **more: Any) -> RunResult:
    settings = {"model": model_of(api), "max_steps": 9, "tool_keys": ("read_file", "flood"), **more}
    config = LoopConfig(extra_tools=(FLOOD,), **settings)
    return await run_agent_loop(stage.context(), config, LoopInput(kind="main", messages=(BRIEF, *messages)))


def warned(stage: Stage) -> list[str]:
    return [event.code for event in stage.of(Warned)]


async def test_a_conversation_with_an_unanswered_call_is_repaired_once_and_taken() -> None:
    broken = (said(ToolCall(id="toolu_a", name="read_file"), ToolCall(id="toolu_b", name="read_file")),)
    stage = Stage()
    async with MessagesApi([DONE]) as api:
        result = await play(api, stage, *broken, answers("toolu_b"), answers("toolu_c"), Message.user("go on"))
        first, second = api.requests
    assert (result.ended_by, warned(stage)) == ("complete", ["history_repaired"])
    assert first["messages"][1] == second["messages"][1]
    repaired = second["messages"][2]["content"]
    assert [block.get("tool_use_id") for block in repaired] == ["toolu_a", "toolu_b", None]
    assert [block.get("is_error", False) for block in repaired] == [True, False, False]


@pytest.mark.parametrize("refused", ["by its signature", "as modified"])
async def test_refused_reasoning_is_left_out_once_and_the_run_goes_on(refused: str) -> None:
    thought = ThinkingBlock(thinking="mine", signature="of another model")
    earlier = (said(thought, TextBlock(text="so")), Message.user("go on")) if refused == "by its signature" else ()
    script: list[Outcome] = [DONE] if earlier else [Answer(blocks=(THOUGHT, {"type": "text", "text": "so"}))]
    if not earlier:
        call = {"type": "tool_use", "id": "toolu_1", "name": "flood", "input": {}}
        script = [Answer(blocks=(THOUGHT, call)), MODIFIED, DONE]
    stage = Stage()
    async with MessagesApi(script) as api:
        result = await play(api, stage, *earlier)
        before, after = api.requests[-2:]
    assert (result.ended_by, warned(stage)) == ("complete", ["history_repaired"])
    assert "thinking" in str(before["messages"])
    assert "thinking" not in str(after["messages"])


async def test_without_its_reasoning_a_conversation_goes_on_without_a_budget_for_more() -> None:
    call = {"type": "tool_use", "id": "toolu_1", "name": "flood", "input": {}}
    stage = Stage()
    async with MessagesApi([Answer(blocks=(THOUGHT, call)), MODIFIED, DONE]) as api:
        result = await play(api, stage, model=model_of(api, "claude-sonnet-4-5"), thinking=2_000)
        budgets = ["thinking" in body for body in api.requests]
    assert (result.ended_by, warned(stage)) == ("complete", ["history_repaired"])
    assert budgets == [True, True, False]


@pytest.mark.parametrize("message", [MODIFIED.message, "`tool_use` ids were found without `tool_result` blocks"])
async def test_a_refusal_that_its_cure_does_not_cure_ends_the_run(message: str) -> None:
    refusal = Refusal(status=400, type="invalid_request_error", message=message)
    call = {"type": "tool_use", "id": "toolu_1", "name": "flood", "input": {}}
    stage = Stage()
    async with MessagesApi([Answer(blocks=(THOUGHT, call)), refusal, refusal]) as api:
        result = await play(api, stage)
        asked = len(api.requests)
    assert result.ended_by == "model_error"
    assert asked == (3 if message == MODIFIED.message else 2)  # nothing was found to repair: the same is not sent twice


async def test_an_empty_account_is_terminal() -> None:
    low = Refusal(
        status=400,
        type="invalid_request_error",
        message="Your credit balance is too low to access the API. Please go to Plans & Billing.",
    )
    async with MessagesApi([low]) as api:
        result = await play(api, Stage())
        assert len(api.requests) == 1
    assert result.ended_by == "model_error"
    assert result.error is not None
    assert "credit" in result.error.hint


@pytest.mark.parametrize("compactor", ["claude-haiku-4-5", "claude-sonnet-5"])
async def test_another_model_summarises_without_the_reasoning_of_the_first(
    compactor: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinfold.agent.compaction.window_of", lambda model: 5_000)
    call = {"type": "tool_use", "name": "flood", "input": {}}
    secret = {"type": "redacted_thinking", "data": "cmVk"}
    script = [
        Answer(blocks=(THOUGHT, secret, {**call, "id": "toolu_1"})),
        Answer.text("the gist"),
        Answer(blocks=(THOUGHT, {**call, "id": "toolu_2"})),
        Answer.text("the gist"),
        DONE,
    ]
    stage = Stage()
    async with MessagesApi(script) as api:
        result = await play(api, stage, compactor=model_of(api, compactor))
        summaries = [body for body in api.requests if "will be cut here" in str(body["messages"][-1])]
        last = api.requests[-1]
    assert (result.ended_by, warned(stage)) == ("complete", [])
    assert len(summaries) >= 1
    assert stage.of(Compacted)
    assert all(body["model"] == compactor for body in summaries)
    assert all(("thinking" in str(body["messages"])) == (compactor == "claude-sonnet-5") for body in summaries)
    assert "thinking" in str(last["messages"])  # the run's own conversation keeps it


@pytest.mark.parametrize("model", ["claude-opus-5", "claude-opus-5-5"])
@pytest.mark.parametrize(("window", "steps"), [(20_000, 5), (12_000, 3)], ids=["cleared", "summarised"])
async def test_reasoning_that_is_tied_to_its_conversation_does_not_outlive_it(
    model: str, window: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinfold.agent.compaction.window_of", lambda model: window)
    call = {"type": "tool_use", "name": "flood", "input": {}}
    script = [Answer(blocks=(THOUGHT, {**call, "id": f"toolu_{n}"})) for n in range(steps)]
    gist = [Answer.text("the gist")] if window == 12_000 else []
    stage = Stage()
    async with MessagesApi([*script, *gist, DONE]) as api:
        result = await play(api, stage, model=model_of(api, model))
        thoughtful = ["thinking" in str(body["messages"]) for body in api.requests]
    assert (result.ended_by, warned(stage)) == ("complete", [])  # nothing was refused
    assert len(stage.of(Compacted)) == 1
    assert thoughtful[1:steps] == [True] * (steps - 1)
    assert set(thoughtful[steps:]) == {model == "claude-opus-5"}


def test_a_whole_conversation_is_left_as_it_is() -> None:
    whole = (BRIEF, said(TextBlock(text="a"), ToolCall(id="a", name="x")), answers("a"), said(TextBlock(text="b")))
    assert paired(whole) == whole
    assert without_thinking(whole) == whole


def test_a_conversation_is_paired_whatever_is_wrong_with_it() -> None:
    calls = said(ToolCall(id="a", name="x"), ToolCall(id="b", name="x"))
    for broken in (
        (BRIEF, calls),
        (BRIEF, calls, said(TextBlock(text="on")), BRIEF),
        (BRIEF, answers("z"), calls, answers("b", "a", "a", "z"), answers("a")),
        (BRIEF, calls, Message(role="user", content=(TextBlock(text="t"), *answers("b").content))),
    ):
        check_history(paired(broken))
