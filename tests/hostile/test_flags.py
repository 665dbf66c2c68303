"""The container is as hard as it was meant to be: what the engine took, and what the kernel then really denies."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from tests.docker.provider_support import docker_provider, engine_api, spec
from tests.hostile.hostile_support import racer, sandbox_with, workspace_on_the_host
from tests.hostile.outside import as_root

from kinfold.errors import ConfigError, PathError
from kinfold.sandbox.base import MIB, Limits, SandboxSpec
from kinfold.sandbox.docker.admission import admit
from kinfold.sandbox.docker.create import SUPERVISOR
from kinfold.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

SHARED = 16 * MIB
GOLDEN = {
    "AutoRemove": False,
    "Binds": None,
    "CapAdd": ["SETUID", "SETGID", "KILL"],
    "CapDrop": ["ALL"],
    "CgroupnsMode": "private",
    "DeviceRequests": None,
    "Devices": None,
    "ExtraHosts": None,
    "GroupAdd": None,
    "IpcMode": "private",
    "Links": None,
    "LogConfig": {"Type": "none", "Config": {}},
    "Memory": 256 * MIB,
    "MemorySwap": 256 * MIB,
    "NanoCpus": 2_000_000_000,
    "NetworkMode": "none",
    "OomKillDisable": False,
    "OomScoreAdj": 0,
    "PidMode": "",
    "PidsLimit": 256,
    "PortBindings": None,
    "Privileged": False,
    "PublishAllPorts": False,
    "ReadonlyRootfs": True,
    "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
    "SecurityOpt": ["no-new-privileges:true"],
    "ShmSize": SHARED,
    "Sysctls": {
        "kernel.shmall": str(SHARED // os.sysconf("SC_PAGE_SIZE")),
        "kernel.shmmax": str(SHARED),
        "kernel.msgmni": "16",
        "kernel.msgmnb": "16384",
        "kernel.sem": "250 32000 100 128",
    },
    "Tmpfs": {
        "/run": "rw,noexec,nosuid,nodev,size=1048576,nr_inodes=500,mode=0755",
        "/run/kf": "rw,noexec,nosuid,nodev,size=1048576,nr_inodes=500,mode=0700",
        "/tmp": f"rw,exec,nosuid,nodev,size={SHARED},nr_inodes=4096,mode=1777",
        "/dev/shm": f"rw,noexec,nosuid,nodev,size={SHARED},nr_inodes=4096,mode=1777",
    },
    "Ulimits": [
        {"Name": "nofile", "Hard": 4096, "Soft": 4096},
        {"Name": "core", "Hard": 0, "Soft": 0},
        {"Name": "fsize", "Hard": 2 << 30, "Soft": 2 << 30},
    ],
    "UTSMode": "",
    "UsernsMode": "",
    "VolumesFrom": None,
}
"""What the engine says that it runs; an empty list, `None` and an absent key mean the same to it."""
MOUNTED = {"/workspace": True, "/home/agent": True, "/run/kf/host": False, "/run/kf/bin": False}
"""All that is mounted from the host, and whether it can be written."""


def inspected(box: Sandbox) -> dict[str, Any]:
    """The engine's description of the container."""
    with engine_api() as api:
        found: dict[str, Any] = api.inspect_container(box.ref.handle)
    return found


