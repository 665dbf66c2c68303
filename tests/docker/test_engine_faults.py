"""An engine that is killed, stopped, frozen or restarted is never mistaken for what a command did.

On an engine of the tests' own. What runs in a sandbox does not need the engine: with live-restore it runs on and is
found again; without, its end is a loss with its reason.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.docker.private_engine import PrivateEngine, thawed_after
from tests.docker.provider_support import docker_provider, spec

from kinfold.errors import EngineUnavailable, SandboxLost
from kinfold.models.scripted import ScriptedCall, ScriptedModel, ScriptedReply
from kinfold.sandbox.base import ExecRequest
from kinfold.sandbox.docker.provider import ChannelKind, DockerProvider
from kinfold.sandbox.docker.reaper import reap
from kinfold.sandbox.process import Process
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tasks.task import ParentTask

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can start an engine of its own"),
]
both_channels = pytest.mark.parametrize("channel", ["engine", "socket"])
COUNT = "echo started >> runs; i=0; while [ $i -lt 40 ]; do echo $i; i=$((i+1)); sleep 0.1; done"
COUNTED = "".join(f"{number}\n" for number in range(40))


@pytest.fixture(scope="module")
def loaded() -> Iterator[PrivateEngine]:
    """One engine for all of these tests, the image in it."""
    with PrivateEngine() as engine:
        engine.launch()
        engine.wait_for_answer()
        engine.load()
        yield engine


@pytest.fixture
async def engine(loaded: PrivateEngine) -> AsyncIterator[PrivateEngine]:
    """It runs when a test begins, and nothing is in it; how it is left does not matter."""
    yield loaded
    loaded.thaw()
    loaded.kill()
    await loaded.start()
    with loaded.api() as api:
        for item in loaded.containers():
            api.remove_container(item["Id"], force=True, v=True)


@asynccontextmanager
async def counting(
    engine: PrivateEngine, state: Path, channel: ChannelKind, **fields: object
) -> AsyncIterator[tuple[DockerProvider, Sandbox, Process]]:
    """A sandbox in which a program counts for four seconds; the sandbox is left to the test."""
    async with docker_provider(state, channel=channel, host=engine.host) as provider:
        sandbox = await provider.create(spec(**fields))
        process = await sandbox.start(ExecRequest(command=COUNT))
        yield provider, sandbox, process


@pytest.mark.threat("F03")
@both_channels
@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=pytest.mark.slow)])
async def test_with_live_restore_a_command_outlives_the_engine_and_its_output_is_whole(
    engine: PrivateEngine, own_state: Path, channel: ChannelKind, how: str
) -> None:
    engine.kill()
    await engine.start(live_restore=True)
    async with counting(engine, own_state, channel) as (_, sandbox, process):
        if how == "kill":
            engine.kill()
        else:
            await engine.stop()
        await engine.start(live_restore=True)
        result = await process.wait()
        assert (result.ended_by, result.exit_code, result.stdout_text) == ("exited", 0, COUNTED)
        assert await sandbox.read("runs") == b"started\n"
        await sandbox.aclose()
    assert engine.containers() == []


@pytest.mark.threat("F02")
@both_channels
async def test_without_live_restore_a_restart_is_a_loss_with_its_reason(
    engine: PrivateEngine, own_state: Path, channel: ChannelKind
) -> None:
    async with counting(engine, own_state, channel) as (provider, sandbox, process):
        engine.kill()
        await engine.start()
        with pytest.raises(SandboxLost, match=r"it was stopped|killed from outside"):
            await process.wait()
        with pytest.raises(SandboxLost):
            await sandbox.exec(["true"])
        await sandbox.aclose()
        assert await provider.list() == []
    assert engine.containers() == []


@pytest.mark.threat("F02")
async def test_by_the_local_socket_a_sandbox_works_on_while_its_engine_is_dead(
    engine: PrivateEngine, own_state: Path
) -> None:
    async with counting(engine, own_state, "socket") as (provider, sandbox, process):
        engine.kill()
        assert (await sandbox.exec("echo still here")).stdout_text == "still here\n"
        assert (await process.wait()).stdout_text == COUNTED
        with pytest.raises(EngineUnavailable):
            await sandbox.aclose()
        await engine.start(live_restore=True)
        reaped = await reap(provider)
        assert [(item.name, item.removed) for item in reaped] == [(sandbox.id, True)]
    assert engine.containers() == []


@pytest.mark.threat("F02")
async def test_an_engine_that_stays_dead_is_a_loss_once_the_execs_must_have_ended(
    engine: PrivateEngine, own_state: Path
) -> None:
    async with counting(engine, own_state, "engine", orphan_grace=3.0) as (provider, sandbox, process):
        engine.kill()
        began = time.monotonic()
        with pytest.raises(SandboxLost, match=r"out of reach for 3 s.*no container engine answers"):
            await process.wait()
        assert time.monotonic() - began < 10
        with pytest.raises(EngineUnavailable):
            await sandbox.aclose()
        await engine.start()
        assert [(item.name, item.removed) for item in await reap(provider)] == [(sandbox.id, True)]
    assert engine.containers() == []


@pytest.mark.threat("F02")
@pytest.mark.parametrize(("live_restore", "says"), [(True, "completed"), (False, "sandbox_lost")])
async def test_a_task_on_an_engine_that_restarts_completes_or_says_that_its_sandbox_was_lost(
    engine: PrivateEngine, own_state: Path, live_restore: bool, says: str
) -> None:
    engine.kill()
    await engine.start(live_restore=live_restore)
    replies = iter(
        [
            ScriptedReply(calls=(ScriptedCall(tool="bash", input={"command": COUNT}),)),
            ScriptedReply(calls=(ScriptedCall(tool="complete", input={"summary": "done", "paths": ["runs"]}),)),
        ]
    )
    async with (
        docker_provider(own_state, channel="engine", host=engine.host) as provider,
        ParentTask("count", model=ScriptedModel(lambda _: next(replies)), spec=spec(), provider=provider) as task,
    ):
        await task.start()
        async for event in task.follow():
            if event.type == "tool_output":
                break
        engine.kill()
        with anyio.fail_after(60):
            await engine.start(live_restore=live_restore)
            result = await task.wait()
        states = [event.state async for event in task.follow() if event.type == "sandbox_changed"]
    assert says in (result.status, result.ended_by)
    if live_restore:
        assert [artifact.size for artifact in result.artifacts] == [len("started\n")]
        assert states == ["ready", "degraded", "ready"]
    else:
        assert (result.status, result.artifacts, states[-1]) == ("error", (), "lost")
        assert result.error is not None
        assert "stopped" in result.error.message
    assert engine.containers() == []


@pytest.mark.threat("F08")
@pytest.mark.slow
@both_channels
async def test_a_frozen_engine_delays_and_loses_nothing(
    engine: PrivateEngine, own_state: Path, channel: ChannelKind
) -> None:
    async with counting(engine, own_state, channel) as (provider, sandbox, process):
        async with thawed_after(engine, 20.0):
            with anyio.fail_after(60):
                assert (await process.wait()).stdout_text == COUNTED
                assert (await sandbox.exec("echo here")).stdout_text == "here\n"
        await sandbox.aclose()
        assert await provider.list() == []


@pytest.mark.threat("F08")
@pytest.mark.slow
async def test_every_call_to_a_frozen_engine_has_a_deadline(engine: PrivateEngine, own_state: Path) -> None:
    async with docker_provider(own_state, host=engine.host) as provider:
        sandbox = await provider.create(spec())
        engine.freeze()
        for call in (provider.create(spec()), provider.list(), reap(provider), sandbox.aclose()):
            began = time.monotonic()
            with pytest.raises(EngineUnavailable, match="did not answer within"):
                await call
            assert time.monotonic() - began < 70
        engine.thaw()
        await provider.destroy(sandbox.ref)
        assert [item.name for item in await reap(provider)] == []
    assert engine.containers() == []
