"""The frames spoken with the supervisor in the container: pure, total, and wary of every byte that arrives.

`sandbox_images/supervisor/FRAMES.md` is the format. Here are the frame itself and the reader of payloads;
`encode` makes the requests' payloads, `replies` decodes what comes back. Nothing here does I/O or keeps state beyond
one incomplete frame.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum, IntFlag
from struct import Struct

VERSION = 1
HEADER = Struct("<IBBHQ")
"""length, type, zero, zero, id."""
HEADER_BYTES = HEADER.size
MAX_PAYLOAD = 262_144
MAX_MESSAGE = 1024
"""Of an ERROR."""
STDIN_WINDOW = 262_144
"""Stdin bytes that may be sent before the first WINDOW."""
WRITE_WINDOW = 1_048_576
"""File bytes that may be sent before the first WINDOW."""
EGRESS_WINDOW = 262_144
"""Bytes of a stream that either side may send before it is granted more."""
EVERYTHING = 2**64 - 1
"""As a READ's limit: to the end of the file."""
MAX_U64 = 2**64 - 1


class ProtocolViolation(Exception):
    """Raised when bytes from the container break the format. Private: the channel turns it into its own end."""


class Request(IntEnum):
    """Frames that the host sends."""

    HELLO = 0x01
    PING = 0x02
    PROCESSES = 0x03
    EXEC = 0x10
    ATTACH = 0x11
    STDIN = 0x12
    STDIN_EOF = 0x13
    CREDIT = 0x14
    SIGNAL = 0x15
    KILL = 0x16
    RESIZE = 0x17
    FORGET = 0x18
    END_OWNER = 0x19
    PAUSE = 0x1A
    RESUME = 0x1B
    USAGE = 0x1C
    EXECS = 0x1D
    KEPT = 0x1E
    CANCEL = 0x1F
    STAT = 0x20
    READ = 0x21
    WRITE = 0x22
    LIST = 0x23
    WDATA = 0x24
    WDATA_EOF = 0x25
    MAKE_DIR = 0x27
    REMOVE = 0x28
    RENAME = 0x29
    SYMLINK = 0x2A
    EGRESS = 0x30
    EGRESS_DATA = 0x31
    EGRESS_EOF = 0x32
    EGRESS_CREDIT = 0x33
    EGRESS_CLOSE = 0x34


class Reply(IntEnum):
    """Frames that the supervisor sends."""

    OK = 0x41
    ERROR = 0x42
    DATA = 0x43
    ITEMS = 0x44
    OUTPUT = 0x45
    STARTED = 0x46
    WINDOW = 0x47
    EGRESS_READY = 0x48
    EGRESS_OPENED = 0x49
    EGRESS_BYTES = 0x4A
    EGRESS_ENDED = 0x4B
    EGRESS_ROOM = 0x4C
    EGRESS_GONE = 0x4D


class ExecMode(IntFlag):
    """Bits of EXEC's `mode`."""

    STREAM = 1
    STDIN = 2
    TERMINAL = 4


class StatFlag(IntFlag):
    """Bits of STAT's `flags`."""

    DIGEST = 1
    CLAIM = 2


class WriteFlag(IntFlag):
    """Bits of WRITE's `flags`."""

    PARENTS = 1
    EXCLUSIVE = 2
    IF_MATCH = 4
    DIGEST = 8


_REPLY_TYPES = frozenset(int(kind) for kind in Reply)
_U8, _U16, _U32, _U64, _I32, _I64 = (Struct("<" + code) for code in "BHIQiq")


