"""What an engine really enforces, measured from inside a short sandbox; kept per engine, so that it is asked once."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio

from kinfold.errors import PathError, SandboxError
from kinfold.sandbox.base import MIB, Control, Limits, ProbeReport
from kinfold.sandbox.docker.client import EngineFacts
from kinfold.sandbox.sandbox import Sandbox
from kinfold.sandbox.state_files import private_dir, unwritable

PROBE_VERSION = 3
"""Raised when the questions change: older answers are then not used."""

SCRIPT = r"""
say() { if [ -r "$2" ]; then read -r line <"$2"; echo "$1=$line"; fi; }
while read -r key value rest; do
  case $key in NoNewPrivs:|Seccomp:|CapEff:) echo "${key%:}=$value";; esac
done </proc/self/status
while read -r id parent device from to options rest; do
  case $to in
    /) echo "root=$options";;
    /workspace) echo "workspace=$options";;
    /tmp) echo "tmp=${rest##*,size=}";;
    /dev/shm) echo "shm=${rest##*,size=}";;
  esac
done </proc/self/mountinfo
while read -r word what name soft hard rest; do
  case "$what $name" in
    "open files") echo "open_files=$hard";;
    "file size") echo "file_size=$hard";;
  esac
done </proc/self/limits
if (: >/kinfold-probe) 2>/dev/null; then echo root_written=1; else echo root_written=0; fi
interfaces=
while read -r name rest; do case $name in *:*) interfaces="$interfaces${name%%:*} ";; esac; done </proc/net/dev
echo "interfaces=$interfaces"
while read -r key value rest; do if [ "$key" = SwapTotal: ]; then echo "swap_total=$value"; fi; done </proc/meminfo
read -r version </proc/version
echo "kernel=$version"
c=/sys/fs/cgroup
say memory $c/memory/memory.limit_in_bytes; say memory $c/memory.max
say memory_and_swap $c/memory/memory.memsw.limit_in_bytes; say swap $c/memory.swap.max
say pids $c/pids/pids.max; say pids $c/pids.max
echo "egress=$(bash -c '
  exec 3<>/dev/tcp/127.0.0.1/3128 && printf "CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: 127.0.0.1:22\r\n\r\n" >&3 &&
  read -r -t 10 line <&3 && echo "$line"' 2>/dev/null || true)"
say cpu_quota $c/cpu/cpu.cfs_quota_us; say cpu_period $c/cpu/cpu.cfs_period_us; say cpu_max $c/cpu.max
"""
"""Only what every shell has built in: an image need not hold a single program besides `sh` (and `bash` for egress)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What one sandbox showed from inside."""

    values: Mapping[str, str]
    """The script's lines; empty where the image has no shell."""
    supervisor: frozenset[str]
    """What the supervisor found to hold (names of `replies.CONTROL_BITS`)."""
    disk: str = ""
    """Why the workspace's size is not bounded; empty: a file larger than the limit did not fit."""
    log: str = ""
    """What the engine keeps of the container's own output: the name of its log driver."""


PROBED_DISK = 4 * MIB
"""The limit of the sandbox that is measured: small, for it is filled."""


async def fill_disk(sandbox: Sandbox) -> str:
    """Write more than `PROBED_DISK` into the workspace and the home; why that could be done, else empty."""
    try:
        await sandbox.write("filler", b"\0" * (PROBED_DISK + MIB), digest=False)
    except PathError as error:
        if error.reason == "no_space":
            return ""
        raise
    return f"{PROBED_DISK // MIB + 1} MiB went into a workspace of {PROBED_DISK // MIB} MiB"


async def look_inside(sandbox: Sandbox) -> Seen:
    """Run the questions in `sandbox`."""
    result = await sandbox.exec(["/bin/sh", "-c", SCRIPT], timeout=20.0)
    values: dict[str, str] = {}
    if result.exit_code == 0:
        for line in result.stdout_text.splitlines():
            key, separator, value = line.partition("=")
            if separator:
                values[key] = value.strip()
    elif result.exit_code not in (126, 127):
        raise SandboxError(
            f"the probe ended with {result.ended_by} {result.exit_code}: {result.stderr_text[:300]}",
            hint="`kinfold doctor` runs it again",
        )
    return Seen(values=values, supervisor=sandbox.controls)


