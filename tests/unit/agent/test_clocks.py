"""The real limits, on a clock that jumps: which of a run's clocks ends it, when, and what keeps it alive meanwhile."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import anyio
import pytest
from tests.unit.agent.stage import Stage, calls, complete, tool
from tests.unit.agent.test_delegation import GENERAL, House, work
from tests.unit.agent.virtual_clock import BACKEND

from kinfold.agent.delegate import HEARTBEAT, SLOTS, TOTAL
from kinfold.agent.loop import run_agent_loop
from kinfold.agent.run import CHUNK_TIMEOUT, TOOL_PATIENCE, LoopConfig, LoopInput, RunResult
from kinfold.events import EventBase, Heartbeat, RunStarted, Waiting
from kinfold.messages import Message
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedReply
from kinfold.tools.base import Tool, ToolContext, ToolOutcome
from kinfold.tools.people import Answer, Asked, People

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


def sleeper(seconds: float) -> Tool:
    async def act(context: ToolContext, arguments: Any) -> ToolOutcome:
        await anyio.sleep(seconds)
        return ToolOutcome.of("slept")

    return tool("sleep", act)


SLEEP = calls(("sleep", {}))


@pytest.mark.parametrize(
    ("replies", "limits", "ended_by", "after"),
    [
        # a step limit takes no notice of how long the steps took
        ([SLEEP, SLEEP], {"max_steps": 2}, "step_limit", 200.0),
        # the wall clock none of how many there were, nor of steady progress
        ([SLEEP] * 5, {"timeout": 450.0}, "timeout", 450.0),
        # and patience runs anew with each answer, so only silence ends a run by it
        ([SLEEP, SLEEP, SLEEP, SLEEP, ScriptedReply(text="x", delay=9_999)], {}, "no_progress", 400.0 + CHUNK_TIMEOUT),
        # whichever is up first, when two are running
        ([ScriptedReply(text="x", delay=9_999)], {"timeout": CHUNK_TIMEOUT - 1}, "timeout", CHUNK_TIMEOUT - 1),
        ([ScriptedReply(text="x", delay=9_999)], {"timeout": CHUNK_TIMEOUT + 1}, "no_progress", CHUNK_TIMEOUT),
    ],
    ids=["steps", "wall", "patience", "wall first", "patience first"],
)
async def test_each_limit_is_a_clock_of_its_own(
    replies: list[Any], limits: dict[str, Any], ended_by: str, after: float
) -> None:
    result = await Stage().run(*replies, complete("closing"), tools=(sleeper(100.0),), **limits)
    assert (result.ended_by, result.summary) == (ended_by, "closing")
    assert anyio.current_time() == pytest.approx(after, abs=0.01)


@pytest.mark.parametrize(("seconds", "ended_by"), [(TOOL_PATIENCE - 1, "complete"), (TOOL_PATIENCE + 1, "no_progress")])
async def test_a_silent_tool_may_take_eleven_minutes_and_no_longer(seconds: float, ended_by: str) -> None:
    result = await Stage().run(SLEEP, complete("over"), tools=(sleeper(seconds),))
    assert (result.ended_by, result.summary) == (ended_by, "over")
    assert anyio.current_time() == pytest.approx(min(seconds, TOOL_PATIENCE), abs=0.01)


async def test_an_hour_that_a_person_takes_counts_on_no_clock() -> None:
    async def think(asked: Asked) -> Answer:
        await anyio.sleep(3_600.0)
        return Answer(text="yes")

    stage, own = Stage(), sleeper(50.0)
    replies = (SLEEP, calls(("confirm", {"action": "Publish"})), SLEEP, SLEEP, complete("closing"))
    config = LoopConfig(
        model=stage.model(*replies), max_steps=9, tool_keys=("confirm", "sleep"), extra_tools=(own,), timeout=120.0
    )
    people = People(answer=think, deadline=7_200.0)
    asked = LoopInput(kind="main", messages=(Message.user("do it"),), people=people)
    result = await run_agent_loop(stage.context(), config, asked)
    assert result.ended_by == "timeout"
    assert anyio.current_time() == pytest.approx(3_600.0 + 120.0, abs=0.01)


# --- heartbeats -----------------------------------------------------------------------------------------------------


class Watched(House):
    """A house that notes when each heartbeat came."""

    async def run(self, *earlier: Message) -> RunResult:
        self.beats: list[tuple[float, Heartbeat]] = []
        write = self.stage.events.append

        async def writer(event: EventBase) -> None:
            write(event)
            if isinstance(event, Heartbeat):
                self.beats.append((anyio.current_time(), event))

        object.__setattr__(self.context, "writer", writer)
        return await super().run(*earlier)


async def test_a_task_call_is_heard_of_every_ten_seconds_with_the_age_of_its_last_progress() -> None:
    general = GENERAL.model_copy(update={"tool_keys": ("sleep",)})
    house = Watched(
        [calls(work("slow")), complete()],
        lambda request: SLEEP if request.step == 1 else ScriptedReply(calls=complete().calls, delay=250.0),
        tools=(sleeper(500.0),), definitions=(general,),
    )  # fmt: skip
    result = await house.run()
    assert result.ended_by == "complete"
    assert HEARTBEAT == 10.0
    times = [0.0, *(at for at, _ in house.beats), anyio.current_time()]
    assert anyio.current_time() == pytest.approx(750.0, abs=0.1)
    assert max(later - earlier for earlier, later in pairwise(times)) <= HEARTBEAT
    for at, beat in house.beats:
        assert beat.elapsed == pytest.approx(at, abs=0.01)
        assert beat.since_progress == pytest.approx(at if at < 500.0 else at - 500.0, abs=0.01)


async def test_a_quiet_subagent_keeps_its_parents_patience_and_loses_its_own() -> None:
    house = Watched(
        [calls(work("stuck")), complete()],
        lambda r: complete("woke") if r.tool_choice else ScriptedReply(text="never", delay=99_999.0),
        loop={"tool_patience": 30.0, "chunk_timeout": 30.0},
    )
    result = await house.run()
    assert result.ended_by == "complete"
    assert [record.ended_by for record in house.context.subagent_records] == ["no_progress"]
    assert anyio.current_time() == pytest.approx(CHUNK_TIMEOUT, abs=0.1)


# --- how many -------------------------------------------------------------------------------------------------------


async def test_six_run_at_once_and_of_fifty_one_the_last_is_refused_with_the_numbers() -> None:
    names = [f"piece {number}" for number in range(TOTAL + 1)]
    house = Watched(
        [calls(*(work(name) for name in names)), complete()],
        lambda request: ScriptedReply(calls=complete().calls, delay=100.0),
    )
    running: list[int] = []

    def answer(request: ModelRequest) -> ScriptedReply:
        running.append(house.delegation._running)
        return ScriptedReply(calls=complete().calls, delay=100.0)

    house._subagent = answer
    await house.run()
    assert (SLOTS, TOTAL) == (6, 50)
    read = house.read_by_parent()
    assert sum("status: completed" in text for text in read) == TOTAL
    assert "all 50 subagents of this task were started already (6 still run)" in read[-1]
    assert max(running) == SLOTS
    assert len([event for event in house.stage.of(RunStarted) if event.label]) == TOTAL
    waiting = house.stage.of(Waiting)
    assert (len(waiting), waiting[0].label, waiting[0].running, waiting[0].limit) == (TOTAL - SLOTS, "piece 6", 6, 6)
    assert anyio.current_time() == pytest.approx(100.0 * -(-TOTAL // SLOTS), abs=0.1)
