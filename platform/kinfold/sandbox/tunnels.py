"""Connections of programs, as the channel carries them: each a stream with its own credit in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NoReturn

import anyio

from kinfold.sandbox import encode, replies
from kinfold.sandbox.channel import FOREVER, Call, Channel
from kinfold.sandbox.protocol import EGRESS_WINDOW, ProtocolViolation, Reply, Request

PIECE = 65_536


class Tunnel:
    """One program's connection. `receive` and `send` may be cancelled without losing a byte."""

    def __init__(self, claim: Claim, number: int) -> None:
        self.number = number
        self._claim = claim
        self._buffer = bytearray()
        self._taken = 0
        """What `receive` has given out."""
        self._arrived = 0
        self._granted = EGRESS_WINDOW
        self._sent = 0
        self._room = EGRESS_WINDOW
        self._ended = False
        """The program will send no more."""
        self._eof_sent = False
        self._closed = False
        self._gone = False
        self._changed = asyncio.Event()

    # --- from the channel -------------------------------------------------------------------------------------------

    def feed(self, data: memoryview) -> None:
        """Bytes of the program."""
        self._arrived += len(data)
        if self._ended or self._arrived > self._granted:
            raise ProtocolViolation("bytes of a connection that were not granted")
        if not self._closed:
            self._buffer += data
            self._changed.set()

    def end(self) -> None:
        """The program will send no more."""
        if self._ended:
            raise ProtocolViolation("a connection that ended twice")
        self._ended = True
        self._changed.set()

    def allow(self, room: int) -> None:
        """The supervisor takes up to this offset."""
        if room > self._sent + EGRESS_WINDOW:
            raise ProtocolViolation("room for more than a window")
        self._room = max(self._room, room)
        self._changed.set()

    def lose(self) -> None:
        """It is gone."""
        self._gone = True
        self._changed.set()

    # --- for the proxy ----------------------------------------------------------------------------------------------

    async def receive(self, max_bytes: int = PIECE) -> bytes:
        """At least one byte; raises `anyio.EndOfStream` at the end, `anyio.BrokenResourceError` when cut."""
        while not self._buffer:
            if self._ended:
                raise anyio.EndOfStream
            await self._wait()
        data = bytes(self._buffer[:max_bytes])
        del self._buffer[:max_bytes]
        self._taken += len(data)
        if not self._gone and self._granted - self._taken <= EGRESS_WINDOW // 2:
            self._granted = self._taken + EGRESS_WINDOW
            self._claim.tell(Request.EGRESS_CREDIT, encode.egress_credit(self.number, self._granted))
        return data

    async def send(self, data: bytes) -> None:
        """All of `data`; raises `anyio.BrokenResourceError` when cut."""
        view = memoryview(data)
        while view:
            while self._sent >= self._room:
                await self._wait()
            if self._gone or self._closed or self._eof_sent:
                raise anyio.BrokenResourceError
            piece = view[: min(PIECE, self._room - self._sent)]
            self._sent += len(piece)
            self._claim.tell(Request.EGRESS_DATA, encode.egress_stream(self.number) + piece)
            view = view[len(piece) :]
            await asyncio.sleep(0)  # others in the loop get their turn between two pieces

    async def send_eof(self) -> None:
        """No more for the program."""
        if not (self._eof_sent or self._gone or self._closed):
            self._eof_sent = True
            self._claim.tell(Request.EGRESS_EOF, encode.egress_stream(self.number))

    async def finish(self, timeout: float) -> None:
        """Everything was said: end our side, let it arrive, and wait for the program to leave; then `cut`."""
        await self.send_eof()
        with anyio.move_on_after(timeout):
            while not self._gone:
                self._buffer.clear()
                self._changed.clear()
                await self._changed.wait()
        self.cut()

    def cut(self) -> None:
        """End it at once; the program reads a reset unless everything was said before."""
        if not (self._closed or self._gone):
            self._closed = True
            self._buffer.clear()
            self._claim.tell(Request.EGRESS_CLOSE, encode.egress_stream(self.number))
        self._changed.set()

    async def aclose(self) -> None:
        """`cut`."""
        self.cut()

    async def _wait(self) -> None:
        if self._gone or self._closed:
            raise anyio.BrokenResourceError
        self._changed.clear()
        await self._changed.wait()


class Claim:
    """The request that claims the connections of one channel, from EGRESS to its end. An `Answer`."""

    def __init__(self, channel: Channel, streams: int, on_open: Callable[[Tunnel], None]) -> None:
        self._streams = streams
        self._on_open = on_open
        self._tunnels: dict[int, Tunnel] = {}
        self._opened = 0
        self._ready = False
        self._over = False
        self.call: Call[None] = channel.call(Request.EGRESS, encode.egress(streams), self, patience=FOREVER)
        self.call.future.add_done_callback(self._on_over)

    def accept(self, kind: int, payload: memoryview) -> None:
        """One frame of one connection."""
        if kind == Reply.EGRESS_READY and not self._ready:
            replies.egress_ready(payload)
            self._ready = True
        elif not self._ready:
            raise ProtocolViolation(f"a frame of type {kind:#x} before EGRESS_READY")
        elif kind == Reply.EGRESS_OPENED:
            self._open(replies.egress_stream(payload))
        elif kind == Reply.EGRESS_BYTES:
            number, data = replies.egress_bytes(payload)
            self._tunnel(number).feed(data)
        elif kind == Reply.EGRESS_ENDED:
            self._tunnel(replies.egress_stream(payload)).end()
        elif kind == Reply.EGRESS_ROOM:
            number, room = replies.egress_room(payload)
            self._tunnel(number).allow(room)
        elif kind == Reply.EGRESS_GONE:
            number = replies.egress_stream(payload)
            self._tunnel(number).lose()
            del self._tunnels[number]
        else:
            raise ProtocolViolation(f"a frame of type {kind:#x} in an EGRESS")

    def finish(self, payload: memoryview) -> NoReturn:
        """A claim does not end by itself."""
        raise ProtocolViolation("an EGRESS that was answered with OK")

    def tell(self, kind: Request, payload: bytes) -> None:
        """A frame about one connection."""
        if not self._over:
            self.call.send(kind, payload)

    def release(self) -> None:
        """Give the connections up: those that are open are reset."""
        if not self.call.future.done():
            self.call.abandon()

    def _open(self, number: int) -> None:
        if number != self._opened + 1 or len(self._tunnels) >= self._streams:
            raise ProtocolViolation("a connection that was not asked for")
        self._opened = number
        tunnel = self._tunnels[number] = Tunnel(self, number)
        self._on_open(tunnel)

    def _tunnel(self, number: int) -> Tunnel:
        tunnel = self._tunnels.get(number)
        if tunnel is None:
            raise ProtocolViolation("a frame for a connection that is not there")
        return tunnel

    def _on_over(self, future: asyncio.Future[None]) -> None:
        self._over = True
        for tunnel in self._tunnels.values():
            tunnel.lose()
        self._tunnels.clear()
