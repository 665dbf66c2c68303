"""Decoders of what the supervisor answers: each takes one payload and gives a typed value or `ProtocolViolation`."""

from __future__ import annotations

from struct import Struct
from struct import error as StructError
from typing import NamedTuple

from kinfold.errors import PathReason
from kinfold.sandbox.base import EndedBy, FileType
from kinfold.sandbox.protocol import MAX_MESSAGE, MAX_PAYLOAD, VERSION, PayloadReader, ProtocolViolation

FILE_TYPES: tuple[FileType, ...] = ("file", "directory", "symlink", "other")
ENDINGS: tuple[EndedBy, ...] = (
    "exited",
    "signalled",
    "timed_out",
    "idle_timed_out",
    "output_limited",
    "pids_limited",
    "cancelled",
    "oom_killed",
    "kill_failed",
    "disk_limited",
)
PATH_REASONS: tuple[PathReason, ...] = (
    "path_escape",
    "not_found",
    "is_directory",
    "not_a_directory",
    "not_regular",
    "permission_denied",
    "too_large",
    "conflict",
    "invalid",
    "no_space",
)
CONFLICT, INVALID = 8, 9
UNSUPPORTED, UNKNOWN_EXEC, BUSY, INTERNAL, CANCELLED, KILL_FAILED, ENDED = range(32, 39)
_KINDS = frozenset(range(1, 11)) | frozenset(range(32, 39))

CONTROL_BITS = {
    1: "pid1",
    2: "separate_uid",
    4: "warden",
    8: "openat2",
    16: "seccomp",
    32: "cgroup_v2",
    64: "cgroup_readable",
    128: "workspace_writable",
    256: "home_writable",
}
NOT_READABLE = 2**64 - 1
_MAX_SIGNAL = 64
_MAX_ERRNO = 4095
MAX_NAME = 65_536
MODE_BITS = 0o7777


class Failure(NamedTuple):
    """Why a path of a batch failed, or what an ERROR says."""

    kind: int
    errno: int
    message: str = ""


class Record(NamedTuple):
    """What the supervisor says of one path."""

    type: FileType
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    target: bytes | None = None
    sha256: str | None = None
    entries: int | None = None
    target_type: FileType | None = None


class Hello(NamedTuple):
    """Whom we speak to."""

    generation: int
    pid: int
    agent_uid: int
    agent_gid: int
    controls: frozenset[str]
    root: str
    build: str


class End(NamedTuple):
    """How an exec ended."""

    ended_by: EndedBy
    exit_code: int | None
    signal: int | None
    totals: tuple[int, int]
    heads: tuple[int, int]
    killed: int
    survivors: int
    background_pids: tuple[int, ...]
    oom_kills: int
    duration_us: int
    start_errno: int
    disk: tuple[int | None, ...]
    """Bytes, their peak and limit, inodes and their limit; None: not known."""


class Chunk(NamedTuple):
    """One OUTPUT frame; `data` is a view that is only good until the next frame."""

    stream: int
    offset: int
    data: memoryview


class ExecState(NamedTuple):
    """One line of EXECS."""

    exec_id: int
    state: int
    owner: str
    stdout_total: int
    stderr_total: int
    age_ms: int


_HELLO = Struct("<HQIIII")
RECORD = Struct("<BIQqqQB")
_LENGTH = Struct("<I")
_FAILURE = Struct("<Bi")
_ITEM_FAILURE = Struct("<BBi")
_OUTPUT = Struct("<BQ")
_END = Struct("<BBiiQQQQII")
_END_TAIL = Struct("<QQi5Q")
_USAGE = Struct("<16Q")
_OWNER_END = Struct("<QII")
_KEPT = Struct("<BQ")
_NUMBER32, _NUMBER64, _PORT = Struct("<I"), Struct("<Q"), Struct("<H")
_KILLED, _ROOM = Struct("<II"), Struct("<IQ")
_LEAST_ITEM = 4 + 1 + _FAILURE.size


def _text(raw: bytes) -> str:
    """Words of the supervisor for a person: no control characters, whatever it sends."""
    return "".join(char if char.isprintable() else " " for char in raw.decode("utf-8", "replace"))


def failure(payload: bytes | memoryview) -> Failure:
    """ERROR."""
    reader = PayloadReader(payload)
    kind, errno = reader.take(_FAILURE)
    message = reader.bytes_(MAX_MESSAGE)
    reader.done()
    _check_failure(kind, errno)
    return Failure(kind, errno, _text(message))


def _check_failure(kind: int, errno: int) -> None:
    if kind not in _KINDS or not 0 <= errno <= _MAX_ERRNO:
        raise ProtocolViolation(f"an error of kind {kind}, errno {errno}")


def nothing(payload: bytes | memoryview) -> None:
    """OK of a request that has nothing to say."""
    if len(payload):
        raise ProtocolViolation("a payload where none belongs")


def echo(payload: bytes | memoryview) -> bytes:
    """OK of PING."""
    return PayloadReader(payload).raw(len(payload))


