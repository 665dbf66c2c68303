"""A made workspace has a disk of its own: what does not fit is refused, and what is left are plain files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from tests.docker.provider_support import IMAGE, containers_of, docker_provider, leftovers, spec

from kinfold.errors import ConfigError, PathError, StartFailed
from kinfold.sandbox.base import MIB, Limits
from kinfold.sandbox.docker import keeping, quota
from kinfold.sandbox.docker.provider import DockerProvider
from kinfold.sandbox.docker.reaper import reap

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system for the workspace")
SMALL = Limits(disk_bytes=8 * MIB, disk_inodes=200)


def mounts(state: Path) -> list[str]:
    """What is mounted below this state directory."""
    lines = Path("/proc/self/mounts").read_text().splitlines()
    return [line for line in lines if str(state) in line]


def loops(state: Path) -> str:
    """Loop devices whose image lies below this state directory."""
    listed = subprocess.run(["losetup", "-a"], capture_output=True, text=True, check=True).stdout
    return "\n".join(line for line in listed.splitlines() if str(state) in line)


@pytest.mark.anyio
async def test_bytes_and_inodes_of_workspace_and_home_end_at_their_limits(own_state: Path) -> None:
    async with docker_provider(own_state) as provider, await provider.create(spec(limits=SMALL)) as sandbox:
        quiet = await sandbox.usage()
        assert quiet.disk is not None
        assert quiet.disk.bytes_limit in range(8 * MIB, 9 * MIB)
        assert quiet.disk.inodes in range(5, 25)
        big = await sandbox.exec("cd ~ && dd if=/dev/zero of=big bs=1M count=60 2>&1; stat -c %s big")
        assert "No space left on device" in big.stdout_text
        assert 7 * MIB < int(big.stdout_text.splitlines()[-1]) <= 9 * MIB
        with pytest.raises(PathError) as caught:
            await sandbox.write("more", b"x" * MIB)
        assert caught.value.reason == "no_space"
        assert big.disk is not None
        assert big.disk.bytes == big.disk.bytes_peak > 7 * MIB
        after = await sandbox.exec("rm ~/big")
        assert after.disk is not None
        assert (after.disk.bytes < MIB, after.disk.bytes_peak) == (True, big.disk.bytes_peak)
        many = await sandbox.exec("mkdir d && cd d && i=0; while (: >f$i) 2>/dev/null; do i=$((i+1)); done; ls | wc -l")
        assert 150 < int(many.stdout_text) < 230
        with pytest.raises(PathError) as caught:
            await sandbox.write("one-more", b"x")
        assert caught.value.reason == "no_space"
        assert (await sandbox.exec(["true"])).exit_code == 0
    assert (mounts(own_state), loops(own_state), leftovers(provider)) == ([], "", [])


@pytest.mark.anyio
async def test_a_kept_workspace_is_plain_files_at_the_path_that_was_told(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec(keep=3600.0)) as sandbox:
            await sandbox.exec("echo hi >a; ln -s a b; mkdir -p d/e; echo deep >d/e/f; chmod 4755 a; chmod 000 d; >~/h")
        workspace = Path(sandbox.ref.workspace)
        assert sorted(os.listdir(workspace)) == [".kinfold", "a", "b", "d"]
        assert (workspace / "d/e/f").read_text() == "deep\n"
        assert os.readlink(workspace / "b") == "a"
        assert workspace.joinpath("a").stat().st_mode & 0o7777 == 0o755
        assert workspace.joinpath("a").stat().st_uid == workspace.stat().st_uid == 1000
        assert sorted(os.listdir(workspace.parent.parent)) == ["disk"]
        assert os.listdir(workspace.parent) == ["workspace"]
        assert (mounts(own_state), loops(own_state)) == ([], "")


@pytest.mark.anyio
async def test_too_much_to_copy_out_stays_mounted_and_comes_back_after_a_restart(
    own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeping, "COPIED_INODES", 20)
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec(keep=3600.0)) as sandbox:
            await sandbox.exec("touch $(seq 30); >~/h")
        root = provider.workspaces.layout(sandbox.id).root
        assert os.listdir(root / "disk") == ["workspace"]
        assert "nosuid,nodev" in mounts(own_state)[0]
        quota.detach(root)
        assert not Path(sandbox.ref.workspace).exists()
        assert await reap(provider) == []
        assert len(os.listdir(sandbox.ref.workspace)) == 31
        assert provider.workspaces.remove(sandbox.id, workspace=True) == []
    assert (mounts(own_state), loops(own_state)) == ([], "")


@pytest.mark.anyio
async def test_a_copy_that_does_not_fit_is_refused_with_the_numbers(own_state: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "big").write_bytes(b"x" * (9 * MIB))
    async with docker_provider(own_state) as provider:
        with pytest.raises(ConfigError, match=rf"{8 * MIB} bytes.*9437184 bytes in 1 entries up to 'big'"):
            await provider.create(spec(limits=SMALL, copy_from=str(source)))
        (source / "big").unlink()
        for number in range(250):
            (source / str(number)).touch()
        with pytest.raises(ConfigError, match="more than the 200 entries"):
            await provider.create(spec(limits=SMALL, copy_from=str(source)))
        assert (mounts(own_state), leftovers(provider)) == ([], [])


@pytest.mark.anyio
async def test_a_host_that_is_nearly_full_gets_no_sandbox(own_state: Path) -> None:
    async with DockerProvider(state_dir=own_state, disk_reserve=1 << 60) as provider:
        with pytest.raises(StartFailed, match=r"nearly full: \d+ MiB are free .* stay in reserve"):
            await provider.create(spec())
        assert leftovers(provider) == []


@pytest.mark.anyio
async def test_a_given_directory_is_watched_and_growth_ends_what_runs_within_two_seconds(
    own_state: Path, tmp_path: Path
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    (given / "mine").write_bytes(b"x" * (12 * MIB))
    os.chown(given, 1000, 1000)
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec(limits=SMALL, workspace=str(given))) as sandbox:
            fill = "i=0; while :; do i=$((i+1)); dd if=/dev/zero of=.kf-aaaaaaaa.tmp$i bs=1M count=1 2>/dev/null; done"
            filled = await sandbox.exec(fill, timeout=30)
            assert (filled.ended_by, filled.survivors) == ("disk_limited", 0)
            assert filled.duration < 6  # 2 s on a quiet machine
            assert filled.disk is not None
            assert filled.disk.bytes_limit is not None
            assert filled.disk.bytes_limit == pytest.approx(20 * MIB, rel=0.05)
            assert filled.disk.bytes > filled.disk.bytes_limit
            tidy = await sandbox.exec("sleep 2.2; rm .kf-* && echo done")
            assert (tidy.ended_by, tidy.stdout_text) == ("exited", "done\n")
            many = await sandbox.exec("mkdir -p d; i=0; while :; do i=$((i+1)); : >d/$i; done", timeout=30)
            assert many.ended_by == "disk_limited"
        assert (given / "mine").stat().st_size == 12 * MIB


@pytest.mark.anyio
async def test_what_runs_sees_as_many_threads_as_it_has_cpus(own_state: Path) -> None:
    ask = "import os; print(*(os.environ[n] for n in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'GOMAXPROCS')))"
    wanted = spec(limits=Limits(cpus=1), env={"GOMAXPROCS": "7"})
    async with docker_provider(own_state) as provider, await provider.create(wanted) as sandbox:
        assert (await sandbox.exec(["python3", "-c", ask])).stdout_text == "1 1 7\n"
        told = await sandbox.exec(["python3", "-c", ask], env={"OMP_NUM_THREADS": "3"})
        assert told.stdout_text == "3 1 7\n"


STEPS = {
    "the image": ("kinfold.sandbox.docker.quota", "_run"),
    "the mount": ("kinfold.sandbox.docker.quota", "attach"),
    "the directories": ("kinfold.sandbox.docker.workspaces", "_make_given_to"),
    "the container": ("kinfold.sandbox.docker.containers", "Containers.run"),
    "the copy": ("kinfold.sandbox.docker.keeping", "_copy_out"),
    "the unmounting": ("kinfold.sandbox.docker.quota", "detach"),
    "the rename": ("kinfold.sandbox.docker.keeping", "os.rename"),
}
DYING = """
import functools, importlib, os, signal, sys
import anyio
from kinfold.sandbox.base import SandboxSpec
from kinfold.sandbox.docker.provider import DockerProvider

