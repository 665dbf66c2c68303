"""What gathers one request's answer: each knows how much it may be sent, and calls more than that a violation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from kinfold.sandbox import replies
from kinfold.sandbox.base import FileStat
from kinfold.sandbox.file_stat import file_stats
from kinfold.sandbox.output import Pieces
from kinfold.sandbox.protocol import ProtocolViolation, Reply
from kinfold.sandbox.replies import Failure, Record

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_ITEM_BYTES = 400 * 1_048_576
"""Payload of ITEMS that one request may be sent; a million entries with long paths stay below it."""


class AnswerRefused(Exception):
    """Raised by an answer that wants no more of itself: the request is cancelled and its caller gets this."""


class Answer(Protocol[T_co]):
    """One request's answer in the making."""

    def accept(self, kind: int, payload: memoryview) -> None:
        """A frame before the terminal one; the payload is good only during the call.

        May raise `ProtocolViolation` (ends the channel) or `AnswerRefused` (ends the request).
        """
        ...

    def finish(self, payload: memoryview) -> T_co:
        """The value, from OK's payload. May raise `ProtocolViolation`."""
        ...


class Plain(Generic[T]):
    """The answer is OK's payload and nothing else."""

    __slots__ = ("_decode",)

    def __init__(self, decode: Callable[[memoryview], T]) -> None:
        self._decode = decode

    def accept(self, kind: int, payload: memoryview) -> None:
        """Nothing comes before OK."""
        raise ProtocolViolation(f"a frame of type {kind:#x} for a request that has none")

    def finish(self, payload: memoryview) -> T:
        """The decoded payload."""
        return self._decode(payload)


class Discard:
    """The answer of a request that nobody waits for any more."""

    __slots__ = ()

    def accept(self, kind: int, payload: memoryview) -> None:
        """Drop it."""

    def finish(self, payload: memoryview) -> None:
        """Drop it."""


class StatItems:
    """As many stats as paths were asked for, in order; `paths` are absolute in the container."""

    __slots__ = ("_paths", "found")

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths
        self.found: list[FileStat | Failure] = []

    def accept(self, kind: int, payload: memoryview) -> None:
        """One ITEMS frame."""
        if kind != Reply.ITEMS:
            raise ProtocolViolation(f"a frame of type {kind:#x} in a STAT")
        found = file_stats(payload, self._paths[len(self.found) :])
        _needs(len(found), "ITEMS without an item")
        self.found += found

    def finish(self, payload: memoryview) -> list[FileStat | Failure]:
        """All of them."""
        replies.nothing(payload)
        if len(self.found) != len(self._paths):
            raise ProtocolViolation(f"{len(self.found)} items for {len(self._paths)} paths")
        return self.found


class ListItems:
    """The frames of a listing, undecoded: whoever asked for it decodes them in its own time, not in everybody's."""

    __slots__ = ("_bytes", "_items", "_most", "frames")

    def __init__(self, max_entries: int) -> None:
        # A directory that cannot be read has a record and a failure: up to twice as many items as records.
        self._most = 2 * max_entries + 1
        self._bytes = 0
        self._items = 0
        self.frames: list[bytes] = []

    def accept(self, kind: int, payload: memoryview) -> None:
        """One ITEMS frame."""
        if kind != Reply.ITEMS:
            raise ProtocolViolation(f"a frame of type {kind:#x} in a LIST")
        count = replies.item_count(payload)
        _needs(count, "ITEMS without an item")
        self._bytes += len(payload)
        self._items += count
        if self._items > self._most:
            raise ProtocolViolation(f"more than the {self._most} items that were asked for")
        if self._bytes > _ITEM_BYTES:
            raise ProtocolViolation("a listing is larger than any tree of that many entries")
        self.frames.append(bytes(payload))

    def finish(self, payload: memoryview) -> tuple[list[bytes], bool, int]:
        """All frames, whether there are more entries, and how many records there must be."""
        return self.frames, *replies.listing_end(payload)


class FileBytes:
    """The record and the bytes of a READ; `credit` is how many bytes may come before more is granted."""

    __slots__ = ("credit", "on_data", "on_record", "received", "record")

    def __init__(
        self,
        credit: int,
        on_record: Callable[[Record], None] | None = None,
        on_data: Callable[[memoryview], object] | None = None,
    ) -> None:
        self.credit = credit
        self.received = 0
        self.record: Record | None = None
        self.on_record = on_record
        self.on_data = on_data

    def accept(self, kind: int, payload: memoryview) -> None:
        """One ITEMS with one record, then DATA within the credit."""
        if kind == Reply.ITEMS and self.record is None:
            found = replies.items(payload)
            if len(found) != 1 or not isinstance(found[0][1], Record):
                raise ProtocolViolation("a READ has one record")
            self.record = found[0][1]
            if self.on_record is not None:
                self.on_record(self.record)
        elif kind == Reply.DATA and self.record is not None:
            _needs(len(payload), "DATA without a byte")
            self.received += len(payload)
            if self.received > self.credit:
                raise ProtocolViolation(f"{self.received} bytes came, {self.credit} were granted")
            if self.on_data is not None:
                self.on_data(payload)
        else:
            raise ProtocolViolation(f"a frame of type {kind:#x} in a READ")

    def finish(self, payload: memoryview) -> str | None:
        """The digest that the supervisor took, where it was asked for."""
        if self.record is None:
            raise ProtocolViolation("a READ without its record")
        return replies.digest(payload)


class Written:
    """The record of a WRITE; a WINDOW says how far the host may go on sending."""

    __slots__ = ("digest", "on_window", "window")

    def __init__(self, window: int, *, digest: bool) -> None:
        self.window = window
        self.digest = digest
        """Whether the record carries the digest of what was written."""
        self.on_window: Callable[[], None] | None = None

    def accept(self, kind: int, payload: memoryview) -> None:
        """One WINDOW."""
        if kind != Reply.WINDOW:
            raise ProtocolViolation(f"a frame of type {kind:#x} in a WRITE")
        window = replies.window(payload)
        _needs(window - self.window, "a window that opens nothing")
        self.window = window
        if self.on_window is not None:
            self.on_window()

    def finish(self, payload: memoryview) -> Record:
        """The new file's record."""
        found = replies.record(payload)
        if self.digest != (found.sha256 is not None):
            raise ProtocolViolation("a WRITE ends with a digest exactly where one was asked for")
        return found


class KeptBytes:
    """A slice of what is kept of an exec's output."""

    __slots__ = ("_pieces", "_stream")

    def __init__(self, stream: int, offset: int, limit: int) -> None:
        self._stream = stream
        self._pieces = Pieces(limit, offset)

    def accept(self, kind: int, payload: memoryview) -> None:
        """One OUTPUT."""
        if kind != Reply.OUTPUT:
            raise ProtocolViolation(f"a frame of type {kind:#x} in a KEPT")
        chunk = replies.output(payload)
        if chunk.stream != self._stream:
            raise ProtocolViolation("kept output that was not asked for")
        self._pieces.add(chunk.offset, chunk.data)

    def finish(self, payload: memoryview) -> tuple[list[tuple[int, bytes]], int, int]:
        """The pieces, the exec's state and the stream's total."""
        state, total = replies.kept_end(payload)
        return self._pieces.pieces, state, total


def _needs(size: int, words: str) -> None:
    """A frame that brings nothing would renew its request's patience for ever."""
    if size <= 0:
        raise ProtocolViolation(words)
