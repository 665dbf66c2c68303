"""A container that comes to grief under a running task: the task says what happened and loses nothing it knows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.docker.provider_support import containers_of, docker_provider, engine_api, spec
from tests.hostile.outside import signal_from_outside
from tests.unit.agent.stage import calls, complete

from kinfold import ParentTask, TaskResult
from kinfold.cli.ending import exit_code_of_ending
from kinfold.events import SandboxChanged, ToolEnded
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedModel, ScriptedReply

pytestmark = pytest.mark.anyio
WAITING = "touch up; while [ ! -e go ]; do sleep 0.05; done; echo went"


def reply(request: ModelRequest) -> ScriptedReply:
    """Write a file, wait for the test, complete."""
    steps = [
        calls(("write_file", {"path": "kept.txt", "content": "known\n"}), text="I write what must not be lost."),
        calls(("bash", {"command": WAITING})),
        complete("done", "kept.txt"),
    ]
    return steps[request.step - 1]


async def struck(
    state: Path, act: Callable[[Any, str], None], *, goes_on: bool = False
) -> tuple[TaskResult, list[object], str]:
    """The result of a task whose container is struck in its second step; the states and answers that were told."""
    async with docker_provider(state) as provider:
        async with ParentTask("x", model=ScriptedModel(reply), spec=spec(), provider=provider, definitions=()) as task:
            await task.start()
            sandbox = task._opened(task._sandbox)
            with anyio.fail_after(20):
                while not hasattr((await sandbox.stat(["up"]))[0], "size"):
                    await anyio.sleep(0.02)
            with engine_api() as api:
                await anyio.to_thread.run_sync(act, api, sandbox.ref.handle)
            if goes_on:
                await sandbox.write("go", b"")
            with anyio.fail_after(100):
                result = await task.wait()
            events = [event async for event in task.follow()]
        assert containers_of(provider.instance) == [], "it is gone, and with it what was left of it"
    states: list[object] = [event.state for event in events if isinstance(event, SandboxChanged)]
    return result, states, " ".join(event.preview for event in events if isinstance(event, ToolEnded))


def removed(api: Any, handle: str) -> None:
    api.remove_container(handle, force=True)


def stopped(api: Any, handle: str) -> None:
    api.stop(handle, timeout=0)


def killed(api: Any, handle: str) -> None:
    signal_from_outside(api.inspect_container(handle)["State"]["Pid"], "KILL")


@pytest.mark.parametrize(
    ("act", "words"),
    [(removed, "is gone"), (stopped, "was stopped"), (killed, "its supervisor was killed from outside")],
    ids=["removed", "stopped", "pid 1 killed"],
)
async def test_a_lost_container_is_told_with_its_reason_and_what_is_known_is_kept(
    own_state: Path, act: Callable[[Any, str], None], words: str
) -> None:
    result, states, previews = await struck(own_state, act)
    assert (result.status, result.ended_by, exit_code_of_ending(result.status, result.ended_by)) == (
        "error",
        "sandbox_lost",
        3,
    )
    assert result.error is not None
    assert words in result.error.message
    assert states[-1] == "lost"
    assert result.artifacts == ()
    assert "went" not in previews, "a loss is no command's result"
    assert result.salvage is not None
    assert [(file.path, file.change) for file in result.salvage.files_touched] == [("/workspace/kept.txt", "unknown")]
    assert result.salvage.last_text == "I write what must not be lost."


async def test_a_container_that_is_paused_for_a_while_costs_time_and_nothing_else(own_state: Path) -> None:
    def paused(api: Any, handle: str) -> None:
        api.pause(handle)
        assert api.inspect_container(handle)["State"]["Paused"]
        threading.Event().wait(3)
        api.unpause(handle)

    result, states, previews = await struck(own_state, paused, goes_on=True)
    assert (result.status, result.ended_by) == ("completed", "complete")
    assert "lost" not in states
    assert "went" in previews
    assert [artifact.path for artifact in result.artifacts] == ["/workspace/kept.txt"]


@pytest.mark.slow
async def test_a_supervisor_that_is_stopped_from_outside_is_a_lost_sandbox_in_bounded_time(own_state: Path) -> None:
    def frozen(api: Any, handle: str) -> None:
        signal_from_outside(api.inspect_container(handle)["State"]["Pid"], "STOP")

    result, states, previews = await struck(own_state, frozen)
    assert (result.status, result.ended_by) == ("error", "sandbox_lost")
    assert result.error is not None
    assert "could not be reached again" in result.error.message
    assert states[-1] == "lost"
    assert "went" not in previews, "a loss is no command's result"
