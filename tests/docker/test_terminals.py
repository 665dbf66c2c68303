"""Terminals where the image brings nothing, and where the container has none."""

from __future__ import annotations

from pathlib import Path

import anyio.to_thread
import pytest
from tests.docker.provider_support import docker_provider, engine_api, spec

from kinfold.errors import SandboxError
from kinfold.sandbox.base import ExecRequest, TerminalSize

pytestmark = pytest.mark.anyio


async def test_a_sandbox_that_lost_its_terminals_says_so_and_runs_programs_without(own_state: Path) -> None:
    request = ExecRequest(command=["tty"], tty=TerminalSize(), timeout=30)
    async with docker_provider(own_state) as provider, await provider.create(spec()) as sandbox:
        assert (await sandbox.run(request)).stdout == b"/dev/pts/0\r\n"
        await anyio.to_thread.run_sync(_remove_terminals, sandbox.ref.handle)
        with pytest.raises(SandboxError, match="has no terminals") as caught:
            await sandbox.run(request)
        assert caught.value.code == "unsupported"
        assert "no `tty`" in caught.value.hint
        assert (await sandbox.exec(["tty"])).stdout == b"not a tty\n"


def _remove_terminals(container: str) -> None:
    with engine_api() as api:
        made = api.exec_create(container, ["rm", "/dev/ptmx"], user="0:0")
        api.exec_start(made)
        assert api.exec_inspect(made)["ExitCode"] == 0
