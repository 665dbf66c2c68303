"""A broken channel is not a failed command: execs run on, results are whole, nothing is done twice."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import NamedTuple

import anyio
import anyio.lowlevel
import pytest

from kinfold.errors import PathError, SandboxLost
from kinfold.sandbox.base import MIB, ExecRequest, ExecResult, Provider
from kinfold.sandbox.sandbox import Sandbox
from kinfold.testing.contract.cutting import CuttableProvider
from kinfold.testing.contract.looking import eventually, exists

__all__ = [
    "cuttable",
    "test_a_cut_channel_leaves_a_running_program_alone",
    "test_a_cut_during_input_loses_no_byte",
    "test_a_cut_during_streaming_loses_no_output",
    "test_a_cut_while_a_file_streams_goes_on_where_it_was",
    "test_a_program_that_ended_while_nobody_listened_has_its_result",
    "test_a_write_is_whole_or_reported_after_a_cut",
    "test_reading_survives_cuts",
    "test_two_channels_do_not_disturb_each_other",
    "test_what_cannot_be_reached_again_is_lost_in_bounded_time",
    "test_who_only_looked_on_takes_no_record_away",
]


class Cuttable(NamedTuple):
    """A sandbox, and what cuts its channel."""

    sandbox: Sandbox
    provider: CuttableProvider

    async def cut(self) -> None:
        """Cut the channel, once it is there."""
        await self.provider.cut()


@pytest.fixture
async def cuttable(provider: Provider, sandbox: Sandbox) -> AsyncIterator[Cuttable]:
    """The module's container through a channel that can be cut."""
    wrapped = CuttableProvider(provider)
    async with await wrapped.sandbox(sandbox.ref) as through:
        yield Cuttable(through, wrapped)
    wrapped.forget()


async def _run_and_cut(cuttable: Cuttable, request: ExecRequest, marker: str, times: int) -> ExecResult:
    found: list[ExecResult] = []

    async def call() -> None:
        found.append(await cuttable.sandbox.run(request))

    async with anyio.create_task_group() as group:
        group.start_soon(call)
        assert await eventually(lambda: exists(cuttable.sandbox, marker))
        for _ in range(times):
            await cuttable.cut()
            assert await exists(cuttable.sandbox, marker)
        await cuttable.sandbox.write(f"{marker}-go", b"")
    return found[0]


async def test_a_cut_channel_leaves_a_running_program_alone(cuttable: Cuttable, folder: str) -> None:
    marker = f"{folder}/up"
    script = (
        f"echo one >> {folder}/runs; echo before; touch {marker}; "
        f"while [ ! -e {marker}-go ]; do sleep 0.02; done; echo after; exit 5"
    )
    result = await _run_and_cut(cuttable, ExecRequest(command=script, timeout=60), marker, 3)
    assert (result.ended_by, result.exit_code, result.stdout) == ("exited", 5, b"before\nafter\n")
    assert await cuttable.sandbox.read(f"{folder}/runs") == b"one\n", "it was run twice"
    assert cuttable.provider.opened == 4


async def test_a_program_that_ended_while_nobody_listened_has_its_result(
    cuttable: Cuttable, sandbox: Sandbox, folder: str
) -> None:
    go = f"{folder}/go"
    script = f"while [ ! -e {go} ]; do sleep 0.02; done; seq 100000; exit 4"
    process = await cuttable.sandbox.start(ExecRequest(command=script, timeout=60))

    async def ended() -> bool:
        return any(info.id == process.id and info.state == "ended" for info in await sandbox.execs())

    await cuttable.cut()
    await sandbox.write(go, b"")
    assert await eventually(ended)
    result = await process.wait()
    assert (result.ended_by, result.exit_code) == ("exited", 4)
    assert result.stdout == "".join(f"{number}\n" for number in range(1, 100_001)).encode()


async def test_a_cut_during_streaming_loses_no_output(cuttable: Cuttable) -> None:
    request = ExecRequest(command="for i in $(seq 300); do seq 200; done", stream=True, timeout=100)
    process = await cuttable.sandbox.start(request)
    seen = bytearray()
    cuts = 0
    async with aclosing(process.output()) as output:
        async for piece in output:
            assert piece.offset == len(seen)
            seen += piece.data
            if cuts < 4 and len(seen) > cuts * 40_000:
                cuts += 1
                await cuttable.cut()
    expected = "".join(f"{number}\n" for number in range(1, 201)).encode() * 300
    assert bytes(seen) == expected
    assert (await process.wait()).stdout_total == len(expected)


