"""Whether a container still is what was made: image, program, mounts, network, every flag and limit, and its start.

Of what the engine says after the start, a digest per part goes into the sandbox's record; whoever connects compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

_FLAGS = (
    "AutoRemove", "Binds", "CapAdd", "CapDrop", "CgroupnsMode", "CpusetCpus", "CpuPeriod", "CpuQuota", "CpuShares",
    "DeviceCgroupRules", "DeviceRequests", "Devices", "Dns", "ExtraHosts", "GroupAdd", "Init", "IpcMode", "LogConfig",
    "MaskedPaths", "Memory", "MemorySwap", "NanoCpus", "NetworkMode", "OomKillDisable", "OomScoreAdj", "PidMode",
    "PidsLimit", "PortBindings", "Privileged", "PublishAllPorts", "ReadonlyPaths", "ReadonlyRootfs", "RestartPolicy",
    "Runtime", "SecurityOpt", "ShmSize", "Sysctls", "Tmpfs", "UTSMode", "Ulimits", "UsernsMode", "VolumesFrom",
)  # fmt: skip
_PROGRAM = ("Entrypoint", "Cmd", "User", "WorkingDir", "Env", "Tty", "OpenStdin")
_MOUNT = ("Type", "Name", "Source", "Destination", "RW", "Propagation")


def parts_of(found: Mapping[str, Any]) -> dict[str, str]:
    """A digest per part, from the engine's answer to an inspect. What is absent, empty, zero or false is the same."""
    config, host = found.get("Config") or {}, found.get("HostConfig") or {}
    mounts = [[mount.get(word) or None for word in _MOUNT] for mount in found.get("Mounts") or ()]
    parts: dict[str, Any] = {
        "image": found.get("Image"),
        "start": (found.get("State") or {}).get("StartedAt"),
        "program": [config.get(word) or None for word in _PROGRAM],
        "mounts": sorted(mounts, key=repr),
        "networks": sorted((found.get("NetworkSettings") or {}).get("Networks") or {}),
    }
    parts |= {word: host.get(word) or None for word in _FLAGS}
    return {name: _digest(value) for name, value in parts.items()}


def changed_parts(then: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """The parts that are not what they were; a part that was not noted is not known to be the same."""
    return [name for name, digest in now.items() if then.get(name) != digest]


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
