"""How a channel's bytes move: at once where the socket takes them, queued where not; received in the loop's callback.

A `Wire` has no task where it has a socket of its own (`SocketWire`, `FramedWire`), and two where all it has is a
`ByteStream`.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Protocol

import anyio

from kinfold.sandbox.base import ByteStream
from kinfold.sandbox.protocol import FrameSplitter, ProtocolViolation
from kinfold.sandbox.streams import FramedSocket, FramedStream, SocketStream, shut

Buffer = bytes | memoryview
OnFrame = Callable[[int, int, memoryview], None]
OnLost = Callable[[BaseException], None]
_READS_PER_TURN = 4
"""How often one readiness may read before others in the loop get their turn."""
_FULL_READ = 65_536
"""A read of fewer bytes has most likely emptied the socket."""
_BUFFERS_PER_SEND = 64
_RAW_BYTES = 262_144


class Wire(Protocol):
    """Whatever carries the frames."""

    def send(self, *buffers: Buffer) -> None:
        """Send, or queue what cannot go now. After the loss it does nothing: `on_lost` has said so."""
        ...

    def close(self) -> None:
        """Stop at once; no frame comes after it."""
        ...

    async def aclose(self) -> None:
        """`close`, and wait until every resource is released."""
        ...


def open_wire(stream: ByteStream, on_frame: OnFrame, on_lost: OnLost) -> Wire:
    """The fastest wire for `stream`, which it owns from here on."""
    if isinstance(stream, SocketStream):
        return SocketWire(stream.take(), on_frame, on_lost)
    framed = stream.take_framed() if isinstance(stream, FramedStream) else None
    if framed is not None:
        return FramedWire(framed, on_frame, on_lost)
    return StreamWire(stream, on_frame, on_lost)


class SocketWire:
    """A non-blocking socket driven from the event loop's own callbacks."""

    def __init__(self, connection: socket.socket, on_frame: OnFrame, on_lost: OnLost) -> None:
        self._socket = connection
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._splitter = FrameSplitter()
        self._queue: deque[Buffer] = deque()
        self._loop = asyncio.get_running_loop()
        self._closed = False
        self._loop.add_reader(connection.fileno(), self._readable)

    def send(self, *buffers: Buffer) -> None:
        """Send, or queue what cannot go now."""
        if self._closed:
            return
        if self._queue:
            self._queue.extend(buffers)
            return
        self._queue.extend(buffers)
        self._flush()
        if self._queue and not self._closed:
            self._loop.add_writer(self._socket.fileno(), self._writable)

    def _writable(self) -> None:
        self._flush()
        if not self._queue and not self._closed:
            self._loop.remove_writer(self._socket.fileno())

    def _flush(self) -> None:
        queue = self._queue
        try:
            while queue:
                if len(queue) == 1:
                    sent = self._socket.send(queue[0])
                else:
                    sent = self._socket.sendmsg([queue[i] for i in range(min(len(queue), _BUFFERS_PER_SEND))])
                self._drop(sent)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._fail(error)

    def _drop(self, sent: int) -> None:
        queue = self._queue
        while queue and sent >= len(queue[0]):
            sent -= len(queue.popleft())
        if sent:
            queue[0] = memoryview(queue[0])[sent:]

    def _readable(self) -> None:
        try:
            for _ in range(_READS_PER_TURN):
                if self._closed or self._receive() < _FULL_READ:
                    return
        except (BlockingIOError, InterruptedError):
            return
        except (OSError, anyio.EndOfStream, anyio.BrokenResourceError, ProtocolViolation) as error:
            self._fail(error)

    def _receive(self) -> int:
        """One read: hand on the frames that it completes, and say how many bytes came."""
        count = self._socket.recv_into(self._splitter.space())
        if not count:
            raise anyio.EndOfStream
        self._splitter.filled(count, self._on_frame)
        return count

    def _fail(self, error: BaseException) -> None:
        if not self._closed:
            self.close()
            # Not from inside a caller's `send`: it has not finished its own bookkeeping yet.
            self._loop.call_soon(self._on_lost, error)

    def close(self) -> None:
        """Stop at once."""
        if self._closed:
            return
        self._closed = True
        self._queue.clear()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        shut(self._socket)

    async def aclose(self) -> None:
        """`close`; nothing is left to wait for."""
        self.close()


class FramedWire(SocketWire):
    """The same for a socket on which the bytes come inside another transport's frames; what is sent is plain."""

    def __init__(self, framed: FramedSocket, on_frame: OnFrame, on_lost: OnLost) -> None:
        super().__init__(framed.socket, on_frame, on_lost)
        self._framed = framed
        self._early = framed.early
        self._raw = memoryview(bytearray(_RAW_BYTES))
        if self._early:
            self._loop.call_soon(self._readable)

    def _receive(self) -> int:
        if self._early:
            data, self._early = memoryview(self._early), b""
        else:
            data = self._raw[: self._socket.recv_into(self._raw)]
        if not data:
            raise self._framed.ended()
        try:
            pieces = self._framed.unframe(data)
        except ValueError as error:
            raise ProtocolViolation(str(error)) from error
        for piece in pieces:
            self._splitter.feed(piece, self._on_frame)
        return len(data)

    def close(self) -> None:
        """Stop at once."""
        if not self._closed:
            super().close()
            self._framed.release()


class StreamWire:
    """Any `ByteStream`, with one task that reads and one that writes."""

    def __init__(self, stream: ByteStream, on_frame: OnFrame, on_lost: OnLost) -> None:
        self._stream = stream
        self._on_frame = on_frame
        self._on_lost = on_lost
        self._queue: deque[Buffer] = deque()
        self._wake = asyncio.Event()
        self._closed = False
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._read()), loop.create_task(self._write())]
        self._closing: asyncio.Task[None] | None = None

    def send(self, *buffers: Buffer) -> None:
        """Queue for the writing task."""
        if not self._closed:
            self._queue.extend(buffers)
            self._wake.set()

    async def _read(self) -> None:
        splitter = FrameSplitter()
        try:
            while True:
                splitter.feed(await self._stream.receive(), self._on_frame)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            self._fail(error)
        except ProtocolViolation as violation:
            self._fail(violation)

    async def _write(self) -> None:
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._queue:
                    await self._stream.send(self._batch())
        except (anyio.BrokenResourceError, anyio.ClosedResourceError, OSError) as error:
            self._fail(error)

    def _batch(self) -> bytes:
        """What is queued, up to about 256 KiB, in one piece."""
        parts = [self._queue.popleft()]
        size = len(parts[0])
        while self._queue and size + len(self._queue[0]) <= 262_144:
            parts.append(self._queue.popleft())
            size += len(parts[-1])
        return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def _fail(self, error: BaseException) -> None:
        if not self._closed:
            self.close()
            asyncio.get_running_loop().call_soon(self._on_lost, error)

    def close(self) -> None:
        """Stop at once; the stream itself is released by a short task."""
        if self._closed:
            return
        self._closed = True
        self._queue.clear()
        current = asyncio.current_task()
        for task in self._tasks:
            if task is not current:
                task.cancel()
        self._closing = asyncio.get_running_loop().create_task(self._release())

    async def _release(self) -> None:
        await self._stream.aclose()

    async def aclose(self) -> None:
        """`close`, and wait until the stream is released."""
        self.close()
        if self._closing is not None:
            await self._closing
        await asyncio.gather(*self._tasks, return_exceptions=True)
