"""A wall clock that jumps, for this process: no deadline moves, and no sandbox of a live owner is reaped."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from tests.docker.provider_support import docker_provider, spec

from kinfold.sandbox.base import ExecRequest
from kinfold.sandbox.docker.reaper import reap

YEAR = 365.0 * 86400


@pytest.mark.threat("F09")
@pytest.mark.anyio
@pytest.mark.parametrize("jump", [YEAR, -YEAR], ids=["forth", "back"])
async def test_a_year_more_or_less_on_the_wall_ends_neither_a_command_nor_a_sandbox(
    own_state: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    real = time.time
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec(ttl=3600.0)) as sandbox:
            process = await sandbox.start(ExecRequest(command="sleep 0.5; echo done", timeout=30))
            monkeypatch.setattr(time, "time", lambda: real() + jump)
            assert await reap(provider) == []
            assert (await process.wait()).stdout_text == "done\n"
            late = await sandbox.exec(["sleep", "30"], timeout=0.2)
            assert late.ended_by == "timed_out"
            assert late.duration < 10
            async with docker_provider(own_state) as other, await other.create(spec()) as second:
                assert (await second.exec(["true"])).exit_code == 0
            assert (await sandbox.exec("echo alive")).stdout_text == "alive\n"
            monkeypatch.undo()
        assert await provider.list() == []
