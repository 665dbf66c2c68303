"""The live view's fold of the event log."""

from __future__ import annotations

from datetime import UTC, datetime

from kinfold.cli.live import describe_run
from kinfold.cli.tree import TreeState
from kinfold.events import EventBase, RunEnded, RunStarted, StepStarted, TaskStarted, ToolEnded, ToolStarted, Waiting
from kinfold.messages import Artifact, SkippedPath, Usage

AT = "2026-01-01T00:00:00.000Z"
LATER = "2026-01-01T00:00:07.500Z"


def started(run_id: str, **fields: object) -> RunStarted:
    values = {"task_id": "task_1", "run_id": run_id, "at": AT, "kind": "main", "model": "scripted", "max_steps": 9}
    return RunStarted.model_validate({**values, **fields})


def fold(*events: EventBase) -> TreeState:
    state = TreeState()
    for event in events:
        state.apply(event)
    return state


def test_each_subagent_has_a_line_with_its_own_step_tool_and_tokens() -> None:
    state = fold(
        TaskStarted(task_id="task_1", prompt="p", model="m", sandbox_id="sbx_1"),
        started("run_m"),
        started("run_a", kind="subagent", label="Measure", definition="research"),
        started("run_b", kind="subagent", label="Mend", definition="coding"),
        StepStarted(task_id="task_1", run_id="run_a", step=2, usage=Usage(input_tokens=1200, output_tokens=34)),
        ToolStarted(task_id="task_1", run_id="run_a", tool="bash", call_id="c", input={}),
        Waiting(task_id="task_1", run_id="run_c", label="Report", running=6, limit=6),
    )
    line = describe_run(state.subagents["run_a"], datetime.fromisoformat(LATER))
    assert line == "… Measure [research]  step 2/9  bash  1,234 tokens  7.5 s"
    assert describe_run(state.subagents["run_c"], datetime.now(UTC)) == "… Report  waits for one of 6 slots"
    state.apply(started("run_c", kind="subagent", label="Report", definition="general"))
    assert describe_run(state.subagents["run_c"], datetime.fromisoformat(AT)).startswith("… Report [general]  step 0/9")
    assert state.main is not None
    assert state.main.step == 0


def test_an_ended_run_stops_its_clock_and_gives_artifacts_and_skips() -> None:
    state = fold(
        started("run_m"),
        started("run_a", kind="subagent", label="Measure", definition="research"),
        RunEnded(
            task_id="task_1",
            run_id="run_a",
            at=LATER,
            label="Measure",
            status="completed",
            ended_by="complete",
            steps=3,
            summary="s",
            artifacts=(Artifact(path="/workspace/a", size=1, fs_type="file", change="created"),),
            skipped=(SkippedPath(path="gone", reason="missing"),),
        ),
    )
    line = state.subagents["run_a"]
    assert line.seconds(datetime.now(UTC)) == 7.5
    assert state.artifacts["/workspace/a"].size == 1
    assert state.owners["/workspace/a"] == "Measure"
    assert [(who, s.reason) for who, s in state.skipped] == [("Measure", "missing")]


def test_a_failed_tool_and_hostile_names_are_shown_and_not_obeyed() -> None:
    state = fold(
        started("run_m"),
        started("run_a", kind="subagent", label="Evil\x1b[2J\u202e", definition="research"),
        ToolEnded(task_id="t", run_id="run_a", tool="bash", call_id="c", is_error=True, duration=1.0, preview=""),
    )
    line = describe_run(state.subagents["run_a"], datetime.now(UTC))
    assert "\x1b" not in line
    assert "\u202e" not in line
    assert "bash (failed)" in line
