"""What an exec says on its way: its pid, its output, room for its input; bounded by what was asked for."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Literal

from kinfold.sandbox import replies
from kinfold.sandbox.base import Output
from kinfold.sandbox.protocol import ProtocolViolation, Reply
from kinfold.sandbox.replies import End
from kinfold.sandbox.stdin import StdinFeed

STREAM_WINDOW = 1_048_576
"""Bytes of each stream that may be on their way to a reader that has not taken them."""
_NAMES: tuple[Literal["stdout"], Literal["stderr"]] = ("stdout", "stderr")
_SMALL = 4096
"""Pieces that follow each other are joined up to this size: the peer cuts them, and a million objects are no MiB."""
_MOST_WAITING = 1024
"""Pieces that may wait for a reader before those of one stream are joined whatever lies between."""
_MOST_GAPS = 1024
"""A stream whose kept bytes come in more parts than this was never written by a program."""


class HeadAndTail:
    """The first and the last bytes of a stream, `keep` in all; half of them, rounded up, are head."""

    __slots__ = ("_half", "_head", "_head_open", "_keep", "_tail")

    def __init__(self, keep: int) -> None:
        self._keep = keep
        self._half = keep // 2
        self._head = bytearray()
        self._tail = bytearray()
        self._head_open = True

    def add(self, data: bytes | memoryview, *, gap: bool) -> None:
        """The next bytes; `gap`: bytes before them were dropped."""
        if gap:
            self._head_open = False
            self._tail.clear()
        if self._head_open:
            room = self._keep - self._half - len(self._head)
            self._head += data[:room]
            data = data[room:]
        if len(data):
            self._tail += data[-self._half :] if self._half else b""
            if len(self._tail) > 4 * self._half + 4096:
                self._trim()

    def _trim(self) -> None:
        if len(self._tail) > self._half:
            del self._tail[: len(self._tail) - self._half]

    def result(self, total: int) -> tuple[bytes, int]:
        """The bytes kept, and how many of them are head; all of them where nothing was dropped."""
        self._trim()
        kept = bytes(self._head + self._tail)
        return kept, len(kept) if len(kept) == total else len(self._head)


class Pieces:
    """One stream's output: head and tail come at the end, `keep` bytes in all; what follows each other is one piece."""

    __slots__ = ("_keep", "_pieces", "next", "received")

    def __init__(self, keep: int, offset: int = 0) -> None:
        self._keep = keep
        self.received = 0
        self.next = offset
        """The offset behind the last byte."""
        self._pieces: list[tuple[int, bytearray]] = []

    def add(self, offset: int, data: memoryview) -> None:
        """The next bytes. Raises `ProtocolViolation` for what was not asked for, and for none."""
        if not len(data):
            raise ProtocolViolation("output without a byte")
        self.received += len(data)
        if self.received > self._keep or offset < self.next:
            raise ProtocolViolation("output that was not asked for")
        if not self._pieces or offset > self.next:
            if len(self._pieces) > _MOST_GAPS:
                raise ProtocolViolation("output in more parts than can have been kept")
            self._pieces.append((offset, bytearray()))
        self._pieces[-1][1].extend(data)
        self.next = offset + len(data)

    @property
    def pieces(self) -> list[tuple[int, bytes]]:
        """What came, by offset."""
        return [(offset, bytes(data)) for offset, data in self._pieces]

    @property
    def joined(self) -> bytes:
        """What came, without the gaps."""
        return bytes(self._pieces[0][1]) if len(self._pieces) == 1 else b"".join(data for _, data in self._pieces)


class ExecAnswer:
    """The answer to EXEC or ATTACH, for a caller that waits for the end."""

    def __init__(self, keep: int, feed: StdinFeed | None, on_window: Callable[[], None]) -> None:
        self.pid: int | None = None
        self.on_started: Callable[[], None] | None = None
        self._feed = feed
        self._on_window = on_window
        self._keep = keep
        self._streams = (Pieces(keep), Pieces(keep))

    def restart(self) -> None:
        """A new channel: head and tail come anew."""
        self._streams = (Pieces(self._keep), Pieces(self._keep))

    @property
    def offsets(self) -> tuple[int, int]:
        """From where an ATTACH is to replay."""
        return (0, 0)

    @property
    def limits(self) -> tuple[int, int]:
        """How far the supervisor may send."""
        return (0, 0)

    def accept(self, kind: int, payload: memoryview) -> None:
        """One frame before the terminal one."""
        if kind == Reply.OUTPUT:
            self._output(replies.output(payload))
        elif kind == Reply.STARTED:
            pid = replies.started(payload)
            first = self.pid is None
            if self.pid not in (None, pid):
                raise ProtocolViolation("an exec started twice")
            self.pid = pid
            if first and self.on_started is not None:
                self.on_started()
        elif kind == Reply.WINDOW:
            window = replies.window(payload)
            if self._feed is not None:  # who only attaches hears of it too
                self._feed.grant(window)
                self._on_window()
        else:
            raise ProtocolViolation(f"a frame of type {kind:#x} in an exec")

    def _output(self, chunk: replies.Chunk) -> None:
        self._streams[chunk.stream - 1].add(chunk.offset, chunk.data)

    def finish(self, payload: memoryview) -> End:
        """How it ended."""
        end = replies.end(payload)
        for stream, total, head in zip(self._streams, end.totals, end.heads, strict=True):
            if stream.next > total or head > stream.received:
                raise ProtocolViolation("more output than there was")
        return end

    def kept(self, end: End, stream: int) -> tuple[bytes, int]:
        """The bytes of a stream (0 stdout, 1 stderr) that are kept, and how many of them are head."""
        return self._streams[stream].joined, end.heads[stream]

    def replay(self) -> list[Output]:
        """What came, as a reader sees it."""
        out, err = self._streams
        return [
            *(Output(stream="stdout", offset=offset, data=data) for offset, data in out.pieces),
            *(Output(stream="stderr", offset=offset, data=data) for offset, data in err.pieces),
        ]


