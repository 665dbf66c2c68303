"""The sandboxes that the contract's tests are given."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable

import pytest

from kinfold.sandbox.base import Provider, SandboxSpec
from kinfold.sandbox.sandbox import Sandbox

__all__ = ["enough_abilities", "folder", "own_sandbox", "sandbox", "token"]


@pytest.fixture(scope="module")
async def sandbox(provider: Provider, make_spec: Callable[..., SandboxSpec]) -> AsyncIterator[Sandbox]:
    """One sandbox for all tests of a module that leave it as it was."""
    async with await provider.create(make_spec(keep=0)) as made:
        yield made


@pytest.fixture
async def own_sandbox(provider: Provider, make_spec: Callable[..., SandboxSpec]) -> AsyncIterator[Sandbox]:
    """A fresh sandbox, for a test that does something to it."""
    async with await provider.create(make_spec(keep=0)) as made:
        yield made


@pytest.fixture
async def folder(sandbox: Sandbox) -> str:
    """An empty directory of this test's own; relative to the workspace."""
    name = f"t-{secrets.token_hex(4)}"
    await sandbox.make_dir(name)
    return name


@pytest.fixture
def token() -> str:
    """A word that marks this test's processes."""
    return secrets.token_hex(8)


@pytest.fixture(autouse=True)
def enough_abilities(request: pytest.FixtureRequest, abilities: frozenset[str]) -> None:
    """Skip what needs an ability that this provider does not have."""
    for mark in request.node.iter_markers():
        if mark.name.startswith("needs_") and mark.name.removeprefix("needs_") not in abilities:
            pytest.skip(f"this provider lacks {mark.name.removeprefix('needs_')}")