async def test_a_cut_during_input_loses_no_byte(cuttable: Cuttable) -> None:
    data = bytes(range(256)) * 4 * 1024 * 8
    process = await cuttable.sandbox.start(ExecRequest(command=["sha256sum"], stdin_open=True, timeout=100))
    step = len(data) // 8
    for start in range(0, len(data), step):
        await process.write(data[start : start + step])
        await cuttable.cut()
    await process.close_stdin()
    result = await process.wait()
    assert result.stdout_text.split()[0] == hashlib.sha256(data).hexdigest()


async def test_reading_survives_cuts(cuttable: Cuttable, folder: str) -> None:
    sandbox = cuttable.sandbox
    await sandbox.write(f"{folder}/a", b"content")
    for _ in range(3):
        await cuttable.cut()
        assert await sandbox.read(f"{folder}/a") == b"content"
        await cuttable.cut()
        assert not isinstance((await sandbox.stat([f"{folder}/a"]))[0], PathError)
        await cuttable.cut()
        assert len((await sandbox.list(folder)).entries) == 1


async def test_a_cut_while_a_file_streams_goes_on_where_it_was(cuttable: Cuttable, folder: str) -> None:
    data = bytes(range(251)) * 100_000
    await cuttable.sandbox.write(f"{folder}/big", data)
    got = bytearray()
    async with aclosing(cuttable.sandbox.read_stream(f"{folder}/big")) as pieces:
        async for piece in pieces:
            got += piece
            if cuttable.provider.opened == 1:
                await cuttable.cut()
    assert bytes(got) == data
    assert cuttable.provider.opened == 2


async def test_a_write_is_whole_or_reported_after_a_cut(cuttable: Cuttable, folder: str) -> None:
    old, new = b"o" * 1000, b"n" * 30 * MIB
    for number in range(4):
        path = f"{folder}/{number}"
        await cuttable.sandbox.write(path, old)
        told = "done"
        async with anyio.create_task_group() as group:
            group.start_soon(_cut_soon, cuttable, number)
            try:
                await cuttable.sandbox.write(path, new)
            except PathError as error:
                assert error.reason == "conflict"
                told = "unknown"
        found = await cuttable.sandbox.read(path)
        assert found == new or (told == "unknown" and found == old)
        assert [entry.path for entry in (await cuttable.sandbox.list(folder)).entries][number:] == [
            f"/workspace/{path}"
        ]


async def _cut_soon(cuttable: Cuttable, turns: int) -> None:
    for _ in range(turns * 3):
        await anyio.lowlevel.checkpoint()
    await cuttable.cut()


async def test_two_channels_do_not_disturb_each_other(cuttable: Cuttable, sandbox: Sandbox) -> None:
    stalled = await cuttable.sandbox.start(ExecRequest(command=["yes"], stream=True))
    assert (await sandbox.exec(["echo", "quick"], timeout=30)).stdout == b"quick\n"
    await stalled.kill(grace=0)


async def test_who_only_looked_on_takes_no_record_away(cuttable: Cuttable, sandbox: Sandbox, folder: str) -> None:
    script = f"while [ ! -e {folder}/go ]; do sleep 0.02; done; echo over; exit 4"
    started = await cuttable.sandbox.start(ExecRequest(command=script, timeout=60))
    watching = await sandbox.attach(started.id)
    await cuttable.sandbox.aclose()
    await sandbox.write(f"{folder}/go", b"")
    assert (await watching.wait()).exit_code == 4
    assert started.id in {info.id for info in await sandbox.execs()}  # a request, by which what is forgotten is told
    assert (await sandbox.kept(started.id)).data == b"over\n"
    assert (await (await sandbox.attach(started.id)).wait()).exit_code == 4


async def test_what_cannot_be_reached_again_is_lost_in_bounded_time(cuttable: Cuttable) -> None:
    cuttable.provider.refusing = True
    await cuttable.cut()
    with anyio.fail_after(60), pytest.raises(SandboxLost) as caught:
        await cuttable.sandbox.exec(["true"])
    assert "refused" in caught.value.message
    cuttable.provider.refusing = False
    with pytest.raises(SandboxLost):
        await cuttable.sandbox.read("x")
