"""What the attacks share: a sandbox of the product's own making, racers compiled on the host, a look from outside."""

from __future__ import annotations

import functools
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.docker.provider_support import docker_provider, engine_api, spec

from kinfold.sandbox.base import MIB, WORKSPACE, Limits
from kinfold.sandbox.sandbox import Sandbox

RACERS = Path(__file__).parent / "racers"
AGENT = 1000

racing = pytest.mark.parametrize(
    "share", [pytest.param(0.1, id="a tenth"), pytest.param(1.0, id="all", marks=pytest.mark.slow)]
)
"""A race is lost by chance: every change runs a tenth of its passes, `make test-slow` all of them."""


@functools.cache
def racer(name: str) -> bytes:
    """The static program made of racers/NAME.c."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / name
        source = str(RACERS / f"{name}.c")
        subprocess.run(["cc", "-static", "-O1", "-pthread", "-o", str(program), source], check=True, timeout=60)
        return program.read_bytes()


@asynccontextmanager
async def sandbox_with(state: Path, *racers: str, **limits: Any) -> AsyncIterator[Sandbox]:
    """A sandbox with these racers in its workspace. Small, so that a hole shows soon."""
    small = {"memory_bytes": 256 * MIB, "pids": 256, "tmp_bytes": 16 * MIB, "shm_bytes": 16 * MIB}
    wanted = spec(limits=Limits.model_validate(small | limits))
    async with docker_provider(state) as provider, await provider.create(wanted) as sandbox:
        for name in racers:
            await sandbox.write(name, racer(name), mode=0o755)
        yield sandbox


def workspace_on_the_host(sandbox: Sandbox) -> Path:
    """Where a made workspace lies: an attack that needs root may lay something in there from outside."""
    with engine_api() as api:
        mounts = api.inspect_container(sandbox.ref.handle)["Mounts"]
    return next(Path(mount["Source"]) for mount in mounts if mount["Destination"] == WORKSPACE)


def processes(sandbox: Sandbox, uid: int = AGENT) -> list[str]:
    """The command lines of a uid's processes in the container, as the engine and the host's kernel see them."""
    with engine_api() as api:
        seen = api.top(sandbox.ref.handle, ps_args="-eo pid,uid,args")
    return [line[2] for line in seen["Processes"] if int(line[1]) == uid]


def supervisor_memory(sandbox: Sandbox) -> int:
    """What PID 1 holds of its own, in KiB, and what the OOM killer would count."""
    with engine_api() as api:
        pid = api.inspect_container(sandbox.ref.handle)["State"]["Pid"]
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    raise AssertionError("PID 1 has no memory: it is gone")
