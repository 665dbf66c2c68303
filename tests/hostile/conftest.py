"""One sandbox for all the attacks of a module that leave it as it was, and a directory in it for each."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator

import pytest
from tests.hostile.hostile_support import sandbox_with

from kinfold.sandbox.sandbox import Sandbox


@pytest.fixture(scope="module")
async def box(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Sandbox]:
    """Holds the racers `swap` and `resize` in its workspace."""
    state = tmp_path_factory.mktemp("state")
    state.chmod(0o700)
    async with sandbox_with(state, "swap", "resize", disk_inodes=1_020_000) as made:
        yield made


@pytest.fixture
async def folder(box: Sandbox) -> AsyncIterator[str]:
    """An empty directory in that sandbox's workspace."""
    name = f"t-{secrets.token_hex(4)}"
    await box.make_dir(name)
    yield name
    await box.remove(name, recursive=True)
