"""No process outlives its kill, whatever it did before; seen from outside, and its neighbours live on."""

from __future__ import annotations

import asyncio
import random
import time
from pathlib import Path

import anyio
import pytest
from tests.hostile.hostile_support import sandbox_with
from tests.hostile.outside import (
    AGENT,
    WARDEN,
    first_process,
    of_the_agent,
    processes_of,
    signal_from_outside,
)

from kinfold.errors import SandboxLost
from kinfold.sandbox.base import ExecRequest
from kinfold.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

NEIGHBOUR = ["sleep", "4321"]
STARVED = 0.01
"""Of a processor: to end a bomb of 256 then takes many seconds, however little has to be done."""
MODES = ("daemons", "stopped", "suspended", "headless", "siblings", "nested", "comets", "nameless", "bomb")


@pytest.mark.threat("K01", "K02")
async def test_nothing_survives_a_timeout_a_cancel_or_the_end_of_its_owner(own_state: Path) -> None:
    async with sandbox_with(own_state, "tree") as box:
        neighbour = await box.start(ExecRequest(command=NEIGHBOUR, owner="neighbour"))
        for mode in MODES:
            timed = await box.exec(["./tree", mode], timeout=0.3, grace=0.1)
            assert (timed.ended_by, timed.survivors) == ("timed_out", 0), mode
            assert of_the_agent(box) == [" ".join(NEIGHBOUR)], f"{mode} after its timeout"
            with anyio.move_on_after(0.2):
                await box.exec(["./tree", mode], grace=0)
            assert of_the_agent(box) == [" ".join(NEIGHBOUR)], f"{mode} after a cancel"
        for mode in MODES[:-1]:
            left = await box.exec(["./tree", mode, "leave"], timeout=5, owner="run")
            assert left.ended_by == "exited" and left.background_pids, mode
            [ended] = await box.end("run", grace=0)
            assert ended.survivors == 0 and ended.killed > 0, mode
            assert of_the_agent(box) == [" ".join(NEIGHBOUR)], f"{mode} after its owner's end"
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
            assert of_the_agent(box) == []
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
            assert of_the_agent(box) == []


async def test_hundreds_of_background_execs_end_at_once(own_state: Path) -> None:
    async with sandbox_with(own_state, pids=1024) as box:
        for _ in range(15):
            batch = [box.exec("sleep 300 & exit 0", owner="run", timeout=20) for _ in range(10)]
            await asyncio.gather(*batch)
        async with asyncio.timeout(8):
            ended = await box.end("run", grace=0)
        assert len(ended) == 150 and not any(one.survivors for one in ended)
        assert of_the_agent(box) == []


@pytest.mark.threat("K01", "K02")
async def test_nothing_survives_a_kill_at_the_limit_of_processes(own_state: Path) -> None:
    async with sandbox_with(own_state, "full") as box:
        for how in ("timeout", "cancel", "owner"):
            process = await box.start(ExecRequest(command=["./full"], timeout=2 if how == "timeout" else 60, owner=how))
            await until_full(box)
            if how == "cancel":
                await process.kill(grace=0)
            elif how == "owner":
                await box.end("owner", grace=0)
            ended = await process.wait()
            assert ended.survivors == 0
            assert ended.ended_by == ("timed_out" if how == "timeout" else "cancelled")
            assert of_the_agent(box) == [], how


async def until_full(box: Sandbox) -> None:
    """Until the container has as many processes as it may."""
    async with asyncio.timeout(20):
        while (await box.usage()).pids != 256:
            await asyncio.sleep(0.02)


