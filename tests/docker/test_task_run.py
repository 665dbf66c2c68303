"""Parent tasks in real containers: delegation, delivery, cancellation with proof from outside, and loss."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import docker
import pytest
from tests.docker.provider_support import docker_provider
from tests.unit.agent.stage import calls, complete

from kinfold import ParentTask, RunLimits, run
from kinfold.definitions import SubagentDefinition
from kinfold.events import RunStarted, ToolEnded, ToolOutput
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.sandbox.docker.provider import DockerProvider

pytestmark = pytest.mark.anyio
GENERAL = SubagentDefinition(type="general", description="anything")


@pytest.fixture
def engine() -> Iterator[Any]:
    client = docker.from_env(timeout=30)
    yield client
    client.close()


@pytest.fixture
async def provider(own_state: Path) -> AsyncIterator[DockerProvider]:
    async with docker_provider(own_state) as made:
        yield made


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A given directory that the agent's uid owns."""
    made = tmp_path / "ws"
    made.mkdir()
    if os.geteuid() == 0:  # any other owner is the agent itself
        os.chown(made, 1000, 1000)
    return made


def bash(command: str) -> tuple[str, dict[str, Any]]:
    return "bash", {"command": command}


def delegate(*names: str) -> ScriptedReply:
    return calls(
        *(("task", {"subagent_type": "general", "description": name, "prompt": f"do {name}"}) for name in names)
    )


def scripted(main: list[ScriptedReply], **subagents: list[ScriptedReply]) -> ScriptedModel:
    """A model that plays `main`, and for a subagent what its label names."""

    def reply(request: ModelRequest) -> ScriptedReply:
        script = main if request.run_kind == "main" else subagents[str(request.label)]
        return script[request.step - 1]

    return ScriptedModel(reply)


async def processes(engine: Any, task: ParentTask, marker: str) -> list[str]:
    """The command lines in the task's container that hold `marker`, as the engine sees them from outside."""

    def look() -> list[str]:
        (container,) = engine.containers.list(filters={"label": f"kinfold.task={task.id}"})
        top = container.top(ps_args="-eo pid,args")
        return [" ".join(row) for row in top["Processes"] if marker in " ".join(row)]

    return await anyio.to_thread.run_sync(look)


async def test_parallel_subagents_share_one_workspace_and_deliver_checked_files(
    provider: DockerProvider, tmp_path: Path
) -> None:
    wait = "for n in $(seq 500); do [ -e {0} ] && exit 0; sleep 0.02; done; exit 1"
    model = scripted(
        [
            delegate("one", "two"),
            calls(("read_file", {"path": "one.txt"}), ("read_file", {"path": "two.txt"})),
            complete("both agree", "one.txt", "two.txt"),
        ],
        one=[calls(bash("echo $TMPDIR > one.txt; touch one.up; " + wait.format("two.up"))), complete("1", "one.txt")],
        two=[calls(bash("echo $TMPDIR > two.txt; touch two.up; " + wait.format("one.up"))), complete("2", "two.txt")],
    )
    out = tmp_path / "out"
    result = await run("x", model=model, definitions=(GENERAL,), provider=provider, out=out)
    assert (result.status, result.error) == ("completed", None)
    assert [record.status for record in result.records] == ["completed"] * 2
    temporary = [(out / f"{name}.txt").read_text() for name in ("one", "two")]
    assert temporary[0] != temporary[1]
    assert all(line.startswith("/home/agent/tmp/run_") for line in temporary)
    for artifact, text in zip(result.artifacts, temporary, strict=True):
        assert artifact.sha256 == hashlib.sha256(text.encode()).hexdigest()
        assert artifact.change == "created"


async def test_every_claim_that_fails_comes_back_with_its_reason(
    provider: DockerProvider, tmp_path: Path, workspace: Path
) -> None:
    (workspace / "old.txt").write_text("old")
    prepare = (
        "ln -s /etc/passwd leak; ln -s real.txt link; echo real > real.txt; mkfifo pipe; mkdir -p d/e; echo x > d/e/f;"
        "echo secret > locked; chmod 000 locked"
    )
    claims = ["real.txt", "link", "d", "old.txt", "gone", "../etc/passwd", "/etc/passwd", "leak", "pipe", "locked"]
    model = scripted([calls(bash(prepare)), complete("mixed", *claims, "./real.txt")])
    result = await run("x", model=model, provider=provider, workspace=workspace, out=tmp_path / "out")
    assert [(a.path, a.fs_type, a.change) for a in result.artifacts] == [
        ("/workspace/real.txt", "file", "created"),
        ("/workspace/link", "symlink", "created"),
        ("/workspace/d", "directory", "created"),
        ("/workspace/old.txt", "file", "unchanged"),
    ]
    assert {skipped.path: skipped.reason for skipped in result.skipped} == {
        "gone": "missing",
        "../etc/passwd": "outside_workspace",
        "/etc/passwd": "outside_workspace",
        "leak": "symlink_escape",
        "pipe": "not_regular",
        "locked": "unreadable",
        "./real.txt": "duplicate",
    }
    assert result.error is None
    assert (tmp_path / "out" / "d" / "e" / "f").read_text() == "x\n"
    assert (tmp_path / "out" / "link").read_text() == "real\n"
    assert not (tmp_path / "out" / "link").is_symlink()
    assert (workspace / "old.txt").exists()


