"""What is kept, counted and ended: head and tail exact, totals true, limits as said."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import pytest

from kinfold.sandbox.base import MIB, ExecRequest, ExecResult, FileStat, Provider, SandboxSpec
from kinfold.sandbox.sandbox import Sandbox

__all__ = [
    "test_a_program_out_of_memory_says_so_and_harms_nobody",
    "test_a_total_of_output_can_end_a_program",
    "test_head_and_tail_are_exact",
    "test_nothing_is_lost_up_to_the_bound",
    "test_pausing_stops_programs_and_their_clocks",
    "test_usage_is_told",
    "test_what_nobody_uses_stands_still_until_somebody_does",
]

EVERYTHING = "".join(f"{number}\n" for number in range(1, 20_001)).encode()


@pytest.mark.parametrize("keep", [0, 1, 2, 1000, 1001, len(EVERYTHING) - 1])
async def test_head_and_tail_are_exact(sandbox: Sandbox, keep: int) -> None:
    result = await sandbox.exec("seq 20000; seq 20000 >&2", max_output_bytes=keep)
    head = (keep + 1) // 2
    tail = keep - head
    expected = EVERYTHING[:head] + (EVERYTHING[-tail:] if tail else b"")
    assert (result.stdout, result.stderr) == (expected, expected)
    assert (result.stdout_head_bytes, result.stderr_head_bytes) == (head, head)
    assert result.stdout_total == result.stderr_total == len(EVERYTHING)
    assert result.truncated


async def test_nothing_is_lost_up_to_the_bound(sandbox: Sandbox) -> None:
    result = await sandbox.exec("seq 20000", max_output_bytes=len(EVERYTHING))
    assert (result.stdout, result.truncated) == (EVERYTHING, False)
    assert result.stdout_head_bytes == len(EVERYTHING)


async def test_a_total_of_output_can_end_a_program(sandbox: Sandbox) -> None:
    result = await sandbox.run(ExecRequest(command=["yes"], output_limit=8 * MIB, timeout=60, grace=0.2))
    assert result.ended_by == "output_limited"
    assert result.stdout_total >= 8 * MIB
    assert result.survivors == 0


async def test_usage_is_told(sandbox: Sandbox) -> None:
    usage = await sandbox.usage()
    assert usage.execs_running == 0
    assert usage.cpu_seconds is None or usage.cpu_seconds > 0


async def test_pausing_stops_programs_and_their_clocks(own_sandbox: Sandbox) -> None:
    script = "echo up; while :; do echo tick; sleep 0.02; done"
    process = await own_sandbox.start(ExecRequest(command=script, stream=True))
    stream = process.output()
    assert (await anext(stream)).data.startswith(b"up")
    await own_sandbox.pause()
    paused = await _total(own_sandbox, process.id)
    assert (await own_sandbox.stat(["."]))[0] is not None
    await own_sandbox.write("while-paused", b"x")
    assert await _total(own_sandbox, process.id) <= paused + 64
    await own_sandbox.resume()
    seen = 0
    while seen < paused + 200:
        piece = await anext(stream)
        seen = piece.offset + len(piece.data)
    await process.kill(grace=0)
    await stream.aclose()


async def test_what_nobody_uses_stands_still_until_somebody_does(
    provider: Provider, make_spec: Callable[..., SandboxSpec]
) -> None:
    async with await provider.create(make_spec(idle_pause=0.4)) as sandbox:
        await sandbox.exec("(while :; do echo tick >> ticks; sleep 0.01; done) > /dev/null 2>&1 &")
        await _paused(sandbox)
        assert not {process.state for process in (await sandbox.processes()).processes} & {"R", "S"}  # a look is no use
        results: list[ExecResult] = []

        async def use() -> None:
            results.append(await sandbox.exec(["true"], timeout=5))

        async with anyio.create_task_group() as group:
            for _ in range(8):
                group.start_soon(use)
        assert [result.exit_code for result in results] == [0] * 8
        ticks, rested = await _size(sandbox, "ticks"), (await sandbox.usage()).paused_seconds
        assert (await sandbox.exec(["sleep", "1.5"], timeout=5)).exit_code == 0
        assert (await sandbox.usage()).paused_seconds == rested  # somebody waits, however long
        assert await _size(sandbox, "ticks") > ticks
        await _paused(sandbox)
        await sandbox.pause()
        await sandbox.write("w", b"x")
        assert (await sandbox.usage()).paused  # what somebody asked for ends when they say so
        await sandbox.resume()
        assert not (await sandbox.usage()).paused


async def _paused(sandbox: Sandbox) -> None:
    with anyio.fail_after(30):
        while not (await sandbox.usage()).paused:
            await anyio.sleep(0.05)


async def _size(sandbox: Sandbox, path: str) -> int:
    [found] = await sandbox.stat([path])
    assert isinstance(found, FileStat)
    return found.size


async def _total(sandbox: Sandbox, exec_id: str) -> int:
    return next(info.stdout_total for info in await sandbox.execs() if info.id == exec_id)


@pytest.mark.needs_cgroup
async def test_a_program_out_of_memory_says_so_and_harms_nobody(own_sandbox: Sandbox) -> None:
    neighbour = await own_sandbox.start(ExecRequest(command=["cat"], stdin_open=True, timeout=100))
    eater = "x = []\nwhile True: x.append(bytearray(16 << 20))"
    result = await own_sandbox.exec(["python3", "-c", eater], timeout=100)
    assert (result.ended_by, result.exit_code) == ("oom_killed", None)
    assert result.oom_kills >= 1
    await neighbour.write(b"alive")
    await neighbour.close_stdin()
    assert (await neighbour.wait()).stdout == b"alive"
