"""LocalProvider holds the contract, but for what needs a container."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from kinfold.sandbox.base import SandboxSpec
from kinfold.sandbox.local import LocalProvider
from kinfold.testing.contract import *  # noqa: F403

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
async def provider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LocalProvider]:
    state = tmp_path_factory.mktemp("local")
    state.chmod(0o700)
    async with LocalProvider(state) as made:
        yield made


@pytest.fixture(scope="module")
def make_spec() -> Callable[..., SandboxSpec]:
    return SandboxSpec


@pytest.fixture(scope="module")
def abilities() -> frozenset[str]:
    return frozenset()
