"""A local sandbox ends at its time, too; and another's pause makes no exec late."""

from __future__ import annotations

import time
from pathlib import Path

import anyio
import pytest

from kinfold.errors import SandboxLost
from kinfold.sandbox import execution
from kinfold.sandbox.base import ExecRequest, SandboxSpec
from kinfold.sandbox.local import LocalProvider
from kinfold.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.anyio


async def _until_lost(sandbox: Sandbox) -> str:
    """Look at it, which is no use of it, until it is gone; the reason."""
    with anyio.fail_after(20):
        while True:
            try:
                await sandbox.usage()
            except SandboxLost as lost:
                return lost.message
            await anyio.sleep(0.05)


async def test_a_ttl_ends_a_sandbox_that_is_in_use(own_state: Path) -> None:
    async with LocalProvider(own_state) as provider, await provider.create(SandboxSpec(ttl=0.5, keep=0)) as sandbox:
        process = await sandbox.start(ExecRequest(command=["sleep", "60"]))
        assert "its ttl of 0.5 s is over" in await _until_lost(sandbox)
        with pytest.raises(SandboxLost, match=r"its ttl of 0.*s is over"):
            await process.wait()
        with pytest.raises(SandboxLost, match=r"its ttl of 0.*s is over"):
            await provider.connect(sandbox.ref)
        assert await provider.list() == []


async def test_an_idle_ttl_ends_one_that_is_only_looked_at_and_no_other(own_state: Path) -> None:
    spec = SandboxSpec(idle_ttl=0.6, keep=0)
    async with LocalProvider(own_state) as provider, await provider.create(spec) as sandbox:
        async with await provider.connect(sandbox.ref) as other:
            started = time.monotonic()
            while time.monotonic() - started < 1.5:  # used through the other door alone
                await other.exec(["true"])
                await anyio.sleep(0.05)
        await sandbox.exec(["true"])
        assert "unused for its idle_ttl of 0.6 s" in await _until_lost(sandbox)


async def test_a_pause_by_another_process_makes_no_exec_late(own_state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "KILL_MARGIN", 0.2)
    async with LocalProvider(own_state) as provider, await provider.create(SandboxSpec(keep=0)) as sandbox:
        request = ExecRequest(command="sleep 0.3; echo over", timeout=0.7, grace=0.1)
        early = await sandbox.start(request)
        async with await provider.connect(sandbox.ref) as other:
            await other.pause()
            assert (await sandbox.usage()).paused
            await anyio.sleep(1.5)
            await other.resume()
        result = await early.wait()
        assert (result.ended_by, result.stdout) == ("exited", b"over\n")
        use = await sandbox.usage()
        assert not use.paused
        assert use.paused_seconds >= 1.5
        late = await sandbox.run(ExecRequest(command=["sleep", "60"], timeout=0.2, grace=0.1))
        assert late.ended_by == "timed_out"
