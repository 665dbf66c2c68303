"""What the provider's Docker tests share: which image, a provider on a state directory, a look at the engine itself."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from kinfold.sandbox.base import SandboxSpec
from kinfold.sandbox.docker.provider import ChannelKind, DockerProvider

IMAGE = os.environ.get("KINFOLD_TEST_IMAGE", "kinfold/base")


def spec(**fields: Any) -> SandboxSpec:
    """A spec whose made workspace goes at once."""
    return SandboxSpec.model_validate({"image": IMAGE, "pull": "never", "keep": 0.0} | fields)


@asynccontextmanager
async def docker_provider(
    state: Path, *, channel: ChannelKind = "auto", instance: str | None = None, host: str | None = None
) -> AsyncIterator[DockerProvider]:
    """A provider on `state`. What the first one measures of the engine serves the test run's others."""
    measured = state.parent / "probes-of-this-run"
    if measured.exists() and not (state / "probes").exists():
        shutil.copytree(measured, state / "probes")
    async with DockerProvider(state_dir=state, channel=channel, instance=instance, host=host) as provider:
        yield provider
    if (state / "probes").exists():
        shutil.copytree(state / "probes", measured, dirs_exist_ok=True)


@contextmanager
def engine_api() -> Iterator[Any]:
    """The SDK's own client, to look from outside."""
    import docker

    client = docker.from_env(timeout=30)
    try:
        yield client.api
    finally:
        client.close()


def containers_of(instance: str) -> list[dict[str, Any]]:
    """Every container with this instance's label, running or not."""
    with engine_api() as api:
        found: list[dict[str, Any]] = api.containers(all=True, filters={"label": [f"kinfold.instance={instance}"]})
    return found


def leftovers(provider: DockerProvider) -> list[str]:
    """Containers, directories and records that are there though nothing should be."""
    records = provider.workspaces.state_dir / "records"
    found = [str(item["Names"]) for item in containers_of(provider.instance)]
    found += provider.workspaces.ids()
    return found + [name for name in os.listdir(records) if name.endswith(".json")] if records.exists() else found
