"""What the supervisor says of a path, as the `FileStat` that callers see."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from struct import Struct
from struct import error as StructError
from typing import Any

from kinfold.sandbox import replies
from kinfold.sandbox.base import FileStat
from kinfold.sandbox.protocol import ProtocolViolation
from kinfold.sandbox.replies import Failure, Record
from kinfold.sandbox.workspace import to_text

Fields = tuple[Any, ...]
"""Of a `FileStat`, without its path."""
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


def listed(payload: bytes) -> list[tuple[str, Fields]]:
    """ITEMS of a LIST: each entry's path beneath what was listed, and what is known of it; no entry without a record.

    Written out by hand, as `file_stats`: a listing has a million. Raises `ProtocolViolation`.
    """
    end, at, found = len(payload), _LENGTH.size, list[tuple[str, Fields]]()
    add, length_at, record_at = found.append, _LENGTH.unpack_from, replies.RECORD.unpack_from
    types, most = (None, *replies.FILE_TYPES), replies.MODE_BITS
    view = memoryview(payload)
    try:
        for _ in range(replies.item_count(view)):
            start = at + _LENGTH.size
            at = start + length_at(payload, at)[0]
            path = payload[start:at]
            if at >= end or at - start > replies.MAX_NAME or (_ODD(path) and _leads_out(path)):
                raise ProtocolViolation("an entry's path does not lie beneath the directory that was listed")
            if payload[at] == 1:
                kind, mode, size, mtime_ns, ctime_ns, inode, has = record_at(payload, at + 1)
                if has == 0 and 1 <= kind <= 4 and mode <= most:
                    at += _PLAIN
                    name = path.decode("utf-8", "surrogateescape")
                    add((name, (types[kind], size, mode, mtime_ns, ctime_ns, inode, None, None, None, None)))
                else:
                    record, at = replies.record_at(view, at + 1)
                    add((to_text(path), tuple(file_stat("", record)[1:])))
            else:
                _, at = replies.failure_at(view, at)
    except (StructError, IndexError):
        raise ProtocolViolation("a payload ends early") from None
    if at != end:
        raise ProtocolViolation(f"{end - at} bytes are left over in a payload")
    return found


_ODD = re.compile(rb"\A[./]|\A\Z|\0|/[./]|/\Z").search
"""What every path has that leads out, and hardly any other."""


def _leads_out(path: bytes) -> bool:
    """Whether a relative path is none: empty parts, `.`, `..`, NUL."""
    wrapped = b"/" + path + b"/"
    return b"//" in wrapped or b"/../" in wrapped or b"/./" in wrapped or b"\0" in path


class Entries(Mapping[str, FileStat]):
    """Stats by relative path. Each is made when it is asked for: kept are plain tuples of numbers and words, over which
    Python's cyclic garbage collector does not go; a million objects would stop the whole process for half a second."""

    __slots__ = ("_base", "_fields")

    def __init__(self, base: str) -> None:
        self._base = base
        self._fields: dict[str, Fields] = {}

    def add(self, entries: Iterable[tuple[str, Fields]]) -> None:
        """Take these in."""
        self._fields.update(entries)

    def __getitem__(self, name: str) -> FileStat:
        return tuple.__new__(FileStat, (f"{self._base}/{name}", *self._fields[name]))

    def __iter__(self) -> Iterator[str]:
        return iter(self._fields)

    def __len__(self) -> int:
        return len(self._fields)


_PLAIN = 1 + replies.RECORD.size
_NOTHING_MORE = (None, None, None, None)
