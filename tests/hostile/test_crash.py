"""What falls under a running sandbox is named for what it is, and the work done so far stays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.docker.provider_support import docker_provider, engine_api, leftovers, spec
from tests.hostile.outside import first_process, processes_of, signal_from_outside

from kinfold.errors import SandboxLost
from kinfold.sandbox.base import ExecRequest

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


@pytest.mark.threat("F04")
async def test_a_container_removed_under_a_running_exec_is_a_lost_sandbox_for_all_that_waits(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec()) as box:
            process = await box.start(ExecRequest(command=["sleep", "300"]))
            waiting = [asyncio.ensure_future(process.wait()), asyncio.ensure_future(box.exec(["sleep", "300"]))]
            await asyncio.sleep(0.2)
            with engine_api() as api:
                api.remove_container(box.ref.handle, force=True)
            async with asyncio.timeout(20):
                for ended in await asyncio.gather(*waiting, return_exceptions=True):
                    assert isinstance(ended, SandboxLost), ended
                with pytest.raises(SandboxLost):
                    await box.read("x")
                with pytest.raises(SandboxLost):
                    await box.end("run")
        assert leftovers(provider) == []


@pytest.mark.threat("F04")
async def test_an_exec_under_an_engines_pause_goes_on_where_it_was(own_state: Path) -> None:
    async with docker_provider(own_state) as provider, await provider.create(spec()) as box:
        running = await box.start(
            ExecRequest(command="read word; echo $word", stdin_open=True, stream=True, timeout=60)
        )
        with engine_api() as api:
            api.pause(box.ref.handle)
            try:
                asked = asyncio.ensure_future(box.exec(["echo", "late"], timeout=30))
                await running.write(b"thawed\n")
                await asyncio.sleep(0.5)
                assert not asked.done() and not running.ended
            finally:
                api.unpause(box.ref.handle)
        async with asyncio.timeout(20):
            assert (await asked).stdout == b"late\n"
            assert (await running.wait()).stdout == b"thawed\n"


@pytest.mark.threat("F05")
async def test_a_first_process_killed_from_outside_is_a_loss_that_keeps_the_workspace(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec(keep=600.0)) as box:
            await box.write("result", b"so far")
            running = asyncio.ensure_future(box.exec(["sleep", "300"]))
            await asyncio.sleep(0.2)
            signal_from_outside(first_process(box), "KILL")
            async with asyncio.timeout(20):
                with pytest.raises(SandboxLost, match=r"exit code 137"):
                    await running
        assert processes_of(box.ref.handle) == []
        assert Path(box.ref.workspace or "", "result").read_bytes() == b"so far"
