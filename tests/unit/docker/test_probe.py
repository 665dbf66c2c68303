"""What was seen inside a sandbox is judged against what was asked for: a control that does not hold is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinfold.sandbox.base import Control, Limits, ProbeReport
from kinfold.sandbox.docker.client import read_facts
from kinfold.sandbox.docker.probe import ProbeCache, Seen, cache_key, judge

SUPERVISOR = frozenset({"pid1", "separate_uid", "warden", "seccomp"})
COMMON = {
    "NoNewPrivs": "1",
    "Seccomp": "2",
    "CapEff": "0000000000000000",
    "root": "ro,relatime",
    "root_written": "0",
    "interfaces": "lo",
    "swap_total": "1000",
    "kernel": "Linux version 6.1",
    "memory": "2147483648",
    "pids": "512",
    "workspace": "rw,nosuid,nodev,noatime",
    "open_files": "4096",
    "file_size": "2147483648",
    "tmp": "65536k,nr_inodes=20000",
    "shm": "65536k",
    "egress": "HTTP/1.1 403 kinfold: not in the list",
}
V1 = COMMON | {"memory_and_swap": "2147483648", "cpu_quota": "200000", "cpu_period": "100000"}
V2 = COMMON | {"swap": "0", "cpu_max": "200000 100000"}


def judged(
    values: dict[str, str],
    supervisor: frozenset[str] = SUPERVISOR,
    runtime: str = "runc",
    disk: str = "",
    log: str = "none",
) -> dict[str, Control]:
    """The controls by name."""
    seen = Seen(values=values, supervisor=supervisor, disk=disk, log=log)
    return {control.name: control for control in judge(seen, Limits(), runtime, "socket")}


@pytest.mark.parametrize("values", [V1, V2], ids=["cgroup v1", "cgroup v2"])
def test_a_hardened_engine_enforces_everything(values: dict[str, str]) -> None:
    controls = judged(values)
    assert [name for name, control in controls.items() if not control.enforced] == []
    assert controls["channel"].reason == "local socket"


def test_a_disk_that_took_more_than_its_limit_and_a_log_that_grows_are_named() -> None:
    controls = judged(V1, disk="the host lacks mkfs.ext4", log="json-file")
    assert [name for name, control in controls.items() if not control.enforced] == ["disk", "log"]
    assert controls["disk"].reason.startswith("the host lacks mkfs.ext4")
    assert "json-file" in controls["log"].reason


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"memory": "9223372036854771712"}, "memory"),
        ({"memory": ""}, "memory"),
        ({"memory_and_swap": "4294967296"}, "swap"),
        ({"pids": "max"}, "pids"),
        ({"cpu_quota": "-1"}, "cpu"),
        ({"cpu_quota": "100000"}, "cpu"),
        ({"interfaces": "lo eth0"}, "network_none"),
        ({"interfaces": ""}, "network_none"),
        ({"egress": "HTTP/1.1 200 Connection established"}, "network_allowlist"),
        ({"egress": ""}, "network_allowlist"),
        ({"Seccomp": "0"}, "seccomp"),
        ({"NoNewPrivs": "0"}, "no_new_privileges"),
        ({"CapEff": "00000000000000c0"}, "capabilities"),
        ({"root": "rw,relatime"}, "read_only_root"),
        ({"root_written": "1"}, "read_only_root"),
        ({"workspace": "rw,relatime"}, "workspace_nosuid"),
        ({"workspace": ""}, "workspace_nosuid"),
        ({"open_files": "1048576"}, "open_files"),
        ({"file_size": "unlimited"}, "file_size"),
        ({"tmp": ""}, "tmpfs"),
        ({"shm": "16777216k"}, "tmpfs"),
    ],
)
def test_each_control_that_does_not_hold_is_named_with_a_reason(change: dict[str, str], name: str) -> None:
    controls = judged(V1 | change)
    assert [n for n, control in controls.items() if not control.enforced] == [name]
    assert controls[name].reason


def test_swap_that_is_not_counted_matters_only_where_there_is_some() -> None:
    without = {key: value for key, value in V1.items() if key != "memory_and_swap"}
    assert not judged(without)["swap"].enforced
    assert judged(without | {"swap_total": "0"})["swap"].enforced


def test_a_shared_uid_is_no_isolation() -> None:
    assert not judged(V1, SUPERVISOR - {"separate_uid"})["supervisor_isolation"].enforced
    assert not judged(V1, SUPERVISOR - {"seccomp"})["seccomp"].enforced


def test_a_runsc_that_is_not_gvisor_is_found_out() -> None:
    assert not judged(V1, runtime="runsc")["runtime"].enforced
    assert judged(V1 | {"kernel": "Linux version 4.4.0 gVisor"}, runtime="runsc")["runtime"].enforced


def test_an_image_without_a_shell_leaves_nothing_claimed() -> None:
    controls = judged({})
    for name in ("memory", "swap", "pids", "cpu", "network_none", "seccomp", "no_new_privileges", "read_only_root"):
        assert not controls[name].enforced


def test_a_report_is_measured_once_per_engine_and_survives_the_process(tmp_path: Path) -> None:
    facts = read_facts({"ID": "A"}, {"ApiVersion": "1.41"})
    key = cache_key(facts, None, "digest", "auto")
    assert key != cache_key(read_facts({"ID": "B"}, {"ApiVersion": "1.41"}), None, "digest", "auto")
    assert key != cache_key(facts, "runsc", "digest", "auto")
    report = ProbeReport(engine="e", controls=(Control(name="disk", enforced=False, reason="none"),))
    ProbeCache(tmp_path).put(key, report)
    assert ProbeCache(tmp_path).get(key) == report
    (tmp_path / "probes" / f"{key}.json").write_text("{")
    assert ProbeCache(tmp_path).get(key) is None
