"""Which process owns a sandbox, and whether it still runs: the one question on which everything is reaped or left."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict


class Owner(BaseModel):
    """A process, named so that another one which later gets its pid is not mistaken for it."""

    model_config = ConfigDict(frozen=True)

    host: str
    pid: int
    started: int
    """Clock ticks after boot (field 22 of /proc/PID/stat); 0 where there is no /proc."""
    boot: str
    namespace: int
    """Inode of the pid namespace: pids of another one mean nothing here."""

    @classmethod
    def current(cls) -> Owner:
        """This process."""
        return cls(
            host=socket.gethostname(),
            pid=os.getpid(),
            started=_start_time(os.getpid()) or 0,
            boot=_boot_id(),
            namespace=_pid_namespace(),
        )

    def fate(self) -> Literal["alive", "dead", "unknown"]:
        """Whether that process still runs; `dead` only where this machine can prove it."""
        if self.host != socket.gethostname():
            return "unknown"
        if self.boot != _boot_id():
            return "dead"
        if self.namespace != _pid_namespace():
            return "unknown"
        if self.started == 0:
            return "alive" if _exists(self.pid) else "dead"
        return "alive" if _start_time(self.pid) == self.started else "dead"

    def describe(self) -> str:
        """For a person."""
        return f"process {self.pid} on {self.host}"


def _start_time(pid: int) -> int | None:
    """When the process started, in clock ticks after boot; None where it is gone, a zombie, or there is no /proc."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = text[text.rindex(")") + 2 :].split()
    return None if fields[0] in ("Z", "X") else int(fields[19])


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    except OSError:
        return ""


def _pid_namespace() -> int:
    try:
        return os.stat("/proc/self/ns/pid").st_ino
    except OSError:
        return 0


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
