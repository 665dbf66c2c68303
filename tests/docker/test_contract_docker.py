"""DockerProvider holds the contract, by the local socket and by the engine's own stream."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import anyio
import anyio.to_thread
import pytest
from tests.docker.provider_support import docker_provider, engine_api, spec

from kinfold.errors import SandboxLost
from kinfold.sandbox import channel
from kinfold.sandbox.base import ExecRequest, SandboxSpec
from kinfold.sandbox.docker.provider import ChannelKind, DockerProvider
from kinfold.testing.contract import *  # noqa: F403

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module", params=["socket", "engine"])
async def provider(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[DockerProvider]:
    state = tmp_path_factory.mktemp("state")
    state.chmod(0o700)
    kind: ChannelKind = request.param
    async with docker_provider(state, channel=kind) as made:
        yield made


@pytest.fixture(scope="module")
def make_spec() -> Callable[..., SandboxSpec]:
    return spec


@pytest.fixture(scope="module")
def abilities() -> frozenset[str]:
    return frozenset({"own_uid", "pid_namespace", "cgroup"})


async def test_an_engines_pause_stops_the_hosts_clocks_too(
    provider: DockerProvider, make_spec: Callable[..., SandboxSpec], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel, "PING_TIMEOUT", 0.5)
    async with await provider.create(make_spec(orphan_grace=4)) as sandbox:
        process = await sandbox.start(ExecRequest(command="sleep 1; echo done", timeout=5, grace=0.1))
        with engine_api() as api:
            await anyio.to_thread.run_sync(api.pause, sandbox.ref.handle)
            try:
                await anyio.sleep(8)
            finally:
                await anyio.to_thread.run_sync(api.unpause, sandbox.ref.handle)
        with anyio.fail_after(60):
            result = await process.wait()
        assert (result.ended_by, result.stdout) == ("exited", b"done\n")


async def test_a_restarted_container_is_a_loss_not_a_fresh_start(
    provider: DockerProvider, make_spec: Callable[..., SandboxSpec]
) -> None:
    async with await provider.create(make_spec()) as sandbox:
        process = await sandbox.start(ExecRequest(command=["sleep", "300"]))
        with engine_api() as api:
            await anyio.to_thread.run_sync(lambda: api.restart(sandbox.ref.handle, timeout=2))
        with anyio.fail_after(60):
            try:
                assert (await process.wait()).ended_by == "cancelled"
            except SandboxLost:
                assert process.ended
            with pytest.raises(SandboxLost):
                await sandbox.exec(["true"])


async def test_hostile_code_cannot_reach_the_supervisor(
    provider: DockerProvider, make_spec: Callable[..., SandboxSpec]
) -> None:
    script = """
for pid in 1 $(ls /proc | grep -E '^[0-9]+$'); do
    owner=$(stat -c %u /proc/$pid 2>/dev/null) || continue
    [ "$owner" = "$(id -u)" ] && continue
    kill -0 $pid 2>/dev/null && echo "may signal $pid"
    cat /proc/$pid/environ >/dev/null 2>&1 && echo "may read $pid"
    ls /proc/$pid/fd >/dev/null 2>&1 && echo "may list $pid"
done
[ "$(id -u)" = 0 ] && echo "is root"
grep -q '^CapEff:.0*$' /proc/self/status || echo "has capabilities"
ls /run/kf/host /run/kf/s 2>/dev/null && echo "sees the sockets"
exit 0
"""
    async with await provider.create(make_spec()) as sandbox:
        result = await sandbox.exec(script, timeout=60)
    assert (result.exit_code, result.stdout) == (0, b""), result.stderr_text