module, name, when = sys.argv[1:4]
owner = functools.reduce(getattr, name.split(".")[:-1], importlib.import_module(module))
name = name.split(".")[-1]
real = getattr(owner, name)

def die(*arguments, **fields):
    if when == "after":
        real(*arguments, **fields)
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with DockerProvider() as provider:
        await provider.probe()
        if "keeping" not in module and name != "detach":
            setattr(owner, name, die)
        async with await provider.create(SandboxSpec(image=sys.argv[4], pull="never", keep=3600.0)) as sandbox:
            await sandbox.write("result", b"made")
            setattr(owner, name, die)

anyio.run(main)
"""


@pytest.mark.anyio
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.slow
async def test_whoever_dies_at_any_step_leaves_nothing_that_reap_does_not_settle(
    own_state: Path, step: str, when: str
) -> None:
    dead = await anyio.run_process(
        [sys.executable, "-c", DYING, *STEPS[step], when, IMAGE],
        env={**os.environ, "KINFOLD_STATE": str(own_state)},
        check=False,
    )
    assert dead.returncode == -signal.SIGKILL, dead.stderr.decode()
    async with docker_provider(own_state) as provider:
        (record,) = (await provider.records.list()).records
        assert [item.removed for item in await reap(provider)] == [True]
        assert (mounts(own_state), loops(own_state), containers_of(provider.instance)) == ([], "", [])
        root = provider.workspaces.layout(record.id).root
        assert sorted(os.listdir(root)) in ([], ["disk"]), step
        if step in ("the copy", "the unmounting", "the rename"):
            assert (Path(record.workspace) / "result").read_bytes() == b"made"
        assert provider.workspaces.remove(record.id, workspace=True) == []
