"""The seam to the store of sandbox records, and one that keeps them as JSON files.

A record is written before its container exists and says who owns it, so that whatever a crash leaves behind can be
found and proved dead. Labels on the container cannot change after create; leases and owners stand here. Every change
is a compare-and-set against the record that its maker has read: of two that want the same sandbox one wins, and the
other gets `LeaseLost`.
"""

from __future__ import annotations

import builtins
import contextlib
import fcntl
import json
import os
import re
import secrets
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from kinfold.errors import NotFound, StoreError
from kinfold.sandbox import record as transitions
from kinfold.sandbox.owner import Owner
from kinfold.sandbox.record import KEPT_GONE, BrokenRecord, RecordList, SandboxRecord
from kinfold.sandbox.state_files import is_full, private_dir, unwritable

__all__ = [
    "BrokenRecord",
    "FileRecords",
    "Owner",
    "RecordList",
    "Records",
    "SandboxRecord",
    "private_dir",
    "unwritable",
]

_FILE = re.compile(r"(sbx_[0-9a-f]{16})\.json\Z")


class Records(Protocol):
    """Where sandbox records are kept; every change is durable when the call returns.

    Every method may raise `StoreError`.
    """

    async def intend(self, record: SandboxRecord) -> SandboxRecord:
        """Keep `record` before its container is made; or, where a live record of the same instance has its name,
        change nothing and return that one."""
        ...

    async def adopt(self, record: SandboxRecord) -> SandboxRecord:
        """The container exists, or another owner takes over, or the record's other fields are new: `record` is the
        one that was read, with the changes. A new owner makes a new generation. What is now kept is returned.

        Raises `LeaseLost` where somebody took it over or began to end it meanwhile, `NotFound`, and for a name that
        another live sandbox has `ConfigError`.
        """
        ...

    async def renew(self, held: SandboxRecord, expires_at: float | None) -> SandboxRecord:
        """Move the lease's end. Raises `LeaseLost` where `held`'s generation is over or its end began, `NotFound`."""
        ...

    async def claim(self, seen: SandboxRecord, by: Owner, reason: str) -> SandboxRecord:
        """Take the right to remove it, if nothing changed since it was `seen`; the reason is kept for those who ask.

        From now on nobody can renew or adopt it, also after a crash of the claimer. Raises `LeaseLost`, `NotFound`.
        """
        ...

    async def release(self, held: SandboxRecord, *, keep_until: float | None = None) -> None:
        """The container is gone: only its workspace is left, until `keep_until`, or nothing but the reason.

        Raises `LeaseLost` where `held`'s generation is over; a record that is not there is no error.
        """
        ...

    async def list(self, *, id: str | None = None, gone: bool = False) -> RecordList:
        """All records, or the one with this id; with `gone` also those of which nothing is left (the last 1,000)."""
        ...


