"""Standard input: all of it arrives, its end too, and nobody hangs where it is not read."""

from __future__ import annotations

import hashlib
import os

import pytest

from kinfold.errors import NotFound
from kinfold.sandbox.base import MIB, ExecRequest
from kinfold.sandbox.sandbox import Sandbox


async def test_without_input_a_reader_sees_the_end_at_once(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(["cat"], timeout=30)).stdout == b""
    assert (await sandbox.exec(["cat"], stdin=b"", timeout=30)).ended_by == "exited"


async def test_fifty_mebibytes_pass_through_cat(sandbox: Sandbox) -> None:
    data = os.urandom(MIB) * 50
    result = await sandbox.exec(["cat"], stdin=data, max_output_bytes=64 * MIB, timeout=100)
    assert (result.exit_code, result.stdout_total, result.truncated) == (0, len(data), False)
    assert hashlib.sha256(result.stdout).digest() == hashlib.sha256(data).digest()


async def test_input_that_nobody_reads_holds_nobody_up(sandbox: Sandbox) -> None:
    assert (await sandbox.exec(["true"], stdin=bytes(10 * MIB), timeout=60)).exit_code == 0
    assert (await sandbox.exec(["head", "-c", "3"], stdin=b"abc" * MIB, timeout=60)).stdout == b"abc"


async def test_input_is_paused_while_the_program_does_not_read(sandbox: Sandbox) -> None:
    request = ExecRequest(command="read line; cat | wc -c", stdin_open=True, timeout=60)
    process = await sandbox.start(request)
    await process.write(b"go\n")
    for _ in range(20):
        await process.write(bytes(MIB))
    await process.close_stdin()
    assert (await process.wait()).stdout.strip() == str(20 * MIB).encode()


async def test_writing_to_a_program_that_ended_is_an_error_not_a_hang(sandbox: Sandbox) -> None:
    process = await sandbox.start(ExecRequest(command=["true"], stdin_open=True))
    await process.wait()
    with pytest.raises(NotFound):
        await process.write(b"x")


async def test_writing_to_a_program_that_will_not_read_ends_with_it(sandbox: Sandbox) -> None:
    process = await sandbox.start(ExecRequest(command=["sleep", "1"], stdin_open=True, timeout=60))
    with pytest.raises(NotFound):
        await process.write(bytes(20 * MIB))
    assert (await process.wait()).exit_code == 0
