"""Several runs in one workspace: refused clobbers, whose a change is, declared outputs, twins and stubborn tools."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.unit.agent.stage import ROOT, Stage, calls, complete, sha256, tool, until
from tests.unit.agent.test_delegation import GENERAL, House, work

from kinfold.agent import finish, metered
from kinfold.events import Heartbeat, RunEnded, ToolEnded
from kinfold.models.base import ModelRequest, TextChunk
from kinfold.models.scripted import ScriptedReply
from kinfold.tools import apart
from kinfold.tools.base import ToolContext, ToolOutcome
from kinfold.tools.writers import Writers

pytestmark = pytest.mark.anyio


def write(path: str, content: str = "x") -> ScriptedReply:
    return calls(("write_file", {"path": path, "content": content}))


def house_of(subagent: Any, *names: str, program: Any = None, **config: Any) -> House:
    """A main run that starts these at once; their tool `program` stands for any that names no file."""
    tools = (tool("program", program),) if program else ()
    keys = ("write_file", "read_file", *(t.key for t in tools))
    definition = GENERAL.model_copy(update={"tool_keys": keys})
    return House(
        [calls(*(work(name) for name in names)), complete()], subagent, tools=tools, definitions=(definition,), **config
    )


async def test_a_clobber_is_refused_with_the_label_of_the_run_that_wrote_last() -> None:
    def answer(request: ModelRequest) -> ScriptedReply:
        if request.step == 1:
            return ScriptedReply(calls=write("a.txt", request.label or "").calls, delay=0.2 * (request.label == "late"))
        return complete("over")

    house = house_of(answer, "early", "late")
    await house.run()
    (refused,) = [event for event in house.stage.of(ToolEnded) if event.tool == "write_file" and event.is_error]
    assert refused.label == "late"
    assert "'early' (run_" in refused.preview
    assert house.stage.sandbox.files[f"{ROOT}/a.txt"] == b"early"


async def test_a_file_that_two_runs_tools_wrote_is_in_both_results() -> None:
    def answer(request: ModelRequest) -> ScriptedReply:
        mine = {
            "first": [write("a.txt", "1"), ScriptedReply(calls=complete("over").calls, delay=0.4)],
            "second": [
                ScriptedReply(calls=calls(("read_file", {"path": "a.txt"})).calls, delay=0.1),
                write("a.txt", "2"),
                ScriptedReply(calls=complete("over").calls, delay=0.4),
            ],
        }
        return mine[request.label or ""][request.step - 1]

    house = house_of(answer, "first", "second")
    await house.run()
    first, second = house.read_by_parent()
    assert "a.txt was written by this run and by 'second' (run_" in first
    assert "a.txt was written by this run and by 'first' (run_" in second


async def test_a_siblings_files_are_not_in_a_runs_salvage() -> None:
    house = house_of(
        lambda r: write(f"{r.label}.txt") if r.step == 1 else ScriptedReply(text="that is all", delay=0.2), "a", "b"
    )
    await house.run()
    endings = {event.label: event for event in house.stage.of(RunEnded)}
    for name in ("a", "b"):
        (file,) = endings[name].salvage.files_touched
        assert (file.path, file.sha256) == (f"{ROOT}/{name}.txt", sha256(b"x"))
        assert endings[name].unattributed is None


async def test_what_a_program_changed_is_nobodys_where_two_runs_had_programs_and_its_own_where_one_had() -> None:
    async def program(context: ToolContext, arguments: Any) -> ToolOutcome:
        await context.sandbox.write(f"{arguments.name}.bin", b"made")
        await anyio.sleep(0.1)
        return ToolOutcome.of("ran")

    def answer(request: ModelRequest) -> ScriptedReply:
        step = calls(("program", {"name": request.label}))
        return step if request.step == 1 else ScriptedReply(text="that is all", delay=0.1)

    both = house_of(answer, "a", "b", program=program)
    await both.run()
    for event in both.stage.of(RunEnded)[:2]:
        assert event.salvage.files_touched == ()
        assert {file.path for file in event.unattributed.files} == {f"{ROOT}/a.bin", f"{ROOT}/b.bin"}
        assert [label.partition(" (")[0] for label in event.unattributed.runs] == ["'a'", "'b'"]
    assert "by a program of one of 'a' (run_" in both.read_by_parent()[0]
    alone = house_of(answer, "a", program=program)
    await alone.run()
    ended = alone.stage.of(RunEnded)[0]
    assert ([file.path for file in ended.salvage.files_touched], ended.unattributed) == ([f"{ROOT}/a.bin"], None)


def test_a_program_that_goes_on_in_the_background_counts_until_its_run_ends() -> None:
    writers = Writers()
    writers.begin("run_1", "builder")
    with writers.program("run_1") as goes_on:
        goes_on[0] = True
    writers.begin("run_2", None)
    assert writers.others_ran_programs("run_2")
    writers.end("run_1")
    writers.begin("run_3", "later")
    assert not writers.others_ran_programs("run_3")


@pytest.mark.parametrize("written", [True, False])
async def test_an_absent_declared_output_is_sent_back_once_before_complete_is_accepted(written: bool) -> None:
    def answer(request: ModelRequest) -> ScriptedReply:
        return write("out/1.csv") if request.step == 2 and written else complete("over")

    name, arguments = work("dig")
    task = calls((name, {**arguments, "expected_outputs": ["out/*.csv"]}))
    house = House([task, complete()], answer, loop={"task_extras": True})
    await house.run()
    (read,) = house.read_by_parent()
    assert "status: completed" in read
    assert ("expected outputs do not exist: out/*.csv" in read) == (not written)
    refused = [event for event in house.stage.of(ToolEnded) if event.tool == "complete" and event.is_error]
    assert len(refused) == 1
    assert "1 of 1 expected outputs do not exist: out/*.csv" in refused[0].preview


async def test_expected_outputs_are_no_part_of_the_schema_by_default() -> None:
    house = House([complete()], lambda request: complete())
    await house.run()
    (spec,) = [spec for spec in house.requests[0].tools if spec.name == "task"]
    assert "expected_outputs" not in spec.input_schema["properties"]


async def test_a_twin_of_a_running_subagent_is_refused_by_name() -> None:
    house = house_of(lambda request: ScriptedReply(calls=complete("ok").calls, delay=0.1), "dig", "dig")
    await house.run()
    ran, refused = house.read_by_parent()
    assert "status: completed" in ran
    assert "'dig' is already under way with the same prompt, as run_" in refused


async def test_a_call_that_waits_for_a_slot_beats_too() -> None:
    house = house_of(
        lambda request: ScriptedReply(calls=complete("ok").calls, delay=0.3), "a", "b", slots=1, heartbeat=0.05
    )
    await house.run()
    first_ended = next(i for i, e in enumerate(house.stage.events) if isinstance(e, RunEnded))
    beats = [event for event in house.stage.events[:first_ended] if isinstance(event, Heartbeat)]
    assert {beat.label for beat in beats} == {"a", "b"}
    assert all(0 <= beat.since_progress < 5 and 0 < beat.elapsed < 5 for beat in beats)


async def test_a_tool_that_swallows_its_cancellation_is_left_behind(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(apart, "PATIENCE", 0.05)
    stage, let_go, over = Stage(), anyio.Event(), []

    async def stubborn(context: ToolContext, arguments: Any) -> ToolOutcome:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except BaseException:  # noqa: BLE001, S112 - the very thing that must not hold up an ending
                continue
        over.append(True)
        return ToolOutcome.of("at last")

    with anyio.fail_after(5):
        result = await stage.run(
            calls(("stubborn", {})), complete("as far"), tools=(tool("stubborn", stubborn),), timeout=0.05
        )
    assert (result.ended_by, result.summary) == ("timeout", "as far")
    assert "'stubborn' swallowed its cancellation" in caplog.text
    (ended, _) = stage.of(ToolEnded)
    assert ended.preview == "ended before it answered: its run was out of time"
    let_go.set()
    await until(lambda: over)


async def test_a_stream_that_does_not_close_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metered, "CLOSE_STREAM", 0.05)
    monkeypatch.setattr(finish, "FINALISATION", 0.05)

    class Endless:
        def __aiter__(self) -> Endless:
            return self

        async def __anext__(self) -> TextChunk:
            await anyio.sleep(0.01)
            return TextChunk(text="and ")

        async def aclose(self) -> None:
            await anyio.sleep_forever()

    class Model:
        name = "endless"

        def stream(self, request: ModelRequest) -> Any:
            return Endless()

    with anyio.fail_after(5):
        result = await Stage().run(model=Model(), timeout=0.1)
    assert result.ended_by == "timeout"
    assert result.salvage is not None
    assert result.salvage.last_text.startswith("and and")
