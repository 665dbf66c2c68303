"""Output on its way: in order, by offset, at the reader's pace, and never more of it than was asked for."""

from __future__ import annotations

import os
from contextlib import aclosing
from pathlib import Path

import anyio
import pytest

from kinfold.sandbox import execution
from kinfold.sandbox.base import MIB, ExecRequest, Output
from kinfold.sandbox.sandbox import Sandbox

__all__ = [
    "test_a_flood_neither_slows_nor_fills_the_host",
    "test_a_program_can_be_followed_by_two",
    "test_a_reader_that_leaves_lets_the_program_run_on",
    "test_a_reader_that_sleeps_past_the_timeout_loses_neither_output_nor_sandbox",
    "test_a_slow_reader_pauses_the_program_and_loses_nothing",
    "test_bytes_that_are_no_text_arrive_as_they_are",
    "test_output_comes_while_the_program_runs",
    "test_output_is_streamed_in_order_with_offsets",
    "test_waiting_without_reading_keeps_head_and_tail",
]


def _joined(pieces: list[Output], stream: str) -> bytes:
    data = b""
    for piece in pieces:
        if piece.stream == stream:
            assert piece.offset == len(data), "a hole, or a repetition"
            data += piece.data
    return data


async def test_output_is_streamed_in_order_with_offsets(sandbox: Sandbox) -> None:
    script = "for i in $(seq 2000); do echo out $i; echo err $i >&2; done"
    process = await sandbox.start(ExecRequest(command=script, stream=True))
    pieces = [piece async for piece in process.output()]
    result = await process.wait()
    expected = "".join(f"out {number}\n" for number in range(1, 2001)).encode()
    assert _joined(pieces, "stdout") == result.stdout == expected
    assert _joined(pieces, "stderr") == result.stderr == expected.replace(b"out", b"err")


async def test_output_comes_while_the_program_runs(sandbox: Sandbox) -> None:
    process = await sandbox.start(ExecRequest(command=["cat"], stream=True, stdin_open=True, timeout=60))
    assert process.pid is not None
    async with aclosing(process.output()) as output:
        for word in (b"one", b"two", b"three"):
            await process.write(word)
            assert (await anext(output)).data == word
        await process.close_stdin()
        assert [piece async for piece in output] == []
    result = await process.wait()
    assert (result.exit_code, result.stdout) == (0, b"onetwothree")


async def test_a_slow_reader_pauses_the_program_and_loses_nothing(sandbox: Sandbox) -> None:
    total = 64 * MIB
    process = await sandbox.start(ExecRequest(command=f"head -c {total} /dev/zero", stream=True, timeout=120))
    async with aclosing(process.output()) as output:
        seen = len((await anext(output)).data)
        written = -1
        while written != (written := await _written(sandbox, process.id)):
            await anyio.sleep(0.3)
        assert written < 16 * MIB, "nobody read, yet the program went on writing"
        async for piece in output:
            assert piece.offset == seen
            seen += len(piece.data)
    assert seen == total
    assert (await process.wait()).stdout_total == total


async def _written(sandbox: Sandbox, exec_id: str) -> int:
    return next(info.stdout_total for info in await sandbox.execs() if info.id == exec_id)


async def test_a_reader_that_leaves_lets_the_program_run_on(sandbox: Sandbox) -> None:
    process = await sandbox.start(ExecRequest(command="head -c 40000000 /dev/zero; echo end", stream=True, timeout=60))
    async with aclosing(process.output()) as output:
        await anext(output)
    result = await process.wait()
    assert (result.exit_code, result.stdout_total) == (0, 40_000_004)
    assert result.stdout.endswith(b"end\n")


async def test_a_reader_that_sleeps_past_the_timeout_loses_neither_output_nor_sandbox(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "KILL_MARGIN", 0.5)
    process = await sandbox.start(ExecRequest(command=["yes"], stream=True, timeout=0.5, grace=0.1))
    seen = 0
    async with aclosing(process.output()) as output:
        async for piece in output:
            if not seen:
                await anyio.sleep(4)
            assert piece.offset == seen
            seen += len(piece.data)
    result = await process.wait()
    assert (result.ended_by, result.survivors) == ("timed_out", 0)
    assert result.stdout_total == seen
    assert (await sandbox.exec(["echo", "well"])).stdout == b"well\n"


async def test_waiting_without_reading_keeps_head_and_tail(sandbox: Sandbox) -> None:
    request = ExecRequest(command="seq 1000000", stream=True, max_output_bytes=1001, timeout=60)
    result = await (await sandbox.start(request)).wait()
    everything = "".join(f"{number}\n" for number in range(1, 1_000_001)).encode()
    assert result.stdout == everything[:501] + everything[-500:]
    assert (result.stdout_head_bytes, result.stdout_total) == (501, len(everything))


async def test_a_program_can_be_followed_by_two(sandbox: Sandbox) -> None:
    process = await sandbox.start(ExecRequest(command=["cat"], stream=True, stdin_open=True, timeout=60))
    await process.write(b"first ")
    second = await sandbox.attach(process.id, (0, 0))
    async with aclosing(second.output()) as output:
        assert (await anext(output)).data.startswith(b"first")
        await process.write(b"second")
        await process.close_stdin()
        rest = b"".join([piece.data async for piece in output])
    assert rest.endswith(b"second")
    assert (await process.wait()).stdout == b"first second"


async def test_bytes_that_are_no_text_arrive_as_they_are(sandbox: Sandbox) -> None:
    program = "import os; os.write(1, bytes(range(256)) * 64)"
    result = await sandbox.exec(["python3", "-c", program])
    assert result.stdout == bytes(range(256)) * 64
    assert "\N{REPLACEMENT CHARACTER}" in result.stdout_text


async def test_a_flood_neither_slows_nor_fills_the_host(sandbox: Sandbox) -> None:
    before = _resident()
    result = await sandbox.exec("head -c 1000000000 /dev/zero", timeout=100)
    assert (result.exit_code, result.stdout_total, len(result.stdout)) == (0, 1_000_000_000, MIB)
    assert _resident() - before < 32 * MIB


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