async def test_cancelling_the_task_kills_its_execs_and_those_of_its_subagents(
    provider: DockerProvider, engine: Any
) -> None:
    stubborn = "setsid sh -c 'trap \"\" TERM; while :; do sleep 7531; done' & setsid sleep 7531 & echo up; sleep 7531"
    model = scripted([delegate("one", "two")], one=[calls(bash(stubborn))], two=[calls(bash(stubborn))])
    async with ParentTask("x", model=model, definitions=(GENERAL,), provider=provider) as task:
        await task.start()
        up: set[str] = set()
        async for event in task.follow():
            if isinstance(event, ToolOutput) and "up" in event.text:
                up.add(event.run_id)
            if len(up) == 2:
                break
        assert len(await processes(engine, task, "7531")) >= 6
        await task.cancel()
        with anyio.fail_after(20):
            result = await task.wait()
        assert await processes(engine, task, "7531") == []
    assert (result.ended_by, result.status) == ("cancelled", "aborted")
    assert [record.ended_by for record in result.records] == ["cancelled"] * 2


async def test_cancelling_one_subagent_kills_its_execs_and_spares_its_sibling(
    provider: DockerProvider, engine: Any, workspace: Path
) -> None:
    wait = "echo up; for n in $(seq 1000); do [ -e go ] && exit 0; sleep 0.02; done; exit 1"
    model = scripted(
        [delegate("bad", "good"), complete("over")],
        bad=[calls(bash("echo half > half.txt; echo up; sleep 6427"))],
        good=[calls(bash(wait)), complete("well")],
    )
    async with ParentTask("x", model=model, definitions=(GENERAL,), provider=provider, workspace=workspace) as task:
        await task.start()
        runs: dict[str, str] = {}
        up: set[str] = set()
        async for event in task.follow():
            if isinstance(event, RunStarted) and event.label:
                runs[event.label] = event.run_id
            if isinstance(event, ToolOutput) and "up" in event.text:
                up.add(event.run_id)
            if len(up) == 2:
                break
        assert await processes(engine, task, "sleep 6427")
        await task.cancel(runs["bad"])
        told: list[str] = []
        async for event in task.follow():
            if isinstance(event, ToolEnded) and event.tool == "task":
                told.append(event.preview)
                break
        assert await processes(engine, task, "sleep 6427") == []
        assert await task.read("half.txt") == b"half\n"
        (workspace / "go").touch()
        result = await task.wait()
    assert "ended by cancelled" in told[0]
    assert "half.txt" in told[0]
    assert sorted(record.ended_by for record in result.records) == ["cancelled", "complete"]
    assert result.ended_by == "complete"


async def test_a_task_out_of_time_leaves_no_process_and_keeps_its_work(provider: DockerProvider, engine: Any) -> None:
    model = scripted([calls(bash("echo work > work.txt; sleep 5319")), complete("as far as it got", "work.txt")])
    limits = RunLimits(timeout=2.0)
    async with ParentTask("x", model=model, provider=provider, limits=limits) as task:
        await task.start()
        result = await task.wait()
        assert await processes(engine, task, "5319") == []
    assert (result.ended_by, result.summary) == ("timeout", "as far as it got")
    assert [artifact.path for artifact in result.artifacts] == ["/workspace/work.txt"]


async def test_what_runs_in_the_background_lives_until_its_agents_run_ends(
    provider: DockerProvider, engine: Any
) -> None:
    model = scripted(
        [delegate("one"), calls(bash("pgrep -x sleep || echo none left")), complete("over")],
        one=[calls(bash("sleep 8642 & echo started")), calls(bash("pgrep -x sleep")), complete("left it on")],
    )
    async with ParentTask("x", model=model, definitions=(GENERAL,), provider=provider) as task:
        await task.start()
        await task.wait()
        previews = [e.preview async for e in task.follow() if isinstance(e, ToolEnded) and e.tool in ("bash", "task")]
    assert previews[1].startswith("exit code 0")
    assert "had left running was ended" in previews[2]
    assert "none left" in previews[3]