@pytest.mark.threat("H01")
async def test_the_engine_runs_what_was_asked_and_nothing_more(box: Sandbox) -> None:
    found = inspected(box)
    host = found["HostConfig"]
    assert {key: host.get(key) or (None if not GOLDEN[key] else host.get(key)) for key in GOLDEN} == {
        key: value or None for key, value in GOLDEN.items()
    }
    strange = {key for key, value in host.items() if value and key not in GOLDEN} - {"Mounts", "Runtime"}
    assert strange <= {"ConsoleSize", "MaskedPaths", "ReadonlyPaths"}, {key: host[key] for key in strange}
    assert {mount["Destination"]: mount["RW"] for mount in found["Mounts"]} == MOUNTED
    assert {mount["Propagation"] for mount in found["Mounts"] if mount["Type"] == "bind"} == {"rprivate"}
    assert not [mount for mount in found["Mounts"] if "sock" in mount["Source"]]
    assert {"/proc/kcore", "/proc/keys", "/sys/firmware"} <= set(host["MaskedPaths"])
    assert {"/proc/sys", "/proc/sysrq-trigger", "/proc/bus"} <= set(host["ReadonlyPaths"])
    config = found["Config"]
    assert (config["User"], config["WorkingDir"], config["Tty"], config["OpenStdin"]) == ("0:0", "/", False, False)
    assert {line.partition("=")[0] for line in config["Env"]} <= {"PATH", "LANG"}, "the image's own, and nothing else"


PRIVILEGED = f"{1 << 5 | 1 << 6 | 1 << 7:016x}"
"""KILL, SETGID and SETUID."""
NONE = "0" * 16


def status(pid: int) -> dict[str, str]:
    """What the host's kernel says of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return {line.partition(":")[0]: line.partition(":")[2].strip() for line in lines}


@pytest.mark.threat("H02")
@pytest.mark.parametrize("channel", ["socket", "engine"])
async def test_every_process_has_the_capabilities_of_its_part_and_no_way_to_more(own_state: Path, channel: Any) -> None:
    async with docker_provider(own_state, channel=channel) as provider, await provider.create(spec()) as box:
        await box.exec("sleep 300 & exit 0", owner="run")
        with engine_api() as api:
            seen = api.top(box.ref.handle, ps_args="-eo pid,uid,args")["Processes"]
        parts = set[str]()
        for pid, uid, command in seen:
            told = status(int(pid))
            part = "agent" if uid == "1000" else command.split()[1]
            parts.add(part)
            capable = part in ("init", "shim")
            assert told["CapEff"] == told["CapPrm"] == (PRIVILEGED if capable else NONE), command
            assert told["CapAmb"] == told["CapInh"] == NONE, command
            assert int(told["CapBnd"], 16) & ~int(PRIVILEGED, 16) == 0, command
            assert (told["NoNewPrivs"], told["Seccomp"]) == ("1", "2"), command
            assert int(told.get("Seccomp_filters", 2)) >= (1 if part in ("init", "connect") else 2), command
            assert told["Uid"].split() == [{"init": "0", "agent": "1000"}.get(part, "65533")] * 4, command
        assert parts == {"init", "shim", "agent"} | ({"connect"} if channel == "engine" else set())


@pytest.mark.threat("H02")
async def test_a_program_starts_with_nothing_but_its_own(own_state: Path) -> None:
    async with sandbox_with(own_state, "probe") as box:
        seen = (await box.exec(["./probe", "0"])).stdout_text.splitlines()
        told = {line.partition(":")[0]: line.partition(":")[2].split() for line in seen if ":" in line}
        assert told["Uid"] == told["Gid"] == ["1000"] * 4
        assert told["Groups"] == []
        assert [told[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")] == [[NONE]] * 4
        assert [told[name] for name in ("SigBlk", "SigIgn", "SigCgt")] == [[NONE]] * 3
        assert (told["NoNewPrivs"], told["Seccomp"]) == (["1"], ["2"])
        assert [line for line in seen if line.startswith("fd ")] == ["fd 0", "fd 1", "fd 2"]


@pytest.mark.threat("H03", "N02")
async def test_each_system_call_is_denied_or_allowed_as_the_profile_says(own_state: Path) -> None:
    golden = (Path(__file__).parent / "golden_syscalls.txt").read_text().splitlines()
    async with sandbox_with(own_state, "syscalls") as box:
        assert (await box.exec(["./syscalls"])).stdout_text.splitlines() == golden


@pytest.fixture
def image_with_setuid() -> Iterator[str]:
    """An image that holds a program of root's with the setuid and setgid bits."""
    tag = f"kinfold-test/setuid:{os.getpid()}"
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as tar:
        recipe = f"FROM {spec().image}\nCOPY probe /probe\nRUN chmod 6755 /probe\n".encode()
        for name, data, mode in (("Dockerfile", recipe, 0o644), ("probe", racer("probe"), 0o755)):
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), mode
            tar.addfile(info, io.BytesIO(data))
    with engine_api() as api:
        sent = io.BytesIO(context.getvalue())
        lines = api.build(fileobj=sent, custom_context=True, tag=tag, rm=True, decode=True, network_mode="none")
        assert not [line for line in lines if "error" in line]
        try:
            yield tag
        finally:
            api.remove_image(tag, force=True)


