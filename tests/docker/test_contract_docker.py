"""DockerProvider holds the contract, by the local socket and by the engine's own stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
from tests.docker.provider_support import docker_provider, spec

from kinfold.sandbox.base import SandboxSpec
from kinfold.sandbox.docker.provider import ChannelKind, DockerProvider
from kinfold.testing.contract import *  # noqa: F403

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["socket", "engine"])
async def provider(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[DockerProvider]:
    state = tmp_path_factory.mktemp("state")
    state.chmod(0o700)
    channel: ChannelKind = request.param
    async with docker_provider(state, channel=channel) as made:
        yield made


@pytest.fixture(scope="module")
def make_spec() -> Callable[..., SandboxSpec]:
    return spec


@pytest.fixture(scope="module")
def abilities() -> frozenset[str]:
    return frozenset({"own_uid", "pid_namespace", "cgroup"})
