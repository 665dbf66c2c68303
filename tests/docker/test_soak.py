"""Ten thousand commands in one sandbox leave it, and this process, as they were: descriptors, threads and memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.docker.provider_support import docker_provider, engine_api, spec

from kinfold.sandbox.docker.provider import ChannelKind
from kinfold.sandbox.sandbox import Sandbox

AT_ONCE = 8
SLACK = {"host_fds": 2, "host_threads": 1, "host_kib": 8192, "inside_fds": 2, "pid1_kib": 512, "shims_kib": 1024}
"""By how much each may be more at the end than after the first commands, however many they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """What is held at one moment; memory is what is resident, in KiB."""

    host_fds: int
    host_threads: int
    host_kib: int
    inside_fds: int
    """Of PID 1."""
    pid1_kib: int
    shims_kib: int
    processes: int
    """In the container."""


def footprint(sandbox: Sandbox) -> Footprint:
    """As the kernel of this machine sees it."""
    with engine_api() as api:
        first = int(api.inspect_container(sandbox.ref.handle)["State"]["Pid"])
        rows = api.top(sandbox.ref.handle, ps_args="-eo pid,args")["Processes"]
    shims = [int(row[0]) for row in rows if row[1].split()[1:2] == ["shim"]]
    return Footprint(
        host_fds=_descriptors(os.getpid()),
        host_threads=threading.active_count(),
        host_kib=_resident(os.getpid()),
        inside_fds=_descriptors(first),
        pid1_kib=_resident(first),
        shims_kib=max(map(_resident, shims), default=0),
        processes=len(rows),
    )


def _descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def _resident(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError(f"process {pid} is gone")


async def _execs(sandbox: Sandbox, count: int) -> None:
    """Some at once, of several kinds: silent, talking, reading, failing, leaving a child."""
    kinds: Sequence[tuple[Any, bytes | None, int]] = (
        (["true"], None, 0),
        (["echo", "x" * 2000], None, 0),
        (["cat"], b"y" * 5000, 0),
        (["no-such-program"], None, 127),
        ("sleep 0.01 & exit 3", None, 3),
    )
    turns = iter(range(count))

    async def work() -> None:
        for turn in turns:
            command, stdin, code = kinds[turn % len(kinds)]
            assert (await sandbox.exec(command, stdin=stdin)).exit_code == code

    async with anyio.create_task_group() as group:
        for _ in range(AT_ONCE):
            group.start_soon(work)


def grown(before: Footprint, after: Footprint) -> dict[str, tuple[int, int]]:
    """What grew by more than its slack."""
    names = [field.name for field in fields(Footprint) if field.name in SLACK]
    pairs = {name: (getattr(before, name), getattr(after, name)) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[1] - pair[0] > SLACK[name]}


@pytest.mark.threat("F09")
@pytest.mark.anyio
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can look at the container's processes")
@pytest.mark.parametrize(
    ("count", "channel"),
    [
        (500, "auto"),
        pytest.param(10_000, "auto", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        pytest.param(10_000, "engine", marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
    ],
)
async def test_commands_leave_no_descriptor_thread_or_memory_behind(
    own_state: Path, count: int, channel: ChannelKind, record_property: Any
) -> None:
    async with docker_provider(own_state, channel=channel) as provider, await provider.create(spec()) as sandbox:
        await _execs(sandbox, 200)
        before = footprint(sandbox)
        await _execs(sandbox, count)
        await anyio.sleep(0.5)  # what the last ones left in the background ends by itself
        after = footprint(sandbox)
        record_property("before", before)
        record_property("after", after)
        assert grown(before, after) == {}
        assert after.processes <= before.processes
