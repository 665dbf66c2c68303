"""What the host's own kernel says of a container: the proof from outside that nobody is left."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.docker.provider_support import engine_api

from kinfold.sandbox.sandbox import Sandbox

AGENT = 1000
WARDEN = 65533
AS_ROOT = [] if os.geteuid() == 0 else ["sudo", "-n", "--"]


def as_root(*command: str) -> None:
    """On the host, and as root of it: by sudo where we are somebody else."""
    subprocess.run([*AS_ROOT, *command], check=True, timeout=30)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """One process, zombies too, as /proc on the host shows it."""

    pid: int
    """The host's number."""
    uid: int
    state: str
    words: str
    """Its command line; its name in brackets where it has none, as a zombie."""


def processes_of(container: str) -> list[Seen]:
    """Every process in the container's cgroups, whatever its uid, session, parent, name or state."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if container in (entry / "cgroup").read_text():
                found.append(_seen(entry))
        except (FileNotFoundError, ProcessLookupError):
            continue  # it went while we looked
    return found


def _seen(entry: Path) -> Seen:
    status = dict(line.split(":\t", 1) for line in (entry / "status").read_text().splitlines() if ":\t" in line)
    words = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    uid = int(status["Uid"].split()[0])
    return Seen(pid=int(entry.name), uid=uid, state=status["State"][0], words=words or f"[{status['Name']}]")


def of_the_agent(sandbox: Sandbox) -> list[str]:
    """The command lines of all that runs, or lies dead, as the agent in a sandbox's container."""
    return sorted(seen.words for seen in processes_of(sandbox.ref.handle) if seen.uid == AGENT)


def first_process(sandbox: Sandbox) -> int:
    """The host's pid of the container's PID 1."""
    with engine_api() as api:
        return int(api.inspect_container(sandbox.ref.handle)["State"]["Pid"])


def signal_from_outside(pid: int, name: str) -> None:
    """A signal of the host's root, from which nothing in a container is safe."""
    subprocess.run([*AS_ROOT, "kill", f"-{name}", str(pid)], check=True, timeout=10)


def read_as_root(path: str) -> bytes:
    """A file of /proc that only the host's root reads; empty where its process is gone."""
    return subprocess.run([*AS_ROOT, "cat", path], capture_output=True, timeout=10).stdout


def as_root_inside(sandbox: Sandbox, script: str) -> str:
    """What a shell says that the engine runs as uid 0 in the container: more than an agent ever gets there."""
    with engine_api() as api:
        started = api.exec_create(sandbox.ref.handle, ["sh", "-c", script], user="0:0")
        return bytes(api.exec_start(started["Id"])).decode("utf-8", "replace")
