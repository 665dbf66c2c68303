"""Standard input on its way to a program: sent as the supervisor grants room, sent again after a new channel."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from kinfold.errors import NotFound
from kinfold.sandbox import encode, protocol
from kinfold.sandbox.protocol import MAX_PAYLOAD, STDIN_WINDOW, ProtocolViolation, Request

_PIECE = MAX_PAYLOAD - 8


class StdinFeed:
    """The bytes that a program is to read, by absolute offset.

    What may not have been accepted yet is kept: a granted window lies at most `STDIN_WINDOW` above what was accepted,
    so everything below `window - STDIN_WINDOW` can go. Bytes that arrive twice are dropped by the supervisor.
    """

    def __init__(self, data: bytes, *, stays_open: bool) -> None:
        self._buffer = bytearray(data) if stays_open else data
        self._base = 0
        self._sent = 0
        self._furthest = 0
        """The most that was ever sent, on any channel."""
        self._window = STDIN_WINDOW
        self._closed = not stays_open
        self._eof_sent = False
        self._over = False
        self._progress = asyncio.Event()

    @property
    def _end(self) -> int:
        return self._base + len(self._buffer)

    def frames(self, exec_id: int) -> Iterator[bytes]:
        """The frames that may go now, in order."""
        end = min(self._window, self._end)
        while self._sent < end:
            start = self._sent
            stop = min(start + _PIECE, end)
            piece = bytes(self._buffer[start - self._base : stop - self._base])
            self._sent = stop
            self._furthest = max(self._furthest, stop)
            yield protocol.header(Request.STDIN, exec_id, 8 + len(piece)) + encode.stdin_offset(start) + piece
        if self._closed and self._sent == self._end and not self._eof_sent:
            self._eof_sent = True
            yield protocol.frame(Request.STDIN_EOF, exec_id, encode.stdin_offset(self._end))
        self._progress.set()

    def grant(self, window: int) -> None:
        """The supervisor has room up to this offset."""
        if window - STDIN_WINDOW > self._furthest:
            raise ProtocolViolation("a stdin window beyond what can have been accepted")
        self._window = max(self._window, window)
        if isinstance(self._buffer, bytearray):
            done = self._window - STDIN_WINDOW - self._base
            if done > 0:
                del self._buffer[:done]
                self._base += done

    def rewind(self) -> None:
        """A new channel: what was not surely accepted is sent again."""
        self._sent = max(self._base, self._window - STDIN_WINDOW)
        self._eof_sent = False

    def add(self, data: bytes) -> None:
        """More input. Raises `NotFound` once the program has ended, `ValueError` after `close`."""
        if self._over:
            raise NotFound("the exec has ended: nothing reads its standard input any more")
        if self._closed or not isinstance(self._buffer, bytearray):
            raise ValueError("standard input is closed; ask for `stdin_open` and do not write after `close_stdin`")
        self._buffer += data

    async def drained(self) -> None:
        """Until all that was added has been sent. Raises `NotFound` when the program ended before."""
        while self._sent < self._end:
            if self._over:
                raise NotFound("the exec ended before it read all of its standard input")
            self._progress.clear()
            await self._progress.wait()

    def close(self) -> None:
        """No more input: EOF follows what was added."""
        self._closed = True

    def over(self) -> None:
        """The program has ended."""
        self._over = True
        self._progress.set()
