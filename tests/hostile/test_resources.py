"""A sandbox that is full of something still answers: PID 1 lives, its own memory stays small, nobody else starves."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.hostile.hostile_support import sandbox_with, supervisor_memory

from kinfold.sandbox.base import MIB, ExecRequest
from kinfold.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

SMALL = 128 * MIB


async def works(box: Sandbox) -> None:
    """A program runs, soon."""
    async with asyncio.timeout(10):
        assert (await box.exec(["true"], timeout=8)).exit_code == 0


async def test_execs_that_keep_much_output_do_not_fill_the_sandboxs_memory(own_state: Path) -> None:
    async with sandbox_with(own_state, memory_bytes=SMALL) as box:
        for _ in range(4):
            flood = "head -c 67108864 /dev/zero; sleep 300 > /dev/null 2>&1 & exit 0"
            result = await box.exec(flood, timeout=20, max_output_bytes=64 * MIB)
            assert (result.exit_code, result.stdout_total) == (0, 64 * MIB)
            assert result.truncated and len(result.stdout) >= MIB
        usage = await box.usage()
        assert usage.memory_bytes is not None and usage.memory_bytes < SMALL * 3 // 4
        assert usage.oom_kills == 0
        await works(box)


async def test_output_of_many_background_execs_is_bounded_and_new_ones_still_keep_theirs(own_state: Path) -> None:
    async with sandbox_with(own_state, memory_bytes=SMALL) as box:
        for _ in range(60):
            left = await box.exec("head -c 2000000 /dev/zero; sleep 300 > /dev/null 2>&1 & exit 0", timeout=20)
            assert (left.exit_code, left.stdout_total) == (0, 2_000_000)
        usage = await box.usage()
        assert usage.oom_kills == 0 and usage.memory_bytes is not None and usage.memory_bytes < SMALL * 3 // 4
        assert (await box.exec(["echo", "kept"])).stdout == b"kept\n"


async def test_programs_that_do_not_read_their_input_do_not_make_the_supervisor_large(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        before = supervisor_memory(box)
        for _ in range(60):
            await box.start(ExecRequest(command=["sleep", "300"], stdin=b"x" * 400_000, owner="run"))
        assert supervisor_memory(box) - before < 3000
        await works(box)


async def test_the_supervisor_outlives_processes_that_eat_all_memory_in_any_size(own_state: Path) -> None:
    async with sandbox_with(own_state, "eat", memory_bytes=SMALL) as box:
        fill = "head -c 16M /dev/zero > /tmp/x; head -c 16M /dev/zero > /dev/shm/x"
        await box.exec(fill, timeout=10)
        for kib in (100, 2000, 60000):
            eaten = await box.exec(["./eat", str(kib)], timeout=1.5, grace=0)
            assert eaten.survivors == 0
            await works(box)


async def test_a_flood_from_eight_programs_delays_nobody_for_long(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        before = supervisor_memory(box)
        floods = [asyncio.ensure_future(box.exec(["yes"], timeout=2, grace=0)) for _ in range(8)]
        await asyncio.sleep(0.5)
        for _ in range(10):
            began = time.monotonic()
            await works(box)
            assert time.monotonic() - began < 2
        assert supervisor_memory(box) - before < 3000
        for flood in floods:
            ended = await flood
            assert ended.ended_by == "timed_out" and len(ended.stdout) == MIB


async def test_readers_that_never_read_cost_a_bounded_queue(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        before = supervisor_memory(box)
        held = [await box.start(ExecRequest(command=["yes"], stream=True, owner="run")) for _ in range(8)]
        await asyncio.sleep(0.5)
        assert supervisor_memory(box) - before < 4000
        await works(box)
        await box.end("run", grace=0)
        assert len(held) == 8


async def test_the_supervisor_is_as_large_after_hundreds_of_execs_as_before(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        await asyncio.gather(*[box.exec(["true"]) for _ in range(50)])
        before = supervisor_memory(box)
        for _ in range(24):
            await asyncio.gather(*[box.exec(["true"]) for _ in range(25)])
        assert supervisor_memory(box) - before < 200
