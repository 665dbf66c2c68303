"""Containers are created hardened, own what they should own, and leave nothing where creating fails."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.docker.provider_support import IMAGE, docker_provider, engine_api, leftovers, spec

from kinfold.errors import ConfigError, ImageMissing, Unenforceable
from kinfold.sandbox.base import MIB, Limits
from kinfold.sandbox.binary import supervisor_path
from kinfold.sandbox.docker import volume
from kinfold.sandbox.docker.client import Engine
from kinfold.sandbox.docker.provider import DockerProvider

UNENFORCED = set() if os.geteuid() == 0 else {"disk", "workspace_nosuid"}
"""Only root may mount a file system for the workspace."""

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make directories of other owners")


@pytest.fixture(scope="module")
def one_file_image() -> Iterator[str]:
    """An image that holds nothing but one static program: no shell, no libc, no /etc."""
    name = f"kinfold-test/one-file-{uuid.uuid4().hex[:8]}:1"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("program")
        member.size, member.mode = supervisor_path().stat().st_size, 0o755
        archive.addfile(member, io.BytesIO(supervisor_path().read_bytes()))
    repository, _, tag = name.rpartition(":")
    with engine_api() as api:
        api.import_image_from_data(buffer.getvalue(), repository=repository, tag=tag)
        yield name
        api.remove_image(name, force=True)


@pytest.mark.anyio
async def test_the_engine_holds_every_hardening_flag(own_state: Path) -> None:
    async with (
        docker_provider(own_state) as provider,
        await provider.create(spec(labels={"task": "task_1"})) as sandbox,
    ):
        with engine_api() as api:
            found = api.inspect_container(sandbox.ref.handle)
        host, config = found["HostConfig"], found["Config"]
        assert host["CapDrop"] == ["ALL"]
        assert sorted(host["CapAdd"]) == ["KILL", "SETGID", "SETUID"]
        assert host["SecurityOpt"] == ["no-new-privileges:true"]
        assert (host["Privileged"], host["ReadonlyRootfs"], host["NetworkMode"]) == (False, True, "none")
        assert (host["IpcMode"], host["CgroupnsMode"], host["PidMode"], host["UTSMode"]) == (
            "private",
            "private",
            "",
            "",
        )
        assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (2 << 30, 2 << 30, 512)
        assert host["NanoCpus"] in (2_000_000_000, 1_000_000_000)
        for nothing in ("Devices", "DeviceRequests", "PortBindings", "Binds", "VolumesFrom", "ExtraHosts"):
            assert not host[nothing]
        assert host["LogConfig"]["Type"] == "none"
        assert host["RestartPolicy"]["Name"] == "no"
        assert {ulimit["Name"] for ulimit in host["Ulimits"]} == {"nofile", "core", "fsize"}
        assert set(host["Sysctls"]) == {f"kernel.{name}" for name in ("shmall", "shmmax", "msgmni", "msgmnb", "sem")}
        mounts = {mount["Destination"]: mount for mount in found["Mounts"]}
        assert set(mounts) == {"/workspace", "/home/agent", "/run/kf/host", "/run/kf/bin"}
        assert [mounts[path]["RW"] for path in ("/run/kf/host", "/run/kf/bin")] == [False, False]
        assert all(mount["Propagation"] in ("rprivate", "") for mount in mounts.values())
        assert config["User"] == "0:0"
        assert config["Labels"]["kinfold.sandbox"] == sandbox.id
        assert config["Labels"]["kinfold.task"] == "task_1"
        assert not any(line.startswith(("ANTHROPIC", "KINFOLD")) for line in config["Env"])


@pytest.mark.anyio
async def test_the_kernel_enforces_what_the_flags_ask_for(own_state: Path) -> None:
    async with docker_provider(own_state) as provider, await provider.create(spec()) as sandbox:
        result = await sandbox.exec(
            "grep -E '^(NoNewPrivs|Seccomp|Cap(Eff|Prm|Inh|Amb)):' /proc/self/status; cat /proc/net/dev | tail -n +3;"
            " (: > /etc/x) 2>&1; ls /run/kf 2>&1; stat -c %a /run/kf;"
            " touch /tmp/t ~/h w && cp /bin/true /tmp/true && /tmp/true && echo fine"
        )
        text = result.stdout_text
        assert "NoNewPrivs:\t1" in text
        assert "Seccomp:\t2" in text
        for name in ("CapEff", "CapPrm", "CapInh", "CapAmb"):
            assert f"{name}:\t0000000000000000" in text
        assert [line.split(":")[0].strip() for line in text.splitlines() if ":" in line and "lo" in line[:8]] == ["lo"]
        assert "Read-only file system" in text
        assert "Permission denied" in text
        assert text.endswith("700\nfine\n")
        assert {control.name for control in sandbox.not_enforced} == UNENFORCED


@pytest.mark.anyio
async def test_an_image_of_one_static_program_runs_it(own_state: Path, one_file_image: str) -> None:
    async with docker_provider(own_state) as provider, await provider.create(spec(image=one_file_image)) as sandbox:
        result = await sandbox.exec(["/program", "--version"])
        assert (result.exit_code, result.stdout_text.strip()) == (0, sandbox.supervisor_build)
        await sandbox.write("a/b", b"x")
        assert await sandbox.read("a/b") == b"x"
        assert (await sandbox.exec("true")).exit_code == 127


@pytest.mark.anyio
async def test_an_image_without_a_shell_does_not_hide_what_the_engine_enforces(
    own_state: Path, one_file_image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with (
        DockerProvider(state_dir=own_state) as provider,
        await provider.create(spec(image=one_file_image)) as sandbox,
    ):
        assert {control.name for control in sandbox.not_enforced} == UNENFORCED
    monkeypatch.setattr("kinfold.sandbox.docker.controls.local_image", _no_image)
    async with DockerProvider(state_dir=own_state / "fresh") as provider:
        async with await provider.create(spec(image=one_file_image)) as sandbox:
            assert {"memory", "network_none"} <= {control.name for control in sandbox.not_enforced}
        async with await provider.create(spec()) as sandbox:
            assert {control.name for control in sandbox.not_enforced} == UNENFORCED


@pytest.fixture(scope="module")
def open_doors_image() -> Iterator[str]:
    """A hostile image: it brings /run/kf and what belongs below it, open to everybody."""
    name = f"kinfold-test/open-doors-{uuid.uuid4().hex[:8]}"
    command = ["sh", "-c", "mkdir -p /run/kf/s /run/kf/host /run/kf/bin && chmod -R 0777 /run"]
    with engine_api() as api:
        ident = api.create_container(IMAGE, command, user="0:0")["Id"]
        api.start(ident)
        api.wait(ident)
        api.commit(ident, repository=name, tag="1")
        api.remove_container(ident)
        yield f"{name}:1"
        api.remove_image(f"{name}:1", force=True)


@pytest.mark.anyio
async def test_an_image_cannot_open_the_supervisors_directory(own_state: Path, open_doors_image: str) -> None:
    async with (
        docker_provider(own_state) as provider,
        await provider.create(spec(image=open_doors_image)) as sandbox,
    ):
        result = await sandbox.exec("stat -c %a /run/kf; ls /run/kf; mv /run/kf /run/x; mkdir -p /run/kf/s")
        assert result.stdout_text == "700\n"
        assert result.stderr_text.count("\n") == 3


async def _no_image(engine: Engine, image: str) -> None:
    return None


@as_root
@pytest.mark.anyio
@pytest.mark.parametrize(("user", "uid"), [(None, 1000), ("1234:1235", 1234)])
async def test_a_made_workspace_belongs_to_the_agent(own_state: Path, user: str | None, uid: int) -> None:
    async with docker_provider(own_state) as provider, await provider.create(spec(user=user)) as sandbox:
        result = await sandbox.exec("id -u; touch made ~/cached && stat -c %u made . ~")
        assert result.stdout_text.split() == [str(uid)] * 4
        assert (Path(sandbox.ref.workspace) / "made").stat().st_uid == uid


@as_root
@pytest.mark.anyio
async def test_a_given_workspace_is_used_as_its_owner_and_left_as_it_was(own_state: Path, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    os.chown(given, 1500, 1600)
    (given / "before").write_text("x")
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec(workspace=str(given))) as sandbox:
            assert sandbox.agent_uid == 1500
            await sandbox.write("made", b"y")
        assert leftovers(provider) == []
    assert sorted(os.listdir(given)) == ["before", "made"]
    assert (given.stat().st_uid, given.stat().st_gid, (given / "before").stat().st_uid) == (1500, 1600, 0)
    assert (given / "made").stat().st_uid == 1500


@as_root
@pytest.mark.anyio
@pytest.mark.parametrize("mode", [0o755, 0o700])
async def test_a_workspace_that_the_agent_cannot_write_is_refused_and_untouched(
    own_state: Path, tmp_path: Path, mode: int
) -> None:
    given = tmp_path / "roots"
    given.mkdir()
    given.chmod(mode)
    async with docker_provider(own_state) as provider:
        with pytest.raises(ConfigError) as caught:
            await provider.create(spec(workspace=str(given)))
        assert leftovers(provider) == []
    assert f"chown -R 1000 {given}" in caught.value.hint
    assert "--copy" in caught.value.hint
    assert os.listdir(given) == []
    assert given.stat().st_uid == 0


@pytest.mark.anyio
async def test_a_copy_is_worked_on_and_the_original_stays(own_state: Path, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "a").write_text("original")
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec(copy_from=str(source))) as sandbox:
            result = await sandbox.exec("cat sub/a && echo changed > sub/a && rm -rf sub && echo gone")
            assert result.stdout_text == "originalgone\n"
        assert leftovers(provider) == []
    assert (source / "sub" / "a").read_text() == "original"


@pytest.mark.anyio
async def test_a_name_makes_create_idempotent_and_another_spec_is_refused(own_state: Path) -> None:
    async with docker_provider(own_state) as provider, await provider.create(spec(name="one")) as first:
        second = await provider.create(spec(name="one", env={"A": "1"}))
        assert second.id == first.id
        await second.aclose()
        assert (await first.exec(["true"])).exit_code == 0
        with pytest.raises(ConfigError, match="exists with another spec") as caught:
            await provider.create(spec(name="one", user="1234"))
        assert "destroy one" in caught.value.hint


@pytest.mark.anyio
async def test_two_creates_of_one_name_at_once_make_one_container(own_state: Path) -> None:
    ids: list[str] = []
    async with docker_provider(own_state) as provider, docker_provider(own_state) as other:

        async def make(which: int) -> None:
            sandbox = await (provider, other)[which % 2].create(spec(name="one", detached=True))
            ids.append(sandbox.id)
            await sandbox.aclose()

        async with anyio.create_task_group() as group:
            for which in range(4):
                group.start_soon(make, which)
        assert len(ids) == 4
        assert len(set(ids)) == 1
        (ref,) = await provider.list()
        await provider.destroy(ref)
        assert leftovers(provider) == []


@pytest.mark.anyio
async def test_strict_refuses_by_name_what_is_not_enforced(own_state: Path) -> None:
    given = own_state.parent / "given"
    given.mkdir()
    async with docker_provider(own_state) as provider:
        with pytest.raises(Unenforceable, match=r"disk: a given directory .*; workspace_nosuid: "):
            await provider.create(spec(strict=True, workspace=str(given)))
        if UNENFORCED:
            with pytest.raises(Unenforceable, match=r"disk: only root may mount .*; workspace_nosuid: "):
                await provider.create(spec(strict=True))
        else:
            async with await provider.create(spec(strict=True)) as sandbox:
                assert sandbox.not_enforced == ()
        with pytest.raises(Unenforceable, match=r"no runtime 'nothing'; it has .*runc"):
            await provider.create(spec(runtime="nothing"))
        assert leftovers(provider) == []


@pytest.mark.anyio
async def test_a_missing_image_leaves_nothing(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        with pytest.raises(ImageMissing) as caught:
            await provider.create(spec(image="kinfold/never-built", pull="missing"))
        assert caught.value.hint == "kinfold images build"
        assert leftovers(provider) == []


@pytest.mark.anyio
@pytest.mark.parametrize("moment", [0.005, 0.03, 0.08, 0.15, 0.25, 0.4, 0.6])
async def test_a_cancel_at_any_moment_of_create_leaves_nothing(own_state: Path, tmp_path: Path, moment: float) -> None:
    given = tmp_path / "given"
    given.mkdir()
    if os.geteuid() == 0:
        os.chown(given, 1000, 1000)
    async with docker_provider(own_state) as provider:
        with anyio.move_on_after(moment):
            async with await provider.create(spec(workspace=str(given))):
                await anyio.sleep_forever()
        assert leftovers(provider) == []
    assert os.listdir(given) == []


@pytest.mark.anyio
async def test_a_supervisors_volume_that_was_emptied_or_spoilt_is_filled_again(
    own_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "kinfold-supervisor"
    shutil.copy(supervisor_path(), own)
    with own.open("ab") as file:
        file.write(uuid.uuid4().bytes)  # a digest, and so a volume, of this test's own
    monkeypatch.setenv("KINFOLD_SUPERVISOR", str(own))
    async with docker_provider(own_state) as provider:
        name = provider.containers.volume().name
        with engine_api() as api:
            api.create_volume(name)
        try:
            for _ in range(2):
                async with await provider.create(spec()) as sandbox:
                    assert (await sandbox.exec(["true"])).exit_code == 0
                with engine_api() as api:
                    api.remove_volume(name)
            monkeypatch.setattr(volume, "_packed", lambda binary: _spoilt())
            async with docker_provider(own_state) as other:
                with pytest.raises(Exception, match="does not hold the supervisor"):
                    await other.create(spec())
            assert leftovers(provider) == []
        finally:
            with engine_api() as api:
                api.remove_volume(name, force=True)


def _spoilt() -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("kinfold-supervisor")
        member.size, member.mode = 4, 0o755
        archive.addfile(member, io.BytesIO(b"evil"))
    return buffer.getvalue()


@pytest.mark.anyio
async def test_small_limits_make_a_small_sandbox(own_state: Path) -> None:
    limits = Limits(memory_bytes=64 * MIB, pids=64, cpus=0.5, open_files=256)
    async with docker_provider(own_state) as provider, await provider.create(spec(limits=limits)) as sandbox:
        usage = await sandbox.usage()
        assert (usage.memory_limit_bytes, usage.pids_limit) == (64 * MIB, 64)
        assert (await sandbox.exec("ulimit -n")).stdout_text.strip() == "256"
