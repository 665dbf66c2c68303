"""Whatever a sandbox pours out, the host's memory stays flat: each flood may add 32 MB at its height, and no more."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.hostile.hostile_support import sandbox_with

from kinfold.sandbox.base import MIB, ExecRequest
from kinfold.sandbox.sandbox import Sandbox

ALLOWED = 32 * MIB


def _memory(word: str) -> int:
    """This process's resident memory (VmRSS) or the highest since the last reset (VmHWM), in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{word}:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"no {word} in /proc/self/status")


async def _at_once(count: int, act: Callable[[int], Coroutine[Any, Any, None]]) -> None:
    async with anyio.create_task_group() as group:
        for number in range(count):
            group.start_soon(act, number)


async def _output(sandbox: Sandbox) -> None:
    """Eight programs that print 100 MB each, all kept to their budget."""

    async def flood(_: int) -> None:
        result = await sandbox.exec("yes | head -c 100000000", timeout=120)
        assert result.stdout_total == 100_000_000
        assert len(result.stdout) == MIB

    await _at_once(8, flood)


async def _frames(sandbox: Sandbox) -> None:
    """One reader of 200 MB in as many frames as they come in, and one that never reads."""
    lazy = await sandbox.start(ExecRequest(command="yes", stream=True))
    process = await sandbox.start(ExecRequest(command="yes | head -c 200000000", stream=True))
    total = 0
    async for piece in process.output():
        total += len(piece.data)
    assert total == 200_000_000
    await lazy.kill()


async def _listing(sandbox: Sandbox) -> None:
    """A directory of 100,000 names, listed up to a bound, twenty times."""
    for _ in range(20):
        listing = await sandbox.list("many", max_entries=5_000)
        assert (listing.truncated, len(listing.entries)) == (True, 5_000)


async def _requests(sandbox: Sandbox) -> None:
    """3,000 stats, reads and writes that are asked for at once."""

    async def ask(number: int) -> None:
        if number % 3 == 0:
            await sandbox.write(f"w{number % 50}", b"x" * 4096)
        elif number % 3 == 1:
            await sandbox.read("small")
        else:
            await sandbox.stat(["small", "../x"])

    await _at_once(3_000, ask)


async def _execs(sandbox: Sandbox) -> None:
    """2,000 programs, a hundred at a time."""

    async def run(_: int) -> None:
        assert (await sandbox.exec("echo done")).stdout == b"done\n"

    for _ in range(20):
        await _at_once(100, run)


@pytest.mark.anyio
@pytest.mark.docker
@pytest.mark.slow
@pytest.mark.parametrize("flood", [_output, _frames, _listing, _requests, _execs])
async def test_the_hosts_memory_stays_flat_under_a_flood(
    own_state: Path, flood: Callable[[Sandbox], Awaitable[None]]
) -> None:
    async with sandbox_with(own_state, pids=400) as sandbox:
        await sandbox.write("small", b"x" * 4096)
        await sandbox.exec("mkdir many && cd many && seq 100000 | xargs touch", timeout=60)
        await sandbox.exec("yes | head -c 4000000")  # what the first output needs once
        await sandbox.list("many", max_entries=100)
        before = _memory("VmRSS")
        Path("/proc/self/clear_refs").write_text("5")
        await flood(sandbox)
        assert _memory("VmHWM") - before < ALLOWED
