"""Without an engine the provider says so at once, and has left nothing behind."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kinfold.errors import ConfigError, EngineUnavailable
from kinfold.sandbox.base import SandboxRef, SandboxSpec
from kinfold.sandbox.docker import DockerProvider
from kinfold.sandbox.docker.reaper import reap


@pytest.mark.anyio
async def test_no_engine_is_one_error_and_no_trace(tmp_path: Path) -> None:
    state = tmp_path / "state"
    async with DockerProvider(host=f"unix://{tmp_path}/none.sock", state_dir=state) as provider:
        ref = SandboxRef(id="sbx_00000000000000a1", provider="docker")
        for act in (provider.create(SandboxSpec()), provider.list(), provider.probe(), provider.destroy(ref)):
            with pytest.raises(EngineUnavailable):
                await act
        with pytest.raises(EngineUnavailable):
            await reap(provider)
    assert [name for name in os.listdir(state) if name != "instance"] == []


@pytest.mark.anyio
async def test_a_refused_spec_asks_no_engine(tmp_path: Path) -> None:
    async with DockerProvider(host=f"unix://{tmp_path}/none.sock", state_dir=tmp_path / "state") as provider:
        with pytest.raises(ConfigError):
            await provider.create(SandboxSpec(user="0"))
    assert not (tmp_path / "state").exists()
