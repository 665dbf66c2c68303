"""A container that differs in anything that shapes it is not the one that was made."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kinfold.sandbox.docker.sameness import changed_parts, parts_of

MADE: dict[str, Any] = {
    "Id": "a" * 64,
    "Image": "sha256:1",
    "State": {"Status": "running", "StartedAt": "2026-01-01T00:00:00Z", "Pid": 7},
    "Config": {"Entrypoint": ["/run/kf/bin/kinfold-supervisor"], "Cmd": ["init"], "User": "0:0", "Env": []},
    "HostConfig": {
        "CapDrop": ["ALL"],
        "CapAdd": ["SETUID", "SETGID", "KILL"],
        "SecurityOpt": ["no-new-privileges:true"],
        "Memory": 1 << 28,
        "MemorySwap": 1 << 28,
        "NanoCpus": 10**9,
        "PidsLimit": 256,
        "ReadonlyRootfs": True,
        "NetworkMode": "none",
        "Devices": [],
    },
    "Mounts": [
        {"Type": "bind", "Source": "/s/w", "Destination": "/workspace", "RW": True},
        {"Type": "volume", "Name": "v", "Source": "/v", "Destination": "/run/kf/bin", "RW": False},
    ],
    "NetworkSettings": {"Networks": {"none": {"NetworkID": "n"}}},
}
TAMPERED: list[tuple[str, list[str | int], Any]] = [
    ("image", ["Image"], "sha256:2"),
    ("start", ["State", "StartedAt"], "2026-01-01T00:00:01Z"),
    ("program", ["Config", "Cmd"], ["init", "--root", "/"]),
    ("program", ["Config", "User"], "1:1"),
    ("program", ["Config", "Env"], ["LD_PRELOAD=/workspace/x.so"]),
    ("mounts", ["Mounts", 0, "Source"], "/"),
    ("mounts", ["Mounts", 1, "RW"], True),
    ("mounts", ["Mounts", 1, "Name"], "another"),
    ("networks", ["NetworkSettings", "Networks"], {"none": {}, "bridge": {}}),
    ("CapAdd", ["HostConfig", "CapAdd"], ["SYS_ADMIN"]),
    ("SecurityOpt", ["HostConfig", "SecurityOpt"], None),
    ("Memory", ["HostConfig", "Memory"], 1 << 33),
    ("NanoCpus", ["HostConfig", "NanoCpus"], 0),
    ("PidsLimit", ["HostConfig", "PidsLimit"], None),
    ("ReadonlyRootfs", ["HostConfig", "ReadonlyRootfs"], False),
    ("Privileged", ["HostConfig", "Privileged"], True),
    ("Devices", ["HostConfig", "Devices"], [{"PathOnHost": "/dev/sda"}]),
    ("PidMode", ["HostConfig", "PidMode"], "host"),
    ("RestartPolicy", ["HostConfig", "RestartPolicy"], {"Name": "always"}),
]


@pytest.mark.threat("G02")
@pytest.mark.parametrize(("part", "path", "value"), TAMPERED, ids=lambda value: "".join(f"{value}"[:24]))
def test_each_tampered_field_is_named(part: str, path: list[str | int], value: Any) -> None:
    other = copy.deepcopy(MADE)
    at: Any = other
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = value
    assert changed_parts(parts_of(MADE), parts_of(other)) == [part]


def test_what_comes_and_goes_while_it_runs_is_no_change() -> None:
    other = copy.deepcopy(MADE)
    other["State"] |= {"Status": "paused", "Pid": 8}
    other["HostConfig"] |= {"Devices": None, "Binds": [], "PidMode": ""}
    other["Mounts"].reverse()
    assert changed_parts(parts_of(MADE), parts_of(other)) == []


def test_what_was_not_noted_is_not_known_to_be_the_same() -> None:
    assert set(changed_parts({}, parts_of(MADE))) == set(parts_of(MADE))