def judge(seen: Seen, limits: Limits, runtime: str, channel: str) -> tuple[Control, ...]:
    """Each control: does what was seen inside match what was asked of the engine?"""
    controls = [
        _memory(seen.values, limits),
        _swap(seen.values, limits),
        _pids(seen.values, limits),
        _cpu(seen.values, limits),
        _disk(seen),
        _workspace_mount(seen.values),
        _expect("open_files", seen.values, "open_files", str(limits.open_files)),
        _expect("file_size", seen.values, "file_size", str(limits.file_bytes)),
        _tmpfs(seen.values, limits),
        _yes(
            "log", seen.log == "none", f"the engine keeps the supervisor's output by its {seen.log or 'unknown'} driver"
        ),
        _network(seen.values),
        _allowlist(seen.values),
        _seccomp(seen),
        _expect("no_new_privileges", seen.values, "NoNewPrivs", "1"),
        _expect("capabilities", seen.values, "CapEff", "0000000000000000"),
        _read_only_root(seen.values),
        _runtime(seen.values, runtime),
        _yes(
            "supervisor_isolation",
            {"separate_uid", "warden"} <= seen.supervisor,
            "the agent and the supervisor share a uid",
        ),
        Control(
            name="channel", enforced=True, reason="local socket" if channel == "socket" else "the engine's exec stream"
        ),
    ]
    return tuple(controls)


def _memory(values: Mapping[str, str], limits: Limits) -> Control:
    return _expect("memory", values, "memory", str(limits.memory_bytes))


def _swap(values: Mapping[str, str], limits: Limits) -> Control:
    if "swap" in values:
        return _expect("swap", values, "swap", "0")
    if "memory_and_swap" in values:
        return _expect("swap", values, "memory_and_swap", str(limits.memory_bytes))
    without = values.get("swap_total") == "0"
    return _yes("swap", without, "the kernel does not account for swap (boot with swapaccount=1), and there is some")


def _pids(values: Mapping[str, str], limits: Limits) -> Control:
    return _expect("pids", values, "pids", str(limits.pids))


def _cpu(values: Mapping[str, str], limits: Limits) -> Control:
    quota, _, period = values.get("cpu_max", "").partition(" ")
    quota, period = values.get("cpu_quota", quota), values.get("cpu_period", period)
    if not quota.isdigit() or not period.isdigit() or period == "0":
        return Control(name="cpu", enforced=False, reason=_unseen("cpu", quota))
    share = int(quota) / int(period)
    return _yes("cpu", abs(share - limits.cpus) < 0.02, f"asked for {limits.cpus:g} cpus, found {share:g}")


def _disk(seen: Seen) -> Control:
    return _yes("disk", not seen.disk, f"{seen.disk}; only single files are bounded (file_bytes)")


def _workspace_mount(values: Mapping[str, str]) -> Control:
    found = values.get("workspace", "")
    held = {"nosuid", "nodev"} <= set(found.split(","))
    return _yes("workspace_nosuid", held, f"/workspace is mounted {found}" if found else _unseen("workspace", ""))


def _tmpfs(values: Mapping[str, str], limits: Limits) -> Control:
    """/tmp and /dev/shm live in memory: each has the size that was asked for."""
    for name, wanted in (("tmp", limits.tmp_bytes), ("shm", limits.shm_bytes)):
        found = values.get(name, "").partition(",")[0]
        if found != f"{wanted // 1024}k":
            return Control(
                name="tmpfs", enforced=False, reason=_unseen(name, found) if not found else f"{name}: {found}"
            )
    return Control(name="tmpfs", enforced=True)


def _network(values: Mapping[str, str]) -> Control:
    found = values.get("interfaces", "").split()
    if not found:
        return Control(name="network_none", enforced=False, reason=_unseen("interfaces", ""))
    return _yes("network_none", found == ["lo"], f"interfaces besides lo: {' '.join(found)}")


