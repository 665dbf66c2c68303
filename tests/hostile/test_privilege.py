"""Code in the container can do nothing to the supervisor, its shims or the kernel that the design denies it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.hostile.hostile_support import sandbox_with

from kinfold.sandbox.base import ExecRequest

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


async def test_an_agent_can_do_nothing_to_foreign_processes_while_they_work_for_it(own_state: Path) -> None:
    async with sandbox_with(own_state, "probe") as box:
        attack = asyncio.ensure_future(box.exec(["./probe", "4"], timeout=20))
        while not attack.done():
            await box.stat(["probe"] * 200)
            await box.exec(["true"], timeout=1, grace=0)
        seen = (await attack).stdout_text.splitlines()
        assert seen[-1] == "done"
        assert [line for line in seen if line.startswith("WORKED")] == []


async def test_nothing_of_the_hosts_environment_reaches_a_program(
    own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_HOST_SECRET", "leak")
    async with sandbox_with(own_state) as box:
        names = {line.partition("=")[0] for line in (await box.exec(["env"])).stdout_text.splitlines()}
        assert names == {"HOME", "USER", "LOGNAME", "PATH", "TMPDIR", "TZ"}


@pytest.mark.parametrize("number", [9, 19])
async def test_signals_at_everybody_end_only_their_own_and_leave_the_supervisor_working(
    own_state: Path, number: int
) -> None:
    async with sandbox_with(own_state, "spin") as box:
        spinning = await box.start(ExecRequest(command=["./spin", str(number)], owner="spin"))
        for _ in range(15):
            hit = await box.exec(["true"], timeout=0.3, grace=0)
            assert hit.ended_by in ("exited", "signalled", "timed_out")
            assert hit.survivors == 0
        [ended] = await box.end("spin", grace=0)
        assert ended.survivors == 0
        assert (await spinning.wait()).ended_by in ("cancelled", "signalled")
        assert (await box.exec(["true"], timeout=5)).exit_code == 0
