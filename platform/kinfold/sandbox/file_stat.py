"""What the supervisor says of a path, as the `FileStat` that callers see."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from struct import Struct
from struct import error as StructError

from kinfold.sandbox import replies
from kinfold.sandbox.base import FileStat, FileType
from kinfold.sandbox.protocol import ProtocolViolation
from kinfold.sandbox.replies import Failure, Record
from kinfold.sandbox.workspace import to_text

_LENGTH = Struct("<I")
_BLANK = FileStat.__new__
_SET = {field.name: getattr(FileStat, field.name).__set__ for field in fields(FileStat)}
_SET_ALWAYS = tuple(_SET[name] for name in ("path", "type", "mode", "size", "mtime_ns", "ctime_ns", "inode"))
_SET_REST = tuple(_SET[name] for name in ("target", "sha256", "entries", "target_type"))


def file_stat(path: str, record: Record) -> FileStat:
    """A record as what callers see; `path` is absolute in the container."""
    kind, mode, size, mtime_ns, ctime_ns, inode, target, sha256, entries, target_type = record
    stat = _plain(path, kind, mode, size, mtime_ns, ctime_ns, inode)
    set_target, set_sha256, set_entries, set_target_type = _SET_REST
    if target is not None:
        set_target(stat, to_text(target))
    if sha256 is not None:
        set_sha256(stat, sha256)
    if entries is not None:
        set_entries(stat, entries)
    if target_type is not None:
        set_target_type(stat, target_type)
    return stat


def _plain(path: str, kind: FileType, mode: int, size: int, mtime_ns: int, ctime_ns: int, inode: int) -> FileStat:
    """Fills the slots directly: a frozen dataclass's `__init__` takes twice as long, and a snapshot has a million."""
    stat = _BLANK(FileStat)
    set_path, set_type, set_mode, set_size, set_mtime, set_ctime, set_inode = _SET_ALWAYS
    set_target, set_sha256, set_entries, set_target_type = _SET_REST
    set_path(stat, path)
    set_type(stat, kind)
    set_mode(stat, mode)
    set_size(stat, size)
    set_mtime(stat, mtime_ns)
    set_ctime(stat, ctime_ns)
    set_inode(stat, inode)
    set_target(stat, None)
    set_sha256(stat, None)
    set_entries(stat, None)
    set_target_type(stat, None)
    return stat


def file_stats(payload: memoryview, paths: Sequence[str]) -> list[FileStat | Failure]:
    """ITEMS of a STAT, for the first of `paths`, which are absolute; what it repeats of them is passed over.

    Written out by hand, as `replies.items`: one call asks for thousands.
    """
    count = replies.item_count(payload)
    if count > len(paths):
        raise ProtocolViolation("more items than paths")
    found: list[FileStat | Failure] = []
    at = _LENGTH.size
    try:
        for path in paths[:count]:
            at += _LENGTH.size + _LENGTH.unpack_from(payload, at)[0]
            if payload[at] != 1:
                failure, at = replies.failure_at(payload, at)
                found.append(failure)
                continue
            record, has, at = replies.plain_record_at(payload, at + 1)
            if has:
                full, at = replies.more_of_record(Record(*record), has, payload, at)
                found.append(file_stat(path, full))
            else:
                found.append(_plain(path, *record))
    except (StructError, IndexError):
        raise ProtocolViolation("a payload ends early") from None
    if at != len(payload):
        raise ProtocolViolation(f"{len(payload) - at} bytes are left over in a payload")
    return found