def _allowlist(values: Mapping[str, str]) -> Control:
    """Whether the one way out (`network_none` says that it is the only one) refuses what is not listed."""
    answer = values.get("egress", "")
    if not answer:
        reason = "not measured: nothing inside could ask the proxy (an image with /bin/bash can)"
        return Control(name="network_allowlist", enforced=False, reason=reason)
    return _yes("network_allowlist", answer.startswith("HTTP/1.1 403"), f"the proxy said {answer[:80]!r}")


def _seccomp(seen: Seen) -> Control:
    found = _expect("seccomp", seen.values, "Seccomp", "2")
    if found.enforced and "seccomp" not in seen.supervisor:
        return Control(name="seccomp", enforced=False, reason="the supervisor's own filter is not in force")
    return found


def _read_only_root(values: Mapping[str, str]) -> Control:
    if "root" not in values:
        return Control(name="read_only_root", enforced=False, reason=_unseen("root", ""))
    held = "ro" in values["root"].split(",") and values.get("root_written") == "0"
    return _yes("read_only_root", held, f"the root file system is mounted {values['root']}")


def _runtime(values: Mapping[str, str], runtime: str) -> Control:
    """runsc shows itself in the kernel's version; for the others the engine's word has to do."""
    if runtime == "runsc" and "gvisor" not in values.get("kernel", "").lower():
        return Control(name="runtime", enforced=False, reason="runsc was asked for, but the kernel is not gVisor's")
    return Control(name="runtime", enforced=True, reason=runtime)


def _expect(name: str, values: Mapping[str, str], key: str, wanted: str) -> Control:
    found = values.get(key, "")
    if found == wanted:
        return Control(name=name, enforced=True)
    return Control(name=name, enforced=False, reason=_unseen(key, found) if not found else f"{found}, not {wanted}")


def _yes(name: str, held: bool, reason: str) -> Control:
    return Control(name=name, enforced=held, reason="" if held else reason)


def _unseen(key: str, found: str) -> str:
    return f"not measured: {key} is {found or 'not readable'} inside (an image with /bin/sh shows more)"


# --- what was measured once -----------------------------------------------------------------------------------------


def cache_key(facts: EngineFacts, runtime: str | None, digest: str, channel: str, host: str = "") -> str:
    """Everything that could change an answer; `host` is what this side brings to it."""
    parts = [PROBE_VERSION, facts.id, facts.version, facts.kernel, facts.cgroup_version, facts.cpus, facts.root_dir]
    parts += [*facts.security_options, runtime or facts.default_runtime, digest, channel, host]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


class ProbeCache:
    """Reports by engine, in memory and in the state directory."""

    def __init__(self, state_dir: Path) -> None:
        self._directory = state_dir / "probes"
        self._known: dict[str, ProbeReport] = {}
        self.lock = anyio.Lock()

    def get(self, key: str) -> ProbeReport | None:
        """What was measured; a file that cannot be read counts as nothing."""
        if key not in self._known:
            try:
                data = json.loads((self._directory / f"{key}.json").read_text(encoding="utf-8"))
                controls = tuple(
                    Control(name=str(item["name"]), enforced=item["enforced"] is True, reason=str(item["reason"]))
                    for item in data["controls"]
                )
                self._known[key] = ProbeReport(engine=str(data["engine"]), controls=controls)
            except (OSError, ValueError, KeyError, TypeError):
                return None
        return self._known[key]

    def put(self, key: str, report: ProbeReport) -> None:
        """Keep what was measured."""
        self._known[key] = report
        private_dir(self._directory.parent)
        private_dir(self._directory)
        controls = [{"name": c.name, "enforced": c.enforced, "reason": c.reason} for c in report.controls]
        path = self._directory / f"{key}.json"
        fresh = self._directory / f".{secrets.token_hex(8)}"
        try:
            fresh.write_text(json.dumps({"engine": report.engine, "controls": controls}), encoding="utf-8")
            os.replace(fresh, path)
        except OSError as error:
            fresh.unlink(missing_ok=True)
            raise unwritable(path, error) from error
