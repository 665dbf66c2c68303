"""The body of the engine's create call, word for word: a flag that drifts fails here first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinfold.errors import ConfigError
from kinfold.sandbox.base import GIB, MIB, Limits, SandboxSpec
from kinfold.sandbox.docker import labels
from kinfold.sandbox.docker.create import THREADS, Plan, engine_config
from kinfold.sandbox.docker.workspaces import Layout

LAYOUT = Layout(
    root=Path("/state/sandboxes/sbx_0123456789abcdef"),
    workspace=Path("/srv/ws:with,odd name"),
    home=Path("/state/sandboxes/sbx_0123456789abcdef/disk/home"),
    dial=Path("/state/sandboxes/sbx_0123456789abcdef/dial"),
    made=False,
)


def config(engines_network: str = "none", *, bounded: bool = False, **fields: Any) -> dict[str, Any]:
    """What is sent for this spec."""
    spec = SandboxSpec(**fields)
    plan = Plan(
        spec=spec,
        limits=spec.limits,
        image_id="sha256:1",
        layout=LAYOUT,
        volume="kf",
        volume_labels={"kinfold.role": "supervisor"},
        labels={"kinfold.sandbox": "s"},
        bounded=bounded,
        network=engines_network,
    )
    return engine_config(plan)


def test_the_default_host_config_is_exactly_this() -> None:
    sysctls = config()["HostConfig"].pop("Sysctls")
    assert sysctls["kernel.shmmax"] == str(64 * MIB)
    assert int(sysctls["kernel.shmall"]) * 4096 <= 64 * MIB
    host = config()["HostConfig"]
    del host["Sysctls"]
    bind = {"Type": "bind", "BindOptions": {"Propagation": "rprivate"}}
    assert host == {
        "CapDrop": ["ALL"],
        "CapAdd": ["SETUID", "SETGID", "KILL"],
        "SecurityOpt": ["no-new-privileges:true"],
        "Privileged": False,
        "ReadonlyRootfs": True,
        "NetworkMode": "none",
        "PublishAllPorts": False,
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Memory": 2 << 30,
        "MemorySwap": 2 << 30,
        "NanoCpus": 2_000_000_000,
        "PidsLimit": 512,
        "ShmSize": 64 * MIB,
        "Ulimits": [
            {"Name": "nofile", "Soft": 4096, "Hard": 4096},
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "fsize", "Soft": 2 << 30, "Hard": 2 << 30},
        ],
        "Tmpfs": {
            "/tmp": f"rw,exec,nosuid,nodev,size={64 * MIB},nr_inodes=16384,mode=1777",
            "/dev/shm": f"rw,noexec,nosuid,nodev,size={64 * MIB},nr_inodes=16384,mode=1777",
            "/run": f"rw,noexec,nosuid,nodev,size={MIB},nr_inodes=500,mode=0755",
            "/run/kf": f"rw,noexec,nosuid,nodev,size={MIB},nr_inodes=500,mode=0700",
        },
        "Mounts": [
            {**bind, "Source": "/srv/ws:with,odd name", "Target": "/workspace", "ReadOnly": False},
            {**bind, "Source": str(LAYOUT.home), "Target": "/home/agent", "ReadOnly": False},
            {**bind, "Source": str(LAYOUT.dial), "Target": "/run/kf/host", "ReadOnly": True},
            {
                "Type": "volume",
                "Source": "kf",
                "Target": "/run/kf/bin",
                "ReadOnly": True,
                "VolumeOptions": {"NoCopy": True, "Labels": {"kinfold.role": "supervisor"}},
            },
        ],
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "Init": False,
        "OomScoreAdj": 0,
    }


def test_nothing_of_the_callers_environment_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://canary.invalid")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "canary")
    sent = config(env={"PLAIN": "canary"}, secrets={"TOKEN": "canary"})
    assert sent["Env"] == []
    assert "canary" not in str(sent)


def test_the_image_decides_neither_user_nor_entrypoint_nor_health_check() -> None:
    sent = config()
    assert sent["User"] == "0:0"
    assert sent["Entrypoint"] == ["/run/kf/bin/kinfold-supervisor"]
    assert sent["Healthcheck"] == {"Test": ["NONE"]}
    assert sent["WorkingDir"] == "/"
    assert sent["Image"] == "sha256:1"


def test_the_specs_words_become_the_supervisors_arguments() -> None:
    limits = Limits(open_files=100, file_bytes=MIB)
    arguments = config(user="1001:1002", orphan_grace=2.5, idle_pause=1.5, limits=limits)["Cmd"]
    assert arguments == [
        *["init", "--root", "/workspace", "--home", "/home/agent", "--socket", "/run/kf/s", "--dial", "/run/kf/host"],
        *["--user", "1001:1002", "--orphan-grace", "2", "--idle-pause", "1500"],
        *["--nofile", "100", "--fsize", str(MIB)],
        *["--disk-growth", f"{5 * GIB}:262144"],
        *[word for name in THREADS for word in ("--env", f"{name}=2")],
    ]


def test_threads_follow_the_cpus_and_a_bounded_disk_is_not_watched() -> None:
    arguments = config(bounded=True, limits=Limits(cpus=0.5))["Cmd"]
    assert "OMP_NUM_THREADS=1" in arguments
    assert "--disk-quota" in arguments
    assert "--disk-growth" not in arguments


def test_few_open_files_for_a_program_leave_the_supervisor_its_own() -> None:
    nofile = config(limits=Limits(open_files=64))["HostConfig"]["Ulimits"][0]
    assert nofile == {"Name": "nofile", "Soft": 4096, "Hard": 4096}


def test_opting_out_changes_only_what_was_opted_out_of() -> None:
    plain = config()["HostConfig"]
    opted = config("of-its-own", network="open", read_only_root=False, runtime="runsc")["HostConfig"]
    changed = {key for key in opted if opted[key] != plain.get(key)}
    assert changed == {"NetworkMode", "ReadonlyRootfs", "Runtime"}
    assert opted["NetworkMode"] == "of-its-own"


def test_the_callers_labels_cannot_become_ours() -> None:
    sent = labels.to_engine({"task": "task_1", "sandbox": "mine"})
    assert sent == {"kinfold.task": "task_1", "kinfold.label.sandbox": "mine"}
    assert labels.from_engine(sent) == {"task": "task_1", "sandbox": "mine"}
    with pytest.raises(ConfigError):
        labels.check_labels({"kinfold.owner": "me"})


@pytest.mark.parametrize("ident", ["", "sbx_1", "sbx_0123456789abcdef/../x", "sbx_0123456789abcdef\n"])
def test_only_ids_that_we_made_become_container_names(ident: str) -> None:
    with pytest.raises(ValueError, match="not a sandbox id"):
        labels.container_name(ident)
