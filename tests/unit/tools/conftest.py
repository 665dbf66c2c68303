"""The benches on which tools are tried: one over a fake sandbox, one over real files and processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.tools.bench import Bench, FakeSandbox

from kinfold.sandbox.base import SandboxSpec
from kinfold.sandbox.local import LocalProvider
from kinfold.sandbox.sandbox import Sandbox


@pytest.fixture
def fake() -> FakeSandbox:
    """Files in memory."""
    return FakeSandbox()


@pytest.fixture
def bench(fake: FakeSandbox) -> Bench:
    """A fresh run over the fake sandbox."""
    return Bench(fake)


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    """Real files and real processes, by the supervisor as a plain child process."""
    workspace = tmp_path / "workspace"
    workspace.mkdir()
    spec = SandboxSpec(workspace=str(workspace))
    async with LocalProvider(tmp_path / "state") as provider, await provider.create(spec) as made:
        yield made


@pytest.fixture
def real(sandbox: Sandbox) -> Bench:
    """A fresh run over the real one."""
    return Bench(sandbox)


@pytest.fixture
def other(sandbox: Sandbox) -> Bench:
    """Another run in the same sandbox: a sibling."""
    return Bench(sandbox, run_id="run_2")
