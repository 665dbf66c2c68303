"""No process outlives its kill, whatever it did before; seen from outside, and its neighbours live on."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import anyio
import pytest
from tests.hostile.hostile_support import processes, sandbox_with

from kinfold.sandbox.base import ExecRequest

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

NEIGHBOUR = ["sleep", "4321"]
MODES = ("daemons", "stopped", "suspended", "headless", "siblings", "nested", "comets", "bomb")


async def test_nothing_survives_a_timeout_a_cancel_or_the_end_of_its_owner(own_state: Path) -> None:
    async with sandbox_with(own_state, "tree") as box:
        neighbour = await box.start(ExecRequest(command=NEIGHBOUR, owner="neighbour"))
        for mode in MODES:
            timed = await box.exec(["./tree", mode], timeout=0.3, grace=0.1)
            assert (timed.ended_by, timed.survivors) == ("timed_out", 0), mode
            assert processes(box) == [" ".join(NEIGHBOUR)], f"{mode} after its timeout"
            with anyio.move_on_after(0.2):
                await box.exec(["./tree", mode], grace=0)
            assert processes(box) == [" ".join(NEIGHBOUR)], f"{mode} after a cancel"
        for mode in MODES[:-1]:
            left = await box.exec(["./tree", mode, "leave"], timeout=5, owner="run")
            assert left.ended_by == "exited" and left.background_pids, mode
            [ended] = await box.end("run", grace=0)
            assert ended.survivors == 0 and ended.killed > 0, mode
            assert processes(box) == [" ".join(NEIGHBOUR)], f"{mode} after its owner's end"
        await box.end("neighbour", grace=0)
        assert (await neighbour.wait()).ended_by == "cancelled"


async def test_what_is_killed_while_paused_is_dead_before_it_goes_on(own_state: Path) -> None:
    async with sandbox_with(own_state, "tree") as box:
        for mode in ("daemons", "comets", "bomb"):
            process = await box.start(ExecRequest(command=["./tree", mode], owner="run"))
            await asyncio.sleep(0.1)
            await box.pause()
            [ended] = await box.end("run", grace=0)
            assert ended.survivors == 0
            assert (await process.wait()).ended_by == "cancelled"
            assert processes(box) == []
            await box.resume()


async def test_the_end_of_an_owner_ends_what_is_just_starting(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        starting = random.Random(7)
        for _ in range(12):
            command = "setsid sleep 300 & setsid sleep 300 & sleep 300"
            execs = [asyncio.ensure_future(box.exec(command, owner="run", timeout=20)) for _ in range(10)]
            await asyncio.sleep(starting.random() * 0.02)
            await box.end("run", grace=0)
            await box.end("run", grace=0)
            assert {(await each).ended_by for each in execs} == {"cancelled"}
            assert processes(box) == []


async def test_hundreds_of_background_execs_end_at_once(own_state: Path) -> None:
    async with sandbox_with(own_state, pids=1024) as box:
        for _ in range(15):
            batch = [box.exec("sleep 300 & exit 0", owner="run", timeout=20) for _ in range(10)]
            await asyncio.gather(*batch)
        async with asyncio.timeout(8):
            ended = await box.end("run", grace=0)
        assert len(ended) == 150 and not any(one.survivors for one in ended)
        assert processes(box) == []
