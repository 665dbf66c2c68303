"""The tool calls of one reply: their order, their company, and their answers."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.agent.stage import Stage, calls, complete, tool

from kinfold.errors import ToolError
from kinfold.events import ToolEnded, ToolStarted
from kinfold.messages import Message, ToolCall, ToolResult
from kinfold.models.base import ModelRequest
from kinfold.models.request_body import build_body
from kinfold.models.scripted import ScriptedCall, ScriptedModel, ScriptedReply
from kinfold.testing.api_validation import validate
from kinfold.tools.base import Tool, ToolContext, ToolOutcome

pytestmark = pytest.mark.anyio


def answers(request: ModelRequest) -> list[ToolResult]:
    """The results in the last message."""
    return [block for block in request.messages[-1].content if isinstance(block, ToolResult)]


class Diary:
    """Tools that write down when they start and end."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, key: str, *, parallel: bool) -> Tool:
        async def act(context: ToolContext, arguments: Any) -> ToolOutcome:
            self.lines.append(f"+{arguments.name}")
            await anyio.sleep(0.01)
            self.lines.append(f"-{arguments.name}")
            return ToolOutcome.of(arguments.name)

        return tool(key, act, parallel=parallel)


async def test_parallel_calls_overlap_and_results_stand_in_call_order() -> None:
    stage, diary = Stage(), Diary()
    tools = (diary.note("together", parallel=True), diary.note("alone", parallel=False))
    order = [("together", "a"), ("alone", "b"), ("together", "c"), ("alone", "d"), ("together", "e")]
    await stage.run(calls(*((key, {"name": name}) for key, name in order)), complete(), tools=tools)
    assert [answer.text for answer in answers(stage.requests[1])] == ["a", "b", "c", "d", "e"]
    assert diary.lines[:2] == ["+a", "+b"]
    assert diary.lines.index("-b") < diary.lines.index("+c") < diary.lines.index("-c")
    assert diary.lines.index("-b") < diary.lines.index("+d")
    assert diary.lines.index("+c") < diary.lines.index("-d")
    assert diary.lines.index("-d") < diary.lines.index("+e")


async def test_a_parallel_call_sees_what_an_earlier_call_of_its_step_wrote() -> None:
    stage = Stage()
    step = calls(("write_file", {"path": "a.txt", "content": "fresh"}), ("read_file", {"path": "a.txt"}))
    await stage.run(step, complete())
    assert "fresh" in answers(stage.requests[1])[1].text


async def test_complete_runs_last_and_alone_and_looks_at_its_siblings() -> None:
    async def fail(context: ToolContext, arguments: Any) -> ToolOutcome:
        raise ToolError("no")

    stage = Stage()
    step = calls(("complete", {"summary": "done", "paths": []}), ("fail", {}))
    result = await stage.run(step, complete("really"), tools=(tool("fail", fail),))
    first, second = answers(stage.requests[1])
    assert (first.is_error, second.is_error) == (True, True)
    assert "failed" in first.text
    assert (result.ended_by, result.summary) == ("complete", "really")


async def test_of_two_completions_the_last_counts() -> None:
    step = calls(("complete", {"summary": "first"}), ("complete", {"summary": "second"}))
    result = await Stage().run(step)
    assert (result.summary, result.steps) == ("second", 1)
    stage = Stage()
    step = calls(("complete", {"summary": "first"}), ("complete", {"summary": "second", "paths": ["nowhere"]}))
    await stage.run(step, complete())
    first, second = stage.requests[1].messages[-1].content
    assert isinstance(first, ToolResult)
    assert isinstance(second, ToolResult)
    assert (first.is_error, second.is_error) == (True, True)
    assert "only the last one counts" in first.text
    assert "Not completed yet" in second.text