def hello(payload: bytes | memoryview) -> Hello:
    """OK of HELLO."""
    reader = PayloadReader(payload)
    version, generation, pid, uid, gid, bits = reader.take(_HELLO)
    root = reader.bytes_(MAX_NAME)
    build = reader.bytes_(MAX_MESSAGE)
    reader.done()
    if version != VERSION:
        raise ProtocolViolation(f"the supervisor speaks version {version} of the format, not {VERSION}")
    if bits >> len(CONTROL_BITS):
        raise ProtocolViolation(f"unknown controls {bits:#x}")
    controls = frozenset(name for bit, name in CONTROL_BITS.items() if bits & bit)
    return Hello(generation, pid, uid, gid, controls, root.decode("utf-8", "surrogateescape"), _text(build))


def started(payload: bytes | memoryview) -> int:
    """STARTED: the leader's pid."""
    reader = PayloadReader(payload)
    pid = reader.u32()
    reader.done()
    return pid


def window(payload: bytes | memoryview) -> int:
    """WINDOW: the absolute offset up to which bytes may be sent."""
    reader = PayloadReader(payload)
    stream, limit = reader.u8(), reader.u64()
    reader.done()
    if stream != 0:
        raise ProtocolViolation(f"a window for stream {stream}")
    return limit


def output(payload: bytes | memoryview) -> Chunk:
    """OUTPUT."""
    reader = PayloadReader(payload)
    stream, offset = reader.take(_OUTPUT)
    if stream not in (1, 2):
        raise ProtocolViolation(f"output of stream {stream}")
    return Chunk(stream, offset, reader.rest())


def end(payload: bytes | memoryview) -> End:
    """OK of EXEC and ATTACH."""
    reader = PayloadReader(payload)
    ended_by, exited, code, signal, out, err, out_head, err_head, killed, survivors = reader.take(_END)
    count = reader.count(4)
    pids = tuple(reader.take(Struct(f"<{count}I"))) if count else ()
    oom_kills, duration_us, start_errno, *disk = reader.take(_END_TAIL)
    reader.done()
    if not 1 <= ended_by <= len(ENDINGS) or exited > 1 or not 0 <= start_errno <= _MAX_ERRNO:
        raise ProtocolViolation(f"an exec ended by {ended_by}, exited {exited}, errno {start_errno}")
    if (exited and not 0 <= code <= 255) or not 0 <= signal <= _MAX_SIGNAL or (exited and signal):
        raise ProtocolViolation(f"an exec ended with code {code} and signal {signal}")
    if out_head > out or err_head > err:
        raise ProtocolViolation("the head of an output is longer than all of it")
    return End(
        ENDINGS[ended_by - 1],
        code if exited else None,
        signal or None,
        (out, err),
        (out_head, err_head),
        killed,
        survivors,
        pids,
        oom_kills,
        duration_us,
        start_errno,
        tuple(None if number == NOT_READABLE else number for number in disk),
    )


def items(payload: bytes | memoryview) -> list[tuple[bytes, Record | Failure]]:
    """ITEMS: each path with its record, or why there is none.

    Written out by hand, for a listing has a million of them.
    """
    view = memoryview(payload)
    end = len(view)
    count = item_count(view)
    found: list[tuple[bytes, Record | Failure]] = []
    at = _LENGTH.size
    try:
        for _ in range(count):
            stop = at + 4 + _LENGTH.unpack_from(view, at)[0]
            if stop - at > MAX_NAME or stop >= end:
                raise ProtocolViolation("an item's path does not fit")
            path = bytes(view[at + 4 : stop])
            entry: Record | Failure
            if view[stop] == 1:
                entry, at = record_at(view, stop + 1)
            else:
                entry, at = failure_at(view, stop)
            found.append((path, entry))
    except StructError:
        raise ProtocolViolation("a payload ends early") from None
    if at != end:
        raise ProtocolViolation(f"{end - at} bytes are left over in a payload")
    return found


def item_count(payload: memoryview) -> int:
    """How many items ITEMS announces; no more than can fit into it."""
    return PayloadReader(payload).count(_LEAST_ITEM)


def failure_at(view: memoryview, at: int) -> tuple[Failure, int]:
    """An item's failure that begins at `at`, and where it ends. Raises `struct.error` where it is cut off."""
    zero, kind, errno = _ITEM_FAILURE.unpack_from(view, at)
    if zero:
        raise ProtocolViolation(f"a boolean is {zero}")
    _check_failure(kind, errno)
    return Failure(kind, errno), at + _ITEM_FAILURE.size


def record_at(view: memoryview, at: int) -> tuple[Record, int]:
    """The record that begins at `at`, and where it ends. Raises `struct.error` where it is cut off."""
    kind, mode, size, mtime_ns, ctime_ns, inode, has = RECORD.unpack_from(view, at)
    if not 1 <= kind <= 4 or mode > MODE_BITS or has > 15:
        raise ProtocolViolation(f"a record of type {kind}, mode {mode:o}, fields {has}")
    # Without the detour over keyword defaults: a listing has a million.
    plain = (FILE_TYPES[kind - 1], mode, size, mtime_ns, ctime_ns, inode, None, None, None, None)
    found = tuple.__new__(Record, plain)
    at += RECORD.size
    return _more_of_record(found, has, view, at) if has else (found, at)


