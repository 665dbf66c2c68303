"""From a spec to what is sent to the engine: the whole hardening of a container stands in this one file."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kinfold.sandbox.allowlist import Allowlist
from kinfold.sandbox.base import HOME, WORKSPACE, Limits, SandboxSpec
from kinfold.sandbox.docker.admission import RUN_BYTES
from kinfold.sandbox.docker.workspaces import Layout

RUN = "/run/kf"
"""A tmpfs that only root can enter: the supervisor's socket, binary and dial directory lie below it."""
BIN = f"{RUN}/bin"
DIAL = f"{RUN}/host"
SOCKET_DIR = f"{RUN}/s"
SUPERVISOR = f"{BIN}/kinfold-supervisor"
EGRESS_PORT = 3128
"""On the container's own loopback interface, held by PID 1 before anything else runs."""
CAPABILITIES = ("SETUID", "SETGID", "KILL")
"""All that PID 1 keeps: to become the agent, and to end what the agent started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All that is known before a container is created."""

    spec: SandboxSpec
    limits: Limits
    """Fitted to this engine."""
    image_id: str
    """The image's digest: the name may move between our look at it and the create."""
    layout: Layout
    volume: str
    """The named volume that holds the supervisor."""
    volume_labels: Mapping[str, str]
    """For the case that the engine has to make it."""
    labels: Mapping[str, str]
    bounded: bool = False
    """The workspace and the home lie on a file system of the limits' size; else the supervisor watches them."""
    network: str = "none"
    """`none`, or the id of the network for open sandboxes."""
    ulimits: bool = True
    """Off where the engine may not set them (rootless with low limits of its own); the supervisor sets them then."""


def engine_config(plan: Plan) -> dict[str, Any]:
    """The body of the engine's create call."""
    return {
        "Image": plan.image_id,
        "Entrypoint": [SUPERVISOR],
        "Cmd": supervisor_arguments(plan),
        "User": "0:0",
        "WorkingDir": "/",
        "Hostname": "sandbox",
        "Domainname": "",
        "Env": [],
        "Labels": dict(plan.labels),
        "Tty": False,
        "OpenStdin": False,
        "AttachStdin": False,
        "AttachStdout": False,
        "AttachStderr": False,
        "StopSignal": "SIGTERM",
        # An image's own health check would run as root, outside every limit of ours.
        "Healthcheck": {"Test": ["NONE"]},
        "HostConfig": _host_config(plan),
    }


THREADS = (
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
    "NUMEXPR_MAX_THREADS",
    "RAYON_NUM_THREADS",
    "GOMAXPROCS",
)
"""How many threads libraries start where they would else count the host's processors; the quota then stops them all for
most of each period. Not here: what builds read (`MAKEFLAGS`), and pools that wait more than they compute."""


def supervisor_arguments(plan: Plan) -> list[str]:
    """`init` and its options."""
    spec, limits = plan.spec, plan.limits
    arguments = ["init", "--root", WORKSPACE, "--home", HOME, "--socket", SOCKET_DIR, "--dial", DIAL]
    if spec.user is not None:
        arguments += ["--user", spec.user]
    arguments += ["--orphan-grace", f"{max(1, round(spec.orphan_grace))}"]
    if spec.idle_pause is not None:
        arguments += ["--idle-pause", f"{spec.idle_pause * 1000:.0f}"]
    arguments += ["--nofile", str(limits.open_files), "--fsize", str(limits.file_bytes)]
    watched = "--disk-total" if plan.layout.made else "--disk-growth"
    kind = "--disk-quota" if plan.bounded else watched
    arguments += [kind, f"{limits.disk_bytes}:{limits.disk_inodes}"]
    threads = max(1, math.ceil(limits.cpus))
    arguments += [word for name in THREADS for word in ("--env", f"{name}={threads}")]
    if isinstance(spec.network, Allowlist):
        arguments += ["--egress", str(EGRESS_PORT)]
    return arguments


