"""A main agent that asks: its clocks stand still meanwhile, and no subagent ever can."""

from __future__ import annotations

import time

import anyio
import pytest
from tests.unit.agent.stage import Stage, calls, complete, hang, tool

from kinfold.agent.loop import run_agent_loop
from kinfold.agent.run import LoopConfig, LoopInput, RunResult
from kinfold.events import ToolEnded
from kinfold.messages import Message
from kinfold.models.scripted import ScriptedReply
from kinfold.tools.people import Answer, Asked, People

pytestmark = pytest.mark.anyio


async def slowly(asked: Asked) -> Answer:
    await anyio.sleep(0.4)
    return Answer(text="yes")


async def asking(stage: Stage, *replies: ScriptedReply | str, people: People, **config: object) -> RunResult:
    settings = {"max_steps": 5, "tool_keys": ("confirm", "wait"), "extra_tools": (tool("wait", hang),), **config}
    asked = LoopInput(kind="main", messages=(Message.user("do it"),), people=people)
    loop_config = LoopConfig(model=stage.model(*replies), **settings)  # type: ignore[arg-type]
    return await run_agent_loop(stage.context(), loop_config, asked)


async def test_waiting_for_a_person_takes_nothing_of_the_runs_time_or_patience() -> None:
    stage = Stage()
    replies = (calls(("confirm", {"action": "Publish"})), complete("published"))
    clocks = {"timeout": 0.2, "chunk_timeout": 0.2, "tool_patience": 0.2}
    result = await asking(stage, *replies, people=People(answer=slowly), **clocks)
    assert (result.ended_by, result.summary) == ("complete", "published")


async def test_after_the_answer_the_clocks_run_on_from_where_they_stood() -> None:
    stage = Stage()
    replies = (calls(("confirm", {"action": "Publish"})), calls(("wait", {})), complete())
    started = time.monotonic()
    result = await asking(stage, *replies, people=People(answer=slowly), timeout=0.3)
    assert result.ended_by == "timeout"
    assert time.monotonic() - started >= 0.6


async def test_a_cancelled_task_takes_its_question_back() -> None:
    stage = Stage()
    taken_back: list[str] = []

    async def never(asked: Asked) -> None:
        context.lifeline.stop("cancelled")
        try:
            await anyio.sleep_forever()
        finally:
            taken_back.append(asked.text)

    context = stage.context()
    config = LoopConfig(model=stage.model(calls(("confirm", {"action": "x"}))), max_steps=3, tool_keys=("confirm",))
    asked = LoopInput(kind="main", messages=(Message.user("do it"),), people=People(answer=never))
    result = await run_agent_loop(context, config, asked)
    assert (result.ended_by, taken_back) == ("cancelled", ["x"])


@pytest.mark.parametrize("keys", [("confirm",), ("ask_user_question",), ("task",)])
async def test_a_subagents_run_that_was_given_a_way_to_ask_or_delegate_never_begins(keys: tuple[str, ...]) -> None:
    stage = Stage()
    config = LoopConfig(model=stage.model(), max_steps=3, tool_keys=keys)
    with pytest.raises(ValueError, match="a subagent never has"):
        await run_agent_loop(stage.context(), config, LoopInput(kind="subagent", messages=(Message.user("x"),)))
    people = LoopInput(kind="subagent", messages=(Message.user("x"),), people=People(answer=slowly))
    with pytest.raises(ValueError, match="nor people to ask"):
        await run_agent_loop(stage.context(), LoopConfig(model=stage.model(), max_steps=3, tool_keys=()), people)


async def test_a_call_of_a_tool_that_asks_is_refused_where_the_run_has_none() -> None:
    stage = Stage()
    result = await stage.run(calls(("confirm", {"action": "x"})), complete())
    assert result.ended_by == "complete"
    refused = stage.of(ToolEnded)[0]
    assert refused.is_error and "no tool 'confirm'" in refused.preview
