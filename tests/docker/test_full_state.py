"""A state directory without space: a create says so and leaves nothing; what runs goes on, is read and ended."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docker.provider_support import containers_of, leftovers, spec

from kinfold.errors import KinfoldError
from kinfold.sandbox.docker.provider import DockerProvider
from kinfold.sandbox.docker.reaper import reap

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small file system"),
]


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A state directory of 24 MiB."""
    state = tmp_path / "small"
    state.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m,mode=0700", "tmpfs", str(state)], check=True)
    yield state
    subprocess.run(["umount", str(state)], check=True)


def fill(state: Path) -> Path:
    """Leave no byte."""
    ballast = state / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            return ballast


@pytest.mark.threat("F06")
async def test_without_space_a_create_says_what_to_free_and_what_runs_is_read_and_ended(small: Path) -> None:
    async with DockerProvider(state_dir=small, disk_reserve=0) as provider:
        sandbox = await provider.create(spec())
        await sandbox.write("kept", b"kept")
        ballast = fill(small)
        with pytest.raises(KinfoldError) as refused:
            await provider.create(spec())
        assert "space" in f"{refused.value.message} {refused.value.hint}".lower()
        assert len(containers_of(provider.instance)) == 1
        assert (await sandbox.exec(["true"])).exit_code == 0
        assert await sandbox.read("kept") == b"kept"
        await sandbox.aclose()
        assert containers_of(provider.instance) == []
        ballast.unlink()
        (done,) = await reap(provider)
        assert (done.name, done.removed, done.reason) == (sandbox.id, True, "its container is gone")
        assert leftovers(provider) == []
        async with await provider.create(spec()) as again:
            assert (await again.exec(["true"])).exit_code == 0