def _more_of_record(found: Record, has: int, view: memoryview, at: int) -> tuple[Record, int]:
    """The record with what `has` says follows at `at`, and where that ends."""
    reader = PayloadReader(view[at:])
    target = reader.bytes_(MAX_NAME) if has & 1 else None
    sha256 = reader.raw(32).hex() if has & 2 else None
    entries = reader.u64() if has & 4 else None
    target_type = None
    if has & 8:
        number = reader.u8()
        if not 1 <= number <= 4:
            raise ProtocolViolation(f"a target of type {number}")
        target_type = FILE_TYPES[number - 1]
    full = found._replace(target=target, sha256=sha256, entries=entries, target_type=target_type)
    return full, len(view) - reader.left


def record(payload: bytes | memoryview) -> Record:
    """OK of WRITE, MAKE_DIR, RENAME and SYMLINK."""
    view = memoryview(payload)
    try:
        found, at = record_at(view, 0)
    except StructError:
        raise ProtocolViolation("a payload ends early") from None
    if at != len(view):
        raise ProtocolViolation(f"{len(view) - at} bytes are left over in a payload")
    return found


def digest(payload: bytes | memoryview) -> str | None:
    """OK of READ: the SHA-256 of the bytes sent, where it was asked for."""
    reader = PayloadReader(payload)
    found = reader.raw(32).hex() if reader.boolean() else None
    reader.done()
    return found


def listing_end(payload: bytes | memoryview) -> tuple[bool, int]:
    """OK of LIST: whether it was truncated, and how many entries were sent."""
    reader = PayloadReader(payload)
    truncated, count = reader.boolean(), reader.u64()
    reader.done()
    return truncated, count


def _whole(payload: bytes | memoryview, layout: Struct) -> tuple[int, ...]:
    """A payload that is nothing but the integers of `layout`."""
    reader = PayloadReader(payload)
    numbers = reader.take(layout)
    reader.done()
    return numbers


def number32(payload: bytes | memoryview) -> int:
    """OK of SIGNAL."""
    return _whole(payload, _NUMBER32)[0]


def number64(payload: bytes | memoryview) -> int:
    """OK of REMOVE."""
    return _whole(payload, _NUMBER64)[0]


def killed(payload: bytes | memoryview) -> tuple[int, int]:
    """OK of KILL: how many were killed, how many survived."""
    dead, survivors = _whole(payload, _KILLED)
    return dead, survivors


def owner_ends(payload: bytes | memoryview) -> list[tuple[int, int, int]]:
    """OK of END_OWNER: exec id, killed, survivors."""
    reader = PayloadReader(payload)
    found = []
    for _ in range(reader.count(_OWNER_END.size)):
        exec_id, dead, survivors = reader.take(_OWNER_END)
        found.append((exec_id, dead, survivors))
    reader.done()
    return found


def usage(payload: bytes | memoryview) -> list[int | None]:
    """OK of USAGE: its sixteen numbers, None where one is not readable."""
    return [None if number == NOT_READABLE else number for number in _whole(payload, _USAGE)]


def execs(payload: bytes | memoryview) -> list[ExecState]:
    """OK of EXECS."""
    reader = PayloadReader(payload)
    found = []
    for _ in range(reader.count(8 + 1 + 4 + 24)):
        exec_id, state = reader.u64(), reader.u8()
        owner = reader.bytes_(MAX_PAYLOAD)
        out, err, age = reader.u64(), reader.u64(), reader.u64()
        if not 1 <= state <= 3:
            raise ProtocolViolation(f"an exec in state {state}")
        found.append(ExecState(exec_id, state, owner.decode("utf-8", "replace"), out, err, age))
    reader.done()
    return found


def kept_end(payload: bytes | memoryview) -> tuple[int, int]:
    """OK of KEPT: the exec's state and the stream's total."""
    state, total = _whole(payload, _KEPT)
    if not 1 <= state <= 3:
        raise ProtocolViolation(f"an exec in state {state}")
    return state, total


def egress_ready(payload: bytes | memoryview) -> int:
    """EGRESS_READY: the port."""
    return _whole(payload, _PORT)[0]


def egress_stream(payload: bytes | memoryview) -> int:
    """EGRESS_OPENED, EGRESS_ENDED, EGRESS_GONE: the stream's number."""
    return _whole(payload, _NUMBER32)[0]


def egress_bytes(payload: bytes | memoryview) -> tuple[int, memoryview]:
    """EGRESS_BYTES: the stream's number and at least one byte."""
    reader = PayloadReader(payload)
    number, data = reader.u32(), reader.rest()
    if not data:
        raise ProtocolViolation("an EGRESS_BYTES without bytes")
    return number, data


def egress_room(payload: bytes | memoryview) -> tuple[int, int]:
    """EGRESS_ROOM: the stream's number and the offset that may be reached."""
    number, limit = _whole(payload, _ROOM)
    return number, limit