def _host_config(plan: Plan) -> dict[str, Any]:
    limits = plan.limits
    config: dict[str, Any] = {
        "CapDrop": ["ALL"],
        "CapAdd": list(CAPABILITIES),
        "SecurityOpt": ["no-new-privileges:true"],
        "Privileged": False,
        "ReadonlyRootfs": plan.spec.read_only_root,
        "NetworkMode": plan.network,
        "PublishAllPorts": False,
        "IpcMode": "private",
        "CgroupnsMode": "private",
        "Memory": limits.memory_bytes,
        "MemorySwap": limits.memory_bytes,
        "NanoCpus": round(limits.cpus * 1_000_000_000),
        "PidsLimit": limits.pids,
        "ShmSize": limits.shm_bytes,
        "Sysctls": _what_outlives_its_maker(limits.shm_bytes),
        "Ulimits": _ulimits(limits) if plan.ulimits else [],
        "Tmpfs": _tmpfs(limits),
        "Mounts": _mounts(plan),
        "LogConfig": {"Type": "none", "Config": {}},
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "Init": False,
        "OomScoreAdj": 0,
    }
    if plan.spec.runtime is not None:
        config["Runtime"] = plan.spec.runtime
    return config


def _what_outlives_its_maker(size: int) -> dict[str, str]:
    """SysV's objects outlive every process: without a bound they fill the memory with nobody left to kill.

    Segments have a size; of messages and semaphores there may be as many as take a few MiB of the kernel's memory.
    """
    page = os.sysconf("SC_PAGE_SIZE")
    return {
        "kernel.shmall": str(max(1, size // page)),
        "kernel.shmmax": str(size),
        "kernel.msgmni": "16",
        "kernel.msgmnb": "16384",
        "kernel.sem": "250 32000 100 128",
    }


_SUPERVISOR_FILES = 4096


def _ulimits(limits: Limits) -> list[dict[str, Any]]:
    # The supervisor's own: it holds some descriptors for every exec. Each leader gets `open_files` (`--nofile`).
    files = max(_SUPERVISOR_FILES, limits.open_files)
    return [
        {"Name": "nofile", "Soft": files, "Hard": files},
        {"Name": "core", "Soft": 0, "Hard": 0},
        {"Name": "fsize", "Soft": limits.file_bytes, "Hard": limits.file_bytes},
    ]


def _tmpfs(limits: Limits) -> dict[str, str]:
    """Docker makes every tmpfs `noexec` unless told otherwise; builds run programs in /tmp.

    runc gives a tmpfs the mode of the directory that it covers, whatever was asked for. So an image that brings its own
    /run/kf with mode 0777 would open the supervisor's; below an empty tmpfs at /run there is none to copy from.
    """
    private = f"rw,noexec,nosuid,nodev,size={RUN_BYTES},nr_inodes=500"
    return {
        "/tmp": f"rw,exec,nosuid,nodev,{_bounded(limits.tmp_bytes)},mode=1777",
        # In place of the engine's own, which has no end of empty files: a hundred thousand take 100 MB of the kernel's.
        "/dev/shm": f"rw,noexec,nosuid,nodev,{_bounded(limits.shm_bytes)},mode=1777",
        "/run": f"{private},mode=0755",
        RUN: f"{private},mode=0700",
    }


def _bounded(size: int) -> str:
    """Bytes, and files: each takes nearly a KiB of the kernel's memory, which counts as the sandbox's."""
    return f"size={size},nr_inodes={max(1024, size // 4096)}"


def _mounts(plan: Plan) -> list[dict[str, Any]]:
    """Mounts, not binds: the engine refuses a missing source instead of making it as root."""
    return [
        _bind(str(plan.layout.workspace), WORKSPACE),
        _bind(str(plan.layout.home), HOME),
        _bind(str(plan.layout.dial), DIAL, read_only=True),
        {
            "Type": "volume",
            "Source": plan.volume,
            "Target": BIN,
            "ReadOnly": True,
            "VolumeOptions": {"NoCopy": True, "Labels": dict(plan.volume_labels)},
        },
    ]


def _bind(source: str, target: str, *, read_only: bool = False) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": read_only,
        "BindOptions": {"Propagation": "rprivate"},
    }
