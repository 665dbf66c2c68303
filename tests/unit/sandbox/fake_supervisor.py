"""A supervisor of the test's own making: it speaks real frames on a real socket and answers as the test says."""

from __future__ import annotations

import asyncio
import builtins
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal, NamedTuple

import anyio

from kinfold.sandbox import protocol
from kinfold.sandbox.base import ByteStream, ProbeReport, SandboxRef, SandboxSpec
from kinfold.sandbox.protocol import HEADER, Reply, Request
from kinfold.sandbox.sandbox import Sandbox
from kinfold.sandbox.streams import SocketStream

REF = SandboxRef(id="sbx_0123456789abcdef", provider="fake")


class Frame(NamedTuple):
    """One frame from the host."""

    kind: Request
    id: int
    payload: bytes


Answer = Callable[["Peer", Frame], None]


def hello(generation: int = 7, version: int = 1) -> bytes:
    """OK of HELLO."""
    numbers = version.to_bytes(2, "little") + generation.to_bytes(8, "little")
    return (
        numbers
        + b"".join(n.to_bytes(4, "little") for n in (1, 1000, 1000, 0))
        + protocol.pack_bytes(b"/workspace")
        + protocol.pack_bytes(b"build")
    )


def end(code: int = 0, total: int = 0) -> bytes:
    """OK of EXEC: exited with `code`."""
    numbers = b"\x01\x01" + code.to_bytes(4, "little") + bytes(4)
    totals = b"".join(n.to_bytes(8, "little") for n in (total, 0, total, 0))
    return numbers + totals + bytes(8) + bytes(4) + bytes(20) + bytes(40)


def record(size: int, sha256: bytes = b"") -> bytes:
    """A regular file's record."""
    head = b"\x01" + (0o644).to_bytes(4, "little") + size.to_bytes(8, "little") + bytes(24)
    return head + (b"\x02" + sha256 if sha256 else b"\x00")


def items(*entries: tuple[bytes, bytes]) -> bytes:
    """ITEMS with records."""
    parts = [protocol.pack_bytes(path) + b"\x01" + entry for path, entry in entries]
    return len(parts).to_bytes(4, "little") + b"".join(parts)


def error(kind: int) -> bytes:
    """ERROR."""
    return bytes([kind]) + bytes(8)


class Peer:
    """The supervisor's end of one stream."""

    def __init__(self, answer: Answer, generation: int = 7) -> None:
        ours, theirs = socket.socketpair()
        self.stream = SocketStream(ours)
        self.frames: list[Frame] = []
        self._socket = theirs
        self._socket.setblocking(False)
        self._answer = answer
        self._generation = generation
        self._buffer = bytearray()
        self._task = asyncio.get_running_loop().create_task(self._serve())
        self.reading = asyncio.Event()
        self.reading.set()

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self.reading.wait()
            try:
                data = await loop.sock_recv(self._socket, 65536)
            except OSError:
                return
            if not data:
                return
            self._buffer += data
            self._take()

    def _take(self) -> None:
        while len(self._buffer) >= 16:
            length, kind, _, _, call_id = HEADER.unpack_from(self._buffer)
            if len(self._buffer) < 16 + length:
                return
            frame = Frame(Request(kind), call_id, bytes(self._buffer[16 : 16 + length]))
            del self._buffer[: 16 + length]
            self.frames.append(frame)
            if frame.kind == Request.HELLO and self._generation:
                self.say(Reply.OK, frame.id, hello(self._generation))
            else:
                self._answer(self, frame)

    def say(self, kind: int, call_id: int, payload: bytes = b"") -> None:
        """Send a frame; small ones only, which a socket's buffer always takes."""
        self.raw(protocol.frame(kind, call_id, payload))

    def raw(self, data: bytes) -> None:
        """Send bytes that need be no frame."""
        self._socket.send(data)

    def hang_up(self) -> None:
        """End the stream."""
        self._socket.shutdown(socket.SHUT_RDWR)

    def of(self, kind: Request) -> list[Frame]:
        """The frames of one type that came so far."""
        return [frame for frame in self.frames if frame.kind == kind]

    async def close(self) -> None:
        """Release everything."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._socket.close()
        await self.stream.aclose()


class PlainStream:
    """A `ByteStream` that is not known to be a socket, as an engine's stream."""

    def __init__(self, inner: SocketStream) -> None:
        self._inner = inner

    async def receive(self, max_bytes: int = 262144) -> bytes:
        return await self._inner.receive(max_bytes)

    async def send(self, data: bytes) -> None:
        await self._inner.send(data)

    async def aclose(self) -> None:
        await self._inner.aclose()


class FakeProvider:
    """Opens streams to peers that answer by `answer`; the test changes `generation` or `down` as it goes."""

    name = "fake"

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.peers: list[Peer] = []
        self.generation = 7
        self.down = False
        self.destroyed = 0
        self.listed = 0
        self.state: Literal["running", "paused"] = "running"

    async def sandbox(self, **spec: object) -> Sandbox:
        sandbox = Sandbox(provider=self, ref=REF, spec=SandboxSpec.model_validate({"detached": True} | spec))
        await sandbox.open()
        return sandbox

    async def open_stream(self, ref: SandboxRef) -> ByteStream:
        if self.down:
            raise anyio.BrokenResourceError
        self.peers.append(Peer(lambda peer, frame: self.answer(peer, frame), self.generation))
        return self.peers[-1].stream

    async def create(self, spec: SandboxSpec) -> Sandbox:
        return await self.sandbox()

    async def connect(self, ref: SandboxRef) -> Sandbox:
        return await self.sandbox()

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxRef]:
        self.listed += 1
        return [replace(REF, state=self.state)]

    async def destroy(self, ref: SandboxRef) -> None:
        self.destroyed += 1

    async def probe(self) -> ProbeReport:
        return ProbeReport(engine="fake", controls=())

    async def close(self) -> None:
        for peer in self.peers:
            await peer.close()

    def all(self, kind: Request) -> builtins.list[Frame]:
        """The frames of one type on all streams."""
        return [frame for peer in self.peers for frame in peer.of(kind)]