async def test_every_call_is_announced_once_and_ended_once() -> None:
    stage, diary = Stage(), Diary()
    step = calls(("together", {"name": "a"}), ("nonsense", {}), ("together", {"name": "b"}))
    await stage.run(step, complete(), tools=(diary.note("together", parallel=True),))
    assert len(stage.of(ToolStarted)) == 4
    assert sorted(e.call_id for e in stage.of(ToolStarted)) == sorted(e.call_id for e in stage.of(ToolEnded))
    assert all(event.tool_call_id == event.call_id for event in stage.of(ToolEnded))


async def test_an_unlisted_tool_is_absent_from_the_schema_and_refused_at_dispatch() -> None:
    stage = Stage()
    await stage.run(calls(("bash", {"command": "true"})), complete())
    assert {spec.name for spec in stage.requests[0].tools} == {"complete", "read_file", "write_file"}
    (answer,) = answers(stage.requests[1])
    assert answer.is_error
    assert "write_file" in answer.text


# --- whatever the model does, the history stays whole ---------------------------------------------------------------

KEYS = ("quick", "slow", "fails", "unknown", "write_file", "complete")
call = st.builds(
    ScriptedCall,
    tool=st.sampled_from(KEYS),
    input=st.sampled_from([{}, {"name": "x"}, {"path": "a", "content": "b"}, {"path": "../x", "content": ""}]),
    raw=st.sampled_from([None, None, None, "{", '{"name": 1', "[]"]),
)
reply = st.builds(
    ScriptedReply,
    text=st.sampled_from(["", " ", "words"]),
    calls=st.lists(call, max_size=4).map(tuple),
    stop_reason=st.sampled_from([None, None, None, "max_tokens", "pause_turn", "end_turn", "stop_sequence"]),
    incomplete=st.booleans(),
)


def check_history(messages: tuple[Message, ...]) -> None:
    """Each call answered once, in order, in the next message, results first; no call or answer without the other."""
    for position, message in enumerate(messages):
        asked = [block.id for block in message.content if isinstance(block, ToolCall)]
        given = [block.tool_use_id for block in message.content if isinstance(block, ToolResult)]
        kinds = [isinstance(block, ToolResult) for block in message.content]
        assert kinds == sorted(kinds, reverse=True), "results come first"
        assert message.content, "no message is empty"
        if message.role == "assistant":
            assert given == []
            after = messages[position + 1] if position + 1 < len(messages) else None
            answered = [b.tool_use_id for b in after.content if isinstance(b, ToolResult)] if after else []
            assert answered == asked
        else:
            before = messages[position - 1] if position else None
            assert given == ([call.id for call in before.tool_calls] if before else [])


@given(script=st.lists(reply, min_size=1, max_size=6), timeout=st.sampled_from([None, None, 0.004]))
@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_each_tool_use_is_answered_exactly_once_whatever_the_model_does(
    script: list[ScriptedReply], timeout: float | None
) -> None:
    async def quick(context: ToolContext, arguments: Any) -> ToolOutcome:
        return ToolOutcome.of("quick")

    async def slow(context: ToolContext, arguments: Any) -> ToolOutcome:
        await anyio.sleep(0.003)
        return ToolOutcome.of("slow")

    async def fails(context: ToolContext, arguments: Any) -> ToolOutcome:
        raise ToolError("no")

    seen: list[ModelRequest] = []
    queue = list(script)

    def answer(request: ModelRequest) -> ScriptedReply:
        seen.append(request)
        return queue.pop(0) if queue and request.tool_choice is None else ScriptedReply(text="end")

    async def play() -> None:
        tools = (tool("quick", quick, parallel=True), tool("slow", slow, parallel=True), tool("fails", fails))
        stage = Stage()
        result = await stage.run(model=ScriptedModel(answer), tools=tools, max_steps=5, timeout=timeout)
        assert stage.only_ending().ended_by == result.ended_by
        assert result.ended_by != "internal_error", result.error
        assert result.steps <= 6

    anyio.run(play)
    for request in seen:
        check_history(request.messages)
        if (
            request.messages[-1].role == "user"
        ):  # else a paused turn goes back: the API takes that of its own tools only
            validate({**build_body(request, "claude-test"), "stream": True})