class PayloadReader:
    """Takes typed values off a payload; raises `ProtocolViolation` at the first byte that is missing or illegal."""

    __slots__ = ("_at", "_end", "_view")

    def __init__(self, payload: bytes | memoryview) -> None:
        self._view = memoryview(payload)
        self._at = 0
        self._end = len(self._view)

    def _advance(self, size: int) -> int:
        at = self._at
        if size > self._end - at:
            raise ProtocolViolation("a payload ends early")
        self._at = at + size
        return at

    def take(self, layout: Struct) -> tuple[int, ...]:
        """The integers of `layout`."""
        return layout.unpack_from(self._view, self._advance(layout.size))

    def u8(self) -> int:
        """One byte."""
        return self.take(_U8)[0]

    def u16(self) -> int:
        """An unsigned integer of two bytes."""
        return self.take(_U16)[0]

    def u32(self) -> int:
        """An unsigned integer of four bytes."""
        return self.take(_U32)[0]

    def u64(self) -> int:
        """An unsigned integer of eight bytes."""
        return self.take(_U64)[0]

    def i32(self) -> int:
        """A signed integer of four bytes."""
        return self.take(_I32)[0]

    def boolean(self) -> bool:
        """A byte that may only be 0 or 1."""
        value = self.u8()
        if value > 1:
            raise ProtocolViolation(f"a boolean is {value}")
        return value == 1

    def raw(self, size: int) -> bytes:
        """Exactly `size` bytes, copied."""
        at = self._advance(size)
        return bytes(self._view[at : at + size])

    def bytes_(self, limit: int = MAX_PAYLOAD) -> bytes:
        """A length and that many bytes, at most `limit`."""
        size = self.u32()
        if size > limit:
            raise ProtocolViolation(f"a byte string of {size} bytes, at most {limit} are allowed")
        return self.raw(size)

    def rest(self) -> memoryview:
        """What is left, not copied."""
        at = self._at
        self._at = self._end
        return self._view[at:]

    def count(self, least_item_size: int) -> int:
        """A list's count; one that cannot fit into what is left is illegal."""
        count = self.u32()
        if count * least_item_size > self._end - self._at:
            raise ProtocolViolation(f"a list of {count} items does not fit into its payload")
        return count

    @property
    def left(self) -> int:
        """Bytes not taken yet."""
        return self._end - self._at

    def done(self) -> None:
        """Check that every byte was used."""
        if self._at != self._end:
            raise ProtocolViolation(f"{self._end - self._at} bytes are left over in a payload")


class FrameSplitter:
    """Cuts a byte stream into frames, in one buffer of fixed size that the socket is read into.

    The payload handed to the callback is a view into that buffer: it is only good until the callback returns.
    The buffer holds two of the largest frames and no more: one that stays in the processor's cache is read faster.
    """

    __slots__ = ("_buffer", "_end", "_start", "_view")

    def __init__(self, size: int = 2 * (HEADER_BYTES + MAX_PAYLOAD)) -> None:
        if size < HEADER_BYTES + MAX_PAYLOAD:
            raise ValueError("the buffer must hold the largest frame")
        self._buffer = bytearray(size)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0

    def space(self) -> memoryview:
        """Where the next bytes go; never empty. Tell `filled` how many came."""
        return self._view[self._end :]

    def filled(self, count: int, on_frame: Callable[[int, int, memoryview], None]) -> None:
        """Account for `count` new bytes and hand over each whole frame as (type, id, payload)."""
        view = self._view
        at = self._start
        end = self._end + count
        while end - at >= HEADER_BYTES:
            length, kind, zero8, zero16, frame_id = HEADER.unpack_from(view, at)
            if length > MAX_PAYLOAD:
                raise ProtocolViolation(f"a frame announces {length} bytes, at most {MAX_PAYLOAD} are allowed")
            if zero8 or zero16 or not frame_id or kind not in _REPLY_TYPES:
                raise ProtocolViolation("a frame's header is illegal")
            stop = at + HEADER_BYTES + length
            if stop > end:
                break
            on_frame(kind, frame_id, view[at + HEADER_BYTES : stop])
            at = stop
        self._keep(at, end)

    def _keep(self, start: int, end: int) -> None:
        if start == end:
            start = end = 0
        elif len(self._buffer) - start < HEADER_BYTES + MAX_PAYLOAD or end == len(self._buffer):
            self._view[: end - start] = self._view[start:end]
            start, end = 0, end - start
        self._start = start
        self._end = end

    def feed(self, data: bytes | memoryview, on_frame: Callable[[int, int, memoryview], None]) -> None:
        """As `filled`, for bytes that arrived elsewhere."""
        at = 0
        view = memoryview(data)
        while at < len(data):
            space = self.space()
            size = min(len(space), len(data) - at)
            space[:size] = view[at : at + size]
            at += size
            self.filled(size, on_frame)

    @property
    def pending(self) -> int:
        """Bytes of a frame that is not complete yet."""
        return self._end - self._start


def header(kind: int, frame_id: int, length: int) -> bytes:
    """The 16 bytes before a payload."""
    return HEADER.pack(length, kind, 0, 0, frame_id)


def frame(kind: int, frame_id: int, payload: bytes = b"") -> bytes:
    """A whole frame. Raises `ValueError` for a payload over the limit: the caller must have split it."""
    if len(payload) > MAX_PAYLOAD:
        raise ValueError(f"a payload of {len(payload)} bytes; at most {MAX_PAYLOAD} go into a frame")
    return HEADER.pack(len(payload), kind, 0, 0, frame_id) + payload


def pack_bytes(data: bytes) -> bytes:
    """A byte string with its length."""
    return _U32.pack(len(data)) + data


def pack_list(items: Sequence[bytes]) -> bytes:
    """A list of byte strings."""
    parts = [_U32.pack(len(items))]
    for item in items:
        parts.append(_U32.pack(len(item)))
        parts.append(item)
    return b"".join(parts)