class Waiting:
    """Pieces that a reader has not taken yet, in order; bounded in their number, whatever sizes the peer cuts.

    Pieces of one stream that follow each other become one while they are small. Where very many wait, they become one
    also across pieces of the other stream: each stream stays in order, how the two lay between each other is lost.
    """

    __slots__ = ("_gaps", "_last", "_pieces")

    def __init__(self) -> None:
        self._pieces: deque[_Piece] = deque()
        self._last: list[_Piece | None] = [None, None]
        """Of each stream, where it still waits."""
        self._gaps = 0

    def __len__(self) -> int:
        return len(self._pieces)

    def add(self, stream: int, offset: int, data: memoryview) -> None:
        """The next bytes of a stream (0 stdout, 1 stderr). Raises `ProtocolViolation` for too many gaps."""
        last = self._last[stream]
        if last is not None and last.stop != offset:
            self._gaps += 1
            if self._gaps > _MOST_GAPS:
                raise ProtocolViolation("output in more parts than can have been kept")
        elif last is not None and self._joins(last, len(data)):
            last.extend(data)
            return
        piece = _Piece(stream, offset, bytes(data))
        self._pieces.append(piece)
        self._last[stream] = piece

    def _joins(self, last: _Piece, size: int) -> bool:
        if len(self._pieces) > _MOST_WAITING:
            return True
        return last is self._pieces[-1] and len(last.data) + size <= _SMALL

    def take(self) -> Output:
        """The oldest. Raises `IndexError` where none waits."""
        piece = self._pieces.popleft()
        if self._last[piece.stream] is piece:
            self._last[piece.stream] = None
        if not self._pieces:
            self._gaps = 0
        return Output(stream=_NAMES[piece.stream], offset=piece.offset, data=bytes(piece.data))


class _Piece:
    """Bytes of one stream; copied only where more are joined to them."""

    __slots__ = ("data", "offset", "stream")

    def __init__(self, stream: int, offset: int, data: bytes) -> None:
        self.stream = stream
        self.offset = offset
        self.data: bytes | bytearray = data

    @property
    def stop(self) -> int:
        return self.offset + len(self.data)

    def extend(self, data: memoryview) -> None:
        if isinstance(self.data, bytes):
            self.data = bytearray(self.data)
        self.data += data


class StreamAnswer(ExecAnswer):
    """The answer to an EXEC or ATTACH whose output a reader takes as it comes; its pace grants what may be sent."""

    def __init__(
        self, keep: int, feed: StdinFeed | None, on_window: Callable[[], None], offsets: tuple[int, int] = (0, 0)
    ) -> None:
        super().__init__(keep, feed, on_window)
        self.on_credit: Callable[[int, int], None] | None = None
        self.queue = Waiting()
        self.wake = asyncio.Event()
        self._next = list(offsets)
        self._taken = list(offsets)
        self._limits = [offset + STREAM_WINDOW for offset in offsets]
        self._kept = (HeadAndTail(keep), HeadAndTail(keep))
        self._draining = False
        self._skipped = [offset > 0 for offset in offsets]

    def restart(self) -> None:
        """A new channel: the stream goes on where it was."""
        self._limits = [taken + STREAM_WINDOW for taken in self._taken]

    @property
    def offsets(self) -> tuple[int, int]:
        """What has arrived of each stream."""
        return self._next[0], self._next[1]

    @property
    def limits(self) -> tuple[int, int]:
        """What has been granted of each stream."""
        return self._limits[0], self._limits[1]

    def _output(self, chunk: replies.Chunk) -> None:
        index = chunk.stream - 1
        stop = chunk.offset + len(chunk.data)
        if chunk.offset < self._next[index] or stop > self._limits[index]:
            raise ProtocolViolation("output beyond what was granted")
        if stop == chunk.offset:
            raise ProtocolViolation("output without a byte")
        gap = chunk.offset > self._next[index] or self._skipped[index]
        self._skipped[index] = False
        self._next[index] = stop
        self._kept[index].add(chunk.data, gap=gap)
        if self._draining:
            self._take(index, stop)
        else:
            self.queue.add(index, chunk.offset, chunk.data)
            self.wake.set()

    def is_behind(self) -> bool:
        """Whether it is the reader that holds the end up: pieces wait, or all that was granted has come."""
        return len(self.queue) > 0 or any(done >= limit for done, limit in zip(self._next, self._limits, strict=True))

    def took(self, output: Output) -> None:
        """The reader is done with this piece."""
        self._take(_NAMES.index(output.stream), output.offset + len(output.data))

    def _take(self, index: int, upto: int) -> None:
        self._taken[index] = upto
        if upto + STREAM_WINDOW - self._limits[index] >= STREAM_WINDOW // 2:
            self._limits[index] = upto + STREAM_WINDOW
            if self.on_credit is not None:
                self.on_credit(index + 1, self._limits[index])

    def drain(self) -> None:
        """No reader (any more): take everything as it comes, keep head and tail."""
        self._draining = True
        while self.queue:
            self.took(self.queue.take())

    def finish(self, payload: memoryview) -> End:
        """How it ended."""
        end = replies.end(payload)
        if any(done > total for done, total in zip(self._next, end.totals, strict=True)):
            raise ProtocolViolation("more output than there was")
        return end

    def kept(self, end: End, stream: int) -> tuple[bytes, int]:
        """Head and tail as they passed by."""
        return self._kept[stream].result(end.totals[stream])
