"""Whole tasks with real files and programs, by the supervisor as a plain child process (no container, no isolation)."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.agent.stage import calls, complete

from kinfold import ParentTask, run
from kinfold.definitions import SubagentDefinition
from kinfold.events import ToolOutput
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.sandbox.local import LocalProvider

pytestmark = pytest.mark.anyio
GENERAL = SubagentDefinition(type="general", description="anything")


@pytest.fixture
async def provider(own_state: Path) -> AsyncIterator[LocalProvider]:
    async with LocalProvider(own_state) as made:
        yield made


def bash(command: str) -> tuple[str, dict[str, Any]]:
    return "bash", {"command": command}


def delegate(*names: str) -> ScriptedReply:
    work = ({"subagent_type": "general", "description": name, "prompt": name} for name in names)
    return calls(*(("task", arguments) for arguments in work))


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_two_subagents_meet_in_one_workspace_with_temporary_directories_of_their_own(
    provider: LocalProvider, tmp_path: Path
) -> None:
    def reply(request: ModelRequest) -> ScriptedReply:
        if request.run_kind == "main":
            return [delegate("a", "b"), complete("met", "a.txt", "b.txt")][request.step - 1]
        mine, theirs = ("a", "b") if request.label == "a" else ("b", "a")
        meet = (
            f"echo $TMPDIR > {mine}.txt; touch $TMPDIR/usable {mine}.up; "
            f"for n in $(seq 1000); do [ -e {theirs}.up ] && exit 0; sleep 0.01; done; exit 1"
        )
        return [calls(bash(meet)), complete("met", f"{mine}.txt", "nowhere")][request.step - 1]

    out = tmp_path / "out"
    result = await run("x", model=ScriptedModel(reply), definitions=(GENERAL,), provider=provider, out=out)
    assert (result.ended_by, result.error) == ("complete", None)
    assert [record.status for record in result.records] == ["completed"] * 2
    first, second = ((out / f"{name}.txt").read_text().strip() for name in "ab")
    assert first != second
    assert all(Path(path).name.startswith("run_") for path in (first, second))


async def test_cancelling_a_task_kills_what_its_agents_run(provider: LocalProvider) -> None:
    def reply(request: ModelRequest) -> ScriptedReply:
        if request.run_kind == "main":
            return delegate("a", "b")
        return calls(bash(f"echo $$ > {request.label}.pid; trap '' TERM; echo up; while :; do sleep 0.05; done"))

    async with ParentTask("x", model=ScriptedModel(reply), definitions=(GENERAL,), provider=provider) as task:
        await task.start()
        up: set[str] = set()
        async for event in task.follow():
            if isinstance(event, ToolOutput):
                up.add(event.run_id)
            if len(up) == 2:
                break
        pids = [int(await task.read(f"{name}.pid")) for name in "ab"]
        assert not any(gone(pid) for pid in pids)
        await task.cancel()
        result = await task.wait()
        assert all(gone(pid) for pid in pids)
    assert result.ended_by == "cancelled"
    assert result.salvage is not None
    assert {file.path for file in result.salvage.files_touched} == {"/workspace/a.pid", "/workspace/b.pid"}