class FileRecords:
    """Records as one JSON file each (0600), replaced atomically, guarded by a lock file.

    Those of which nothing is left lie in `gone/`, so that what is read often stays small.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._gone = directory / "gone"

    async def intend(self, record: SandboxRecord) -> SandboxRecord:
        """See `Records.intend`."""
        with self._locked():
            if (held := self._holder_of(record)) is not None:
                return held
            self._write(self._path(record.id), record)
        return record

    async def adopt(self, record: SandboxRecord) -> SandboxRecord:
        """See `Records.adopt`."""

        def change(current: SandboxRecord) -> SandboxRecord:
            if record.name != current.name and (held := self._holder_of(record)) is not None:
                raise transitions.name_taken(held)
            return transitions.adopted(current, record)

        return self._change(record.id, change)

    async def renew(self, held: SandboxRecord, expires_at: float | None) -> SandboxRecord:
        """See `Records.renew`."""
        return self._change(held.id, lambda current: transitions.renewed(current, held, expires_at))

    async def claim(self, seen: SandboxRecord, by: Owner, reason: str) -> SandboxRecord:
        """See `Records.claim`."""
        return self._change(seen.id, lambda current: transitions.claimed(current, seen, by, reason))

    async def release(self, held: SandboxRecord, *, keep_until: float | None = None) -> None:
        """See `Records.release`."""
        with contextlib.suppress(NotFound):
            self._change(held.id, lambda current: transitions.released(current, held, keep_until))

    async def list(self, *, id: str | None = None, gone: bool = False) -> RecordList:
        """See `Records.list`."""
        folders = [self._directory, self._gone] if gone else [self._directory]
        if id is None:
            found = [_read(path) for folder in folders for path in _files(folder)]
        else:
            found = [_read(folder / self._path(id).name) for folder in folders]
        return _sorted(item for item in found if gone or not (isinstance(item, SandboxRecord) and item.state == "gone"))

    def _holder_of(self, record: SandboxRecord) -> SandboxRecord | None:
        """The live record that has this one's name."""
        if not record.name:
            return None
        whose = (record.name, record.instance)
        others = (_read(path) for path in _files(self._directory) if path.stem != record.id)
        same = (o for o in others if isinstance(o, SandboxRecord) and o.live and (o.name, o.instance) == whose)
        return next(same, None)

    def _change(self, id: str, change: Callable[[SandboxRecord], SandboxRecord]) -> SandboxRecord:
        with self._locked():
            path = self._path(id)
            found = _read(path) or _read(self._gone / path.name)
            if not isinstance(found, SandboxRecord):
                raise transitions.unknown(id)
            record = change(found)
            if record.state == "gone":
                self._bury(path, record)
            else:
                self._write(path, record)
        return record

    def _bury(self, path: Path, record: SandboxRecord) -> None:
        private_dir(self._gone)
        self._write(path, record)  # the reason first: a crash between the two leaves a record that can be read
        os.replace(path, self._gone / path.name)
        buried = _files(self._gone)
        if len(buried) > KEPT_GONE + KEPT_GONE // 10:
            for old in sorted(buried, key=lambda file: file.stat().st_mtime)[:-KEPT_GONE]:
                old.unlink(missing_ok=True)

    def _path(self, id: str) -> Path:
        return self._directory / f"{transitions.checked_id(id)}.json"

    def _write(self, path: Path, record: SandboxRecord) -> None:
        temporary = path.with_name(f".{record.id}.{secrets.token_hex(4)}")
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            with os.fdopen(os.open(temporary, flags, 0o600), "w", encoding="utf-8") as file:
                json.dump(record.model_dump(mode="json"), file, indent=1)  # escapes what is no UTF-8
            os.replace(temporary, path)
        except OSError as error:
            temporary.unlink(missing_ok=True)
            raise _failed(path, error) from error

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        private_dir(self._directory)
        path = self._directory / ".lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise _failed(path, error) from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _failed(path: Path, error: OSError) -> StoreError:
    known = unwritable(path, error)
    return StoreError(known.message, hint=known.hint, code="store_full" if is_full(error) else "store_unwritable")


def _files(folder: Path) -> builtins.list[Path]:
    try:
        return [folder / name for name in sorted(os.listdir(folder)) if _FILE.match(name)]
    except FileNotFoundError:
        return []


def _read(path: Path) -> SandboxRecord | BrokenRecord | None:
    """None where there is no such file, or it went between listing and reading."""
    try:
        record = SandboxRecord.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, ValidationError) as error:
        return BrokenRecord(source=str(path), reason=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
    if path.name != f"{record.id}.json":
        return BrokenRecord(source=str(path), reason=f"holds the record of {record.id[:40]}")
    return record


def _sorted(found: Iterable[SandboxRecord | BrokenRecord | None]) -> RecordList:
    items = builtins.list(found)
    records = sorted((item for item in items if isinstance(item, SandboxRecord)), key=lambda item: item.created_at)
    return RecordList(records=tuple(records), broken=tuple(item for item in items if isinstance(item, BrokenRecord)))