@pytest.mark.threat("H04")
async def test_a_setuid_program_gives_nobody_anything(own_state: Path, image_with_setuid: str) -> None:
    async with docker_provider(own_state) as provider, await provider.create(spec(image=image_with_setuid)) as box:
        in_workspace = workspace_on_the_host(box) / "probe"
        in_workspace.write_bytes(racer("probe"))
        as_root("chown", "0:0", str(in_workspace))
        as_root("chmod", "6755", str(in_workspace))
        for program in ("/probe", "/workspace/probe"):
            bits = await box.exec(["stat", "-c", "%a %u", program])
            assert bits.stdout == b"6755 0\n"
            seen = (await box.exec([program, "0"])).stdout_text.splitlines()
            uids, gids = (line.split()[1:] for line in seen if line.startswith(("Uid", "Gid")))
            assert uids == [str(box.agent_uid)] * 4
            assert len(set(gids)) == 1
            assert "0" not in gids
            assert "CapEff:\t" + NONE in seen
            assert not [line for line in seen if line.startswith("WORKED")]


@pytest.mark.threat("H05")
async def test_the_engines_exec_is_asked_for_one_fixed_program_and_no_privilege(
    own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from docker.api.client import APIClient

    client: Any = APIClient
    sent: list[dict[str, Any]] = []
    post_json = client._post_json

    def recorded(self: APIClient, url: str, data: Any, **more: Any) -> Any:
        if url.endswith("/exec"):
            sent.append(dict(data))
        return post_json(self, url, data, **more)

    monkeypatch.setattr(APIClient, "_post_json", recorded)
    async with docker_provider(own_state, channel="engine") as provider, await provider.create(spec()) as box:
        await box.exec("echo $CANARY", env={"CANARY": "canary"}, cwd=".")
    assert sent
    for body in sent:
        assert body["Cmd"] == [SUPERVISOR, "connect", "--socket", "/run/kf/s"]
        assert (body["User"], body["WorkingDir"], body["Privileged"], body["Tty"]) == ("0:0", "/", False, False)
        assert not body.get("Env") and not body.get("Environment")


@pytest.mark.threat("H06")
async def test_an_execs_directory_is_one_of_the_workspace(box: Sandbox, folder: str) -> None:
    await box.exec("mkdir inside; ln -s inside l; ln -s / out; ln -s /proc/self/fd/7 magic", cwd=folder)
    where = await box.exec(["pwd", "-P"], cwd=f"{folder}/l")
    assert where.stdout == f"/workspace/{folder}/inside\n".encode()
    for cwd in ("out", "magic", "out/etc"):
        with pytest.raises(PathError) as refused:
            await box.exec(["true"], cwd=f"{folder}/{cwd}")
        assert refused.value.reason == "path_escape"
    for number in range(3, 20):
        with pytest.raises(PathError) as refused:
            await box.exec(["true"], cwd=f"/proc/self/fd/{number}")
        assert refused.value.reason == "path_escape"


@pytest.mark.threat("H06")
async def test_the_runtime_leaks_no_directory_of_the_host_into_an_exec(box: Sandbox) -> None:
    with engine_api() as api:
        for number in range(5, 11):
            made = api.exec_create(box.ref.handle, ["pwd", "-P"], user="1000:1000", workdir=f"/proc/self/fd/{number}")
            api.exec_start(made["Id"])
            assert api.exec_inspect(made["Id"])["ExitCode"] not in (0, None), f"descriptor {number}"


SYSTEM = ["/", "/proc", "/proc/self", "/sys", "/dev", "/dev/shm", "/etc", "/etc/ssl", "/run", "/var/run", "/boot"]
ENGINES_OWN = ["/var", "/var/lib", "/var/lib/docker", "/var/lib/docker/volumes", "/run/containerd"]


@pytest.mark.threat("H08")
@pytest.mark.parametrize("field", ["workspace", "copy_from"])
@pytest.mark.parametrize(
    "path", [*SYSTEM, *ENGINES_OWN, "/var/run/docker.sock", "/../", "/proc/self/root", "/tmp/../etc"]
)
async def test_no_directory_of_the_system_or_the_engine_can_be_mounted(own_state: Path, field: str, path: str) -> None:
    with pytest.raises(ConfigError):
        admit(spec(**{field: path}), own_state)


@given(
    path=st.lists(
        st.sampled_from(["..", ".", "etc", "proc", "self", "root", "run", "dev", "", "link", "sub"]), max_size=6
    ),
    absolute=st.booleans(),
)
@pytest.mark.threat("H08")
def test_whatever_is_named_the_mount_is_that_directory_and_none_of_the_systems(path: list[str], absolute: bool) -> None:
    named = ("/" if absolute else "") + "/".join(path)
    try:
        admitted = admit(spec(workspace=named), Path("/nonexistent/state"))
    except ConfigError:
        return
    assert admitted.given is not None
    assert not Path(admitted.given).is_relative_to("/etc") and admitted.given != "/"
    assert os.path.realpath(admitted.given) == admitted.given and os.path.isdir(admitted.given)


@pytest.mark.threat("H08")
@pytest.mark.parametrize(
    "field",
    ["mounts", "volumes", "binds", "privileged", "cap_add", "devices", "security_opt", "pid_mode", "propagation"],
)
def test_a_spec_has_no_word_for_what_would_weaken_the_container(field: str) -> None:
    with pytest.raises(ValidationError):
        SandboxSpec.model_validate({field: ["/:/host"]})
    with pytest.raises(ValidationError):
        Limits.model_validate({field: 1})


WRITES = """
for f in /proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/vm/drop_caches /sys/kernel/uevent_helper \
  /proc/sys/kernel/shmmax /proc/1/oom_score_adj /etc/hosts /etc/resolv.conf /etc/hostname /etc/passwd /usr/bin/x; do
  if (echo x > $f) 2>/dev/null; then echo "wrote $f"; fi
done
for f in $(find /sys/fs/cgroup -type f -writable 2>/dev/null | head -50); do
  if (echo 1 > $f) 2>/dev/null; then echo "wrote $f"; fi
done
if mkdir /sys/fs/cgroup/x /sys/fs/cgroup/*/x 2>/dev/null; then echo "made a cgroup"; fi
for f in /proc/kcore /proc/keys /proc/timer_list; do
  if head -c 1 $f 2>/dev/null | grep -q .; then echo "read $f"; fi
done
"""


@pytest.mark.threat("H09")
@pytest.mark.parametrize("user", ["agent", "root"])
async def test_nothing_of_the_kernels_can_be_written_from_inside(box: Sandbox, user: str) -> None:
    if user == "agent":
        assert (await box.exec(WRITES)).stdout == b""
        return
    with engine_api() as api:
        made = api.exec_create(box.ref.handle, ["sh", "-c", WRITES], user="0:0")
        seen = api.exec_start(made["Id"])
    assert set(seen.split(b"\n")) <= {b"", b"wrote /proc/1/oom_score_adj"}, "PID 1's is root's to raise"