@pytest.mark.threat("K03")
async def test_children_that_hold_the_output_open_hold_up_neither_their_exec_nor_anothers(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        for _ in range(3):
            began = time.monotonic()
            held = await box.exec("sleep 300 & echo up", timeout=60, owner="holders")
            assert (held.stdout, held.ended_by, len(held.background_pids)) == (b"up\n", "exited", 1)
            assert time.monotonic() - began < 5
        for _ in range(40):
            began = time.monotonic()
            assert (await box.exec(["true"])).exit_code == 0
            assert time.monotonic() - began < 2


@pytest.mark.threat("K04")
async def test_what_a_child_says_after_its_leader_went_is_kept_and_the_result_names_the_child(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        left = await box.exec("(sleep 0.4; echo soon; sleep 2.2; echo late) & echo first", timeout=60, owner="run")
        assert left.stdout == b"first\n"
        assert left.background_pids
        async with asyncio.timeout(20):
            while (await box.kept(left.id)).data != b"first\nsoon\nlate\n":
                await asyncio.sleep(0.1)
        assert of_the_agent(box) == []


@pytest.mark.threat("K05")
async def test_the_exit_code_is_the_leaders_own_and_137_is_no_kill(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        codes = [number % 256 for number in range(200)]
        for first in range(0, 200, 25):
            batch = codes[first : first + 25]
            ended = await asyncio.gather(*(box.exec(["sh", "-c", f"exit {code}"]) for code in batch))
            assert [(one.ended_by, one.exit_code) for one in ended] == [("exited", code) for code in batch]
        for number in (9, 15):
            killed = await box.exec(f"kill -{number} $$", timeout=10)
            assert (killed.ended_by, killed.exit_code, killed.signal) == ("signalled", None, number)
        inner = await box.exec("sh -c 'kill -9 $$'; exit $?", timeout=10)
        assert (inner.ended_by, inner.exit_code, inner.killed) == ("exited", 137, 0)


@pytest.mark.slow
@pytest.mark.threat("K09")
async def test_a_supervisor_that_stands_still_is_a_lost_sandbox_and_its_container_goes(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        signal_from_outside(first_process(box), "STOP")
        async with asyncio.timeout(110):
            with pytest.raises(SandboxLost):
                await box.exec(["true"], timeout=1, grace=0)
    assert processes_of(box.ref.handle) == []


@pytest.mark.threat("K10")
async def test_a_supervisor_that_dies_takes_every_process_with_it(own_state: Path) -> None:
    async with sandbox_with(own_state, "tree") as box:
        running = await box.start(ExecRequest(command=["./tree", "daemons"], timeout=60))
        await box.exec(["./tree", "nameless", "leave"], timeout=60, owner="run")
        assert len(of_the_agent(box)) > 40
        signal_from_outside(first_process(box), "KILL")
        async with asyncio.timeout(20):
            with pytest.raises(SandboxLost):
                await running.wait()
            while processes_of(box.ref.handle):
                await asyncio.sleep(0.05)
    assert processes_of(box.ref.handle) == []


@pytest.mark.threat("K10")
async def test_a_shim_that_dies_proves_nothing_so_everything_of_the_agent_ends_and_says_so(own_state: Path) -> None:
    async with sandbox_with(own_state, "tree") as box:
        for mode in ("daemons", "comets", "nameless"):
            neighbour = await box.start(ExecRequest(command=NEIGHBOUR))
            running = await box.start(ExecRequest(command=["./tree", mode], timeout=60, stream=True))
            assert (await anext(running.output())).data
            signal_from_outside(shim_of(box, "./tree"), "KILL")
            async with asyncio.timeout(20):
                assert (await running.wait()).ended_by == "kill_failed", mode
                assert (await neighbour.wait()).ended_by == "signalled", mode
            assert of_the_agent(box) == [], mode
            assert (await box.exec(["true"], timeout=8)).exit_code == 0


def shim_of(box: Sandbox, program: str) -> int:
    """The host's pid of the shim that some process of this program descends from."""
    seen = {one.pid: one for one in processes_of(box.ref.handle)}
    pid = next(one.pid for one in seen.values() if one.uid == AGENT and one.words.startswith(program))
    while seen[pid].uid != WARDEN:
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid


@pytest.mark.slow
@pytest.mark.threat("K01")
async def test_a_kill_on_a_starved_machine_takes_its_time_and_no_neighbour(own_state: Path) -> None:
    async with sandbox_with(own_state, "tree", cpus=STARVED) as box:
        neighbour = await box.start(ExecRequest(command=NEIGHBOUR, owner="neighbour"))
        timed = await box.exec(["./tree", "bomb"], timeout=1, grace=0.1)
        assert (timed.ended_by, timed.survivors) == ("timed_out", 0)
        assert of_the_agent(box) == [" ".join(NEIGHBOUR)]
        await box.end("neighbour", grace=0)
        assert (await neighbour.wait()).ended_by == "cancelled"
