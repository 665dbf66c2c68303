"""One exec that takes all it can get holds up no other: huge directories, burners, bombs. Figures: the bench's."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from tests.hostile.hostile_support import sandbox_with

from kinfold.sandbox.base import MIB, ExecRequest
from kinfold.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

SOON = 5.0
"""Generous: a machine may be busy with other things. What is queued behind the load takes far longer."""


async def answers_soon(box: Sandbox, times: int = 5) -> None:
    """Programs run and files are read, each within `SOON`."""
    for _ in range(times):
        async with asyncio.timeout(SOON):
            assert (await box.exec(["true"])).exit_code == 0
        async with asyncio.timeout(SOON):
            assert await box.read("note") == b"here"


async def beside(box: Sandbox, work: Callable[[], Awaitable[object]], times: int = 5) -> None:
    """While `work` is done again and again, others are served; `work` itself succeeds."""

    async def again() -> None:
        while True:
            await work()

    await work()
    load = asyncio.ensure_future(again())
    try:
        await answers_soon(box, times)
        assert not load.done()
    finally:
        load.cancel()
        await asyncio.wait([load])


async def huge(box: Sandbox, files: int) -> None:
    """A directory of so many files, and a file of 128 MiB."""
    await box.write("note", b"here")
    made = await box.exec(
        f"mkdir many; cd many && seq {files} | xargs touch && head -c 134217728 /dev/zero > ../big", timeout=300
    )
    assert made.exit_code == 0, made.stderr


async def test_a_huge_directory_that_is_listed_claimed_hashed_or_removed_holds_up_nobody(own_state: Path) -> None:
    async with sandbox_with(own_state, file_bytes=512 * MIB) as box:
        await huge(box, 15_000)
        await beside(box, box.snapshot)
        await beside(box, lambda: box.stat(["many"], claim=True))
        await beside(box, lambda: box.stat(["big"], digest=True))
        removal = asyncio.ensure_future(box.remove("many", recursive=True))
        await answers_soon(box, 2)
        assert await removal == 15_001


@pytest.mark.slow
async def test_a_directory_of_a_million_files_holds_up_nobody(own_state: Path) -> None:
    async with sandbox_with(own_state, file_bytes=512 * MIB, memory_bytes=1024 * MIB, disk_inodes=1_020_000) as box:
        await huge(box, 1_000_000)
        await beside(box, box.snapshot, 30)
        removal = asyncio.ensure_future(box.remove("many", recursive=True))
        await answers_soon(box, 10)
        assert await removal == 1_000_001


async def test_programs_that_burn_all_cpus_leave_others_their_turn(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        await box.write("note", b"here")
        for _ in range(8):
            await box.start(ExecRequest(command="while :; do :; done", owner="burner"))
        await answers_soon(box)
        await box.end("burner", grace=0)


async def test_a_fork_bomb_is_ended_though_nobody_asks_and_files_and_programs_go_on(own_state: Path) -> None:
    async with sandbox_with(own_state, "tree") as box:
        await box.write("note", b"here")
        innocent = await box.start(ExecRequest(command=["sleep", "300"], owner="innocent"))
        bomb = await box.start(ExecRequest(command=["./tree", "bomb"]))
        async with asyncio.timeout(40):
            ended = await bomb.wait()
        assert (ended.ended_by, ended.survivors) == ("pids_limited", 0)
        assert ended.killed > 100
        await answers_soon(box)
        assert not innocent.ended
        await box.end("innocent", grace=0)


async def test_a_build_that_is_refused_some_forks_is_no_bomb(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        many = "for i in $(seq 300); do sleep 4 & done 2>/dev/null; wait; echo done"
        result = await box.exec(["sh", "-c", many], timeout=60)
        assert result.ended_by in ("exited", "signalled"), result


@pytest.mark.threat("R04")
async def test_a_memory_bomb_of_many_processes_leaves_the_sandbox_usable_and_who_died_is_told(own_state: Path) -> None:
    async with sandbox_with(own_state, "eat", memory_bytes=128 * MIB) as box:
        await box.write("note", b"here")
        # The eaters made themselves worse victims than anybody: it may well be the innocent that the kernel ends.
        innocent = await box.start(ExecRequest(command=["sleep", "300"], owner="innocent"))
        await box.start(ExecRequest(command=["./eat", "20000"], owner="bomb"))
        async with asyncio.timeout(30):
            while (await box.usage()).oom_kills == 0:
                await asyncio.sleep(0.05)
        for _ in range(3):
            async with asyncio.timeout(SOON):
                tried = await box.exec(["true"])
            assert tried.ended_by in ("exited", "oom_killed"), tried  # it, too, may be the kernel's choice, and says so
            async with asyncio.timeout(SOON):
                assert await box.read("note") == b"here"
        [ended] = await box.end("bomb", grace=0)
        assert ended.survivors == 0
        await answers_soon(box, 3)
        lives = any(e.id == innocent.id and e.state == "running" for e in await box.execs())
        await box.end("innocent", grace=0)
        result = await innocent.wait()
        assert result.ended_by == ("cancelled" if lives else "oom_killed")
        assert result.oom_kills > 0
        assert (await box.usage()).oom_kills
        assert (await box.exec(["true"])).ended_by == "exited"
