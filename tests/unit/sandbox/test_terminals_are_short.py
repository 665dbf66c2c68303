"""A supervisor that has no descriptor left for a terminal says so, and has terminals again when it has."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from kinfold.errors import SandboxError
from kinfold.sandbox.base import ExecRequest, SandboxSpec, TerminalSize
from kinfold.sandbox.local import LocalProvider

pytestmark = pytest.mark.anyio


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may look at a supervisor's descriptors and limit them")
async def test_an_exec_without_a_descriptor_left_for_its_terminal_is_refused_as_busy(own_state: Path) -> None:
    request = ExecRequest(command=["tty"], tty=TerminalSize(), timeout=30)
    async with LocalProvider(own_state) as provider, await provider.create(SandboxSpec(keep=0)) as sandbox:
        assert (await sandbox.run(request)).stdout.startswith(b"/dev/pts/")
        supervisor = int(sandbox.ref.handle)
        soft, hard = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
        for spare in (1, 2, 3, 4):  # each step of opening a terminal is the one that fails once
            lowest = _free_descriptor(supervisor, spare)
            resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (lowest, hard))
            with pytest.raises(SandboxError, match="no descriptors, or no terminals, are left") as caught:
                await sandbox.run(request)
            assert caught.value.code == "busy"
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (soft, hard))
        assert (await sandbox.run(request)).exit_code == 0


def _free_descriptor(pid: int, number: int) -> int:
    """The limit under which `number` descriptors can still be opened there."""
    used = {int(name) for name in os.listdir(f"/proc/{pid}/fd")}
    free = [descriptor for descriptor in range(10_000) if descriptor not in used]
    return free[number - 1] + 1
