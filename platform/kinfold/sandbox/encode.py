"""Encoders of the host's requests: each gives one payload. `sandbox_images/supervisor/FRAMES.md` has the schemas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from struct import Struct

from kinfold.sandbox.protocol import VERSION, WriteFlag, pack_bytes, pack_list

_U8, _U32, _U64 = Struct("<B"), Struct("<I"), Struct("<Q")
_HELLO = Struct("<HI")
_ATTACH = Struct("<QBQQQQ")
_CREDIT = Struct("<BQ")
_SIGNAL = Struct("<QiB")
_KILL = Struct("<QQ")
_RESIZE = Struct("<QHH")
_KEPT = Struct("<QBQI")
_EXEC_HEAD = Struct("<BHH")
_EXEC_TAIL = Struct("<QQQQQQQQ")
_READ = Struct("<QQBQ")
_WRITE = Struct("<BI")
_LIST = Struct("<IIB")
_MAKE_DIR = Struct("<IB")
_EGRESS_CREDIT = Struct("<IQ")


def hello() -> bytes:
    """HELLO's payload."""
    return _HELLO.pack(VERSION, 0)


def exec_(
    *,
    owner: bytes,
    mode: int,
    argv: Sequence[bytes],
    env: Sequence[bytes],
    cwd: bytes,
    size: tuple[int, int] = (0, 0),
    timeout_ms: int = 0,
    idle_timeout_ms: int = 0,
    grace_ms: int = 0,
    keep: tuple[int, int],
    output_limit: int,
    limits: tuple[int, int],
) -> bytes:
    """EXEC's payload; `size` is a terminal's rows and columns, `keep` and `limits` are for stdout and stderr."""
    return b"".join(
        (
            pack_bytes(owner),
            _EXEC_HEAD.pack(mode, *size),
            pack_list(argv),
            pack_list(env),
            pack_bytes(cwd),
            _EXEC_TAIL.pack(timeout_ms, idle_timeout_ms, grace_ms, *keep, output_limit, *limits),
        )
    )


def attach(exec_id: int, *, stream: bool, offsets: tuple[int, int], limits: tuple[int, int]) -> bytes:
    """ATTACH's payload; `offsets` and `limits` are for stdout and stderr."""
    return _ATTACH.pack(exec_id, stream, *offsets, *limits)


def stdin_offset(offset: int) -> bytes:
    """STDIN's payload up to the data, and the whole of STDIN_EOF's."""
    return _U64.pack(offset)


def credit(stream: int, limit: int) -> bytes:
    """CREDIT's payload; stream 0 is file bytes."""
    return _CREDIT.pack(stream, limit)


def signal(exec_id: int, number: int, *, everyone: bool) -> bytes:
    """SIGNAL's payload."""
    return _SIGNAL.pack(exec_id, number, everyone)


def resize(exec_id: int, rows: int, columns: int) -> bytes:
    """RESIZE's payload."""
    return _RESIZE.pack(exec_id, rows, columns)


def kill(exec_id: int, grace_ms: int) -> bytes:
    """KILL's payload."""
    return _KILL.pack(exec_id, grace_ms)


def forget(exec_ids: Sequence[int]) -> bytes:
    """FORGET's payload."""
    return _U32.pack(len(exec_ids)) + b"".join(_U64.pack(exec_id) for exec_id in exec_ids)


def end_owner(owner: bytes, grace_ms: int) -> bytes:
    """END_OWNER's payload."""
    return pack_bytes(owner) + _U64.pack(grace_ms)


def kept(exec_id: int, stream: int, offset: int, limit: int) -> bytes:
    """KEPT's payload."""
    return _KEPT.pack(exec_id, stream, offset, limit)


def stat(paths: Sequence[bytes], flags: int = 0) -> bytes:
    """STAT's payload."""
    return _U8.pack(flags) + pack_list(paths)


def stat_batches(paths: Iterable[bytes], max_paths: int, max_bytes: int) -> Iterator[list[bytes]]:
    """Cut `paths` into lists that each fit into one STAT; one path alone always fits (65,536 bytes at most)."""
    batch: list[bytes] = []
    size = 0
    for path in paths:
        cost = len(path) + 4
        if batch and (len(batch) == max_paths or size + cost > max_bytes):
            yield batch
            batch, size = [], 0
        batch.append(path)
        size += cost
    if batch:
        yield batch


def read(path: bytes, *, offset: int, limit: int, digest: bool, credit: int) -> bytes:
    """READ's payload."""
    return pack_bytes(path) + _READ.pack(offset, limit, digest, credit)


def write(path: bytes, *, flags: int, mode: int, if_match: bytes | None) -> bytes:
    """WRITE's payload; `if_match` is 32 bytes, all zero for "must not exist"."""
    if if_match is None:
        return pack_bytes(path) + _WRITE.pack(flags, mode)
    return pack_bytes(path) + _WRITE.pack(flags | WriteFlag.IF_MATCH, mode) + if_match


def list_(path: bytes, *, depth: int, max_entries: int, scratch: bool = False) -> bytes:
    """LIST's payload; `scratch` includes `.kinfold` at the root."""
    return pack_bytes(path) + _LIST.pack(depth, max_entries, scratch)


def make_dir(path: bytes, *, mode: int, parents: bool) -> bytes:
    """MAKE_DIR's payload."""
    return pack_bytes(path) + _MAKE_DIR.pack(mode, parents)


def remove(path: bytes, *, recursive: bool) -> bytes:
    """REMOVE's payload."""
    return pack_bytes(path) + _U8.pack(recursive)


def rename(source: bytes, target: bytes, *, replace: bool) -> bytes:
    """RENAME's payload."""
    return pack_bytes(source) + pack_bytes(target) + _U8.pack(replace)


def symlink(target: bytes, path: bytes) -> bytes:
    """SYMLINK's payload."""
    return pack_bytes(target) + pack_bytes(path)


def egress(streams: int) -> bytes:
    """EGRESS's payload."""
    return _U32.pack(streams)


def egress_stream(number: int) -> bytes:
    """EGRESS_DATA's payload up to the data, and the whole of EGRESS_EOF's and EGRESS_CLOSE's."""
    return _U32.pack(number)


def egress_credit(number: int, limit: int) -> bytes:
    """EGRESS_CREDIT's payload."""
    return _EGRESS_CREDIT.pack(number, limit)
