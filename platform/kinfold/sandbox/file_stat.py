"""What the supervisor says of a path, as the `FileStat` that callers see."""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from struct import error as StructError

from kinfold.sandbox import replies
from kinfold.sandbox.base import FileStat
from kinfold.sandbox.protocol import ProtocolViolation
from kinfold.sandbox.replies import Failure, Record
from kinfold.sandbox.workspace import to_text

_LENGTH = Struct("<I")


def file_stat(path: str, record: Record) -> FileStat:
    """A record as what callers see; `path` is absolute in the container."""
    kind, mode, size, mtime_ns, ctime_ns, inode, raw, sha256, entries, target_type = record
    target = None if raw is None else to_text(raw)
    # Without the detour over keyword defaults: a snapshot has a million.
    return tuple.__new__(
        FileStat, (path, kind, size, mode, mtime_ns, ctime_ns, inode, target, target_type, sha256, entries)
    )


def file_stats(payload: memoryview, paths: Sequence[str]) -> list[FileStat | Failure]:
    """ITEMS of a STAT, for the first of `paths`, which are absolute; what it repeats of them is passed over.

    Written out by hand, as `replies.items`: one call asks for thousands.
    """
    count = replies.item_count(payload)
    if count > len(paths):
        raise ProtocolViolation("more items than paths")
    found: list[FileStat | Failure] = []
    add, blank, length_at, record_at = found.append, tuple.__new__, _LENGTH.unpack_from, replies.RECORD.unpack_from
    types, most = (None, *replies.FILE_TYPES), replies.MODE_BITS
    at = _LENGTH.size
    try:
        for path in paths[:count]:
            at += _LENGTH.size + length_at(payload, at)[0]
            if payload[at] == 1:
                kind, mode, size, mtime_ns, ctime_ns, inode, has = record_at(payload, at + 1)
                if has == 0 and 1 <= kind <= 4 and mode <= most:
                    at += _PLAIN
                    add(blank(FileStat, (path, types[kind], size, mode, mtime_ns, ctime_ns, inode, *_NOTHING_MORE)))
                else:
                    record, at = replies.record_at(payload, at + 1)
                    add(file_stat(path, record))
            else:
                failure, at = replies.failure_at(payload, at)
                add(failure)
    except (StructError, IndexError):
        raise ProtocolViolation("a payload ends early") from None
    if at != len(payload):
        raise ProtocolViolation(f"{len(payload) - at} bytes are left over in a payload")
    return found


_PLAIN = 1 + replies.RECORD.size
_NOTHING_MORE = (None, None, None, None)
