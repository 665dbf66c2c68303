"""The seam to the store of sandbox records, and one that keeps them as JSON files.

A record is written before its container exists and says who owns it, so that whatever a crash leaves behind can be
found and proved dead. Labels on the container cannot change after create; leases and owners stand here.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, ValidationError

from kinfold.errors import ConfigError, NotFound

STATE_VARIABLE = "KINFOLD_STATE"
_FILE = re.compile(r"(sbx_[0-9a-f]{16})\.json\Z")


def default_state_dir() -> Path:
    """`KINFOLD_STATE`, else `kinfold` in the user's state directory."""
    explicit = os.environ.get(STATE_VARIABLE)
    if explicit:
        return Path(explicit).absolute()
    base = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(base).absolute() / "kinfold"


def private_dir(path: Path) -> Path:
    """`path`, made with mode 0700 where it is missing; refused where it is somebody else's."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise ConfigError(
            f"the state directory {path} cannot be made: {error.strerror}",
            hint=f"set {STATE_VARIABLE} to a directory of yours",
        ) from error
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o002:
        raise ConfigError(
            f"the state directory {path} can be written by others",
            hint=f"`chmod 700 {path}`, or set {STATE_VARIABLE} to a directory of yours",
        )
    return path


def unwritable(path: Path, error: OSError) -> ConfigError:
    """The error to raise where something of the state directory cannot be written."""
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return ConfigError(
        f"cannot write {path}: {error.strerror}",
        hint="free some disk space" if full else f"set {STATE_VARIABLE} to a directory of yours",
    )


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


class SandboxRecord(BaseModel):
    """What is known of one sandbox, whatever became of its container."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    provider: str
    instance: str
    engine: str = ""
    """The engine's own id: another engine's containers are never looked for here."""
    name: str = ""
    spec_hash: str = ""
    spec: dict[str, Any] = {}
    """The `SandboxSpec` without its secrets."""
    state: Literal["intended", "adopted", "released"] = "intended"
    handle: str = ""
    image: str = ""
    workspace: str = ""
    made: bool = True
    """Whether kinfold made the workspace; a given one is never removed."""
    owner: Owner
    detached: bool = False
    labels: dict[str, str] = {}
    created_at: float
    """Seconds since the epoch, as are the other times."""
    expires_at: float | None = None
    """The lease's end; None: as long as the owner lives."""
    keep_until: float | None = None
    """Of a released record: when its workspace may go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRecord:
    """A record that cannot be read: reported, never trusted."""

    source: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordList:
    """What `Records.list` found."""

    records: tuple[SandboxRecord, ...]
    broken: tuple[BrokenRecord, ...] = ()


class Records(Protocol):
    """Where sandbox records are kept; every change is durable when the call returns."""

    async def intend(self, record: SandboxRecord) -> SandboxRecord:
        """Keep `record` before its container is made; or, where an unreleased record of the same instance has its
        name, change nothing and return that one."""
        ...

    async def adopt(self, id: str, *, handle: str | None = None, owner: Owner | None = None) -> SandboxRecord:
        """The container exists (`handle`), or this owner takes over. Raises `NotFound`."""
        ...

    async def renew(self, id: str, expires_at: float | None) -> SandboxRecord:
        """Move the lease's end. Raises `NotFound`."""
        ...

    async def release(self, id: str, *, keep_until: float | None = None) -> None:
        """The container is gone. The record goes too, unless the workspace stays until `keep_until`."""
        ...

    async def list(self, *, id: str | None = None) -> RecordList:
        """All records, or the one with this id."""
        ...


class FileRecords:
    """Records as one JSON file each (0600), replaced atomically, guarded by a lock file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    async def intend(self, record: SandboxRecord) -> SandboxRecord:
        """See `Records.intend`."""
        with self._locked():
            if record.name:
                for other in self._read_all().records:
                    if other.state != "released" and (other.name, other.instance) == (record.name, record.instance):
                        return other
            self._write(record)
        return record

    async def adopt(self, id: str, *, handle: str | None = None, owner: Owner | None = None) -> SandboxRecord:
        """See `Records.adopt`."""
        changes: dict[str, Any] = {"state": "adopted"}
        if handle is not None:
            changes["handle"] = handle
        if owner is not None:
            changes["owner"] = owner
        return self._change(id, changes)

    async def renew(self, id: str, expires_at: float | None) -> SandboxRecord:
        """See `Records.renew`."""
        return self._change(id, {"expires_at": expires_at})

    async def release(self, id: str, *, keep_until: float | None = None) -> None:
        """See `Records.release`."""
        if keep_until is None:
            with self._locked():
                self._path(id).unlink(missing_ok=True)
            return
        with contextlib.suppress(NotFound):
            self._change(id, {"state": "released", "keep_until": keep_until})

    async def list(self, *, id: str | None = None) -> RecordList:
        """See `Records.list`."""
        if id is None:
            return self._read_all()
        path = self._path(id)
        return _sorted([_read(path)] if path.exists() else [])

    def _change(self, id: str, changes: dict[str, Any]) -> SandboxRecord:
        with self._locked():
            path = self._path(id)
            found = _read(path) if path.exists() else None
            if not isinstance(found, SandboxRecord):
                raise NotFound(f"no readable record of sandbox {id}", hint="`kinfold sandbox list` shows what is known")
            record = found.model_copy(update=changes)
            self._write(record)
        return record

    def _read_all(self) -> RecordList:
        if not self._directory.is_dir():
            return RecordList(records=())
        names = sorted(name for name in os.listdir(self._directory) if _FILE.match(name))
        found = (_read(self._directory / name) for name in names)
        return _sorted([item for item in found if item is not None])

    def _path(self, id: str) -> Path:
        if not _FILE.match(f"{id}.json"):
            raise NotFound(f"{id!r} is not a sandbox id", hint="ids look like sbx_0123456789abcdef")
        return self._directory / f"{id}.json"

    def _write(self, record: SandboxRecord) -> None:
        path = self._path(record.id)
        temporary = path.with_name(f".{record.id}.{secrets.token_hex(4)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
                file.write(record.model_dump_json(indent=1))
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise unwritable(path, error) from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        private_dir(self._directory)
        path = self._directory / ".lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise unwritable(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _read(path: Path) -> SandboxRecord | BrokenRecord | None:
    """None where the file went between listing and reading."""
    try:
        record = SandboxRecord.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ValidationError) as error:
        return BrokenRecord(source=str(path), reason=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
    if path.name != f"{record.id}.json":
        return BrokenRecord(source=str(path), reason=f"holds the record of {record.id[:40]}")
    return record


def _sorted(found: builtins.list[SandboxRecord | BrokenRecord | None]) -> RecordList:
    records = sorted((item for item in found if isinstance(item, SandboxRecord)), key=lambda item: item.created_at)
    return RecordList(records=tuple(records), broken=tuple(item for item in found if isinstance(item, BrokenRecord)))


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
