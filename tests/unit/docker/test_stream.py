"""The engine's stream is taken apart whatever its pieces are, and closes for good."""

from __future__ import annotations

import io
import itertools
import socket
import ssl
from types import SimpleNamespace

import anyio
import anyio.to_thread
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfold.sandbox.channel import Channel, ChannelBroken
from kinfold.sandbox.docker.stream import Demultiplexer, EngineStream, _already_read
from kinfold.sandbox.protocol import ProtocolViolation, Reply, frame
from kinfold.sandbox.wire import FramedWire, open_wire


def framed(stream: int, data: bytes) -> bytes:
    """One frame of the engine's."""
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


class Held:
    """Stands for what the SDK keeps of a connection."""

    closed = False

    def close(self) -> None:
        """As the response's."""
        self.closed = True


def pair() -> tuple[EngineStream, socket.socket, Held]:
    """A stream and the engine's end of its connection."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    held = Held()
    return EngineStream(ours, held), theirs, held


@given(
    st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=50)), max_size=12),
    st.lists(st.integers(min_value=1, max_value=20), min_size=1, max_size=20),
)
def test_any_cut_of_the_stream_gives_the_same_bytes(frames: list[tuple[int, bytes]], cuts: list[int]) -> None:
    wire = b"".join(framed(stream, data) for stream, data in frames)
    demultiplexer, out, position, turn = Demultiplexer(), b"", 0, 0
    while position < len(wire):
        size = cuts[turn % len(cuts)]
        out += demultiplexer.feed(wire[position : position + size])
        position, turn = position + size, turn + 1
    assert out == b"".join(data for stream, data in frames if stream == 1)
    assert demultiplexer.stderr == b"".join(data for stream, data in frames if stream == 2)


def test_what_is_no_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="not a frame"):
        Demultiplexer().feed(b"HTTP/1.1")


@pytest.mark.anyio
async def test_why_the_engine_started_no_relay_is_what_its_channel_fails_with() -> None:
    stream, engine, _ = pair()
    engine.sendall(framed(1, b"OCI runtime exec failed: no such\x1b[31m cgroup\r\n"))
    with pytest.raises(ChannelBroken, match=r"started no relay: OCI runtime exec failed: no such \[31m cgroup$"):
        await Channel.open(stream)


@pytest.mark.anyio
async def test_what_a_relay_says_at_its_end_is_what_its_channel_fails_with() -> None:
    stream, engine, _ = pair()
    engine.sendall(framed(2, b"no socket\n"))
    engine.shutdown(socket.SHUT_WR)
    with pytest.raises(ChannelBroken, match=r"the relay ended: no socket$"):
        await Channel.open(stream)


@pytest.mark.anyio
async def test_bytes_go_both_ways_and_the_end_is_an_end() -> None:
    stream, engine, held = pair()
    await stream.send(b"hello")
    assert engine.recv(10) == b"hello"
    engine.sendall(framed(1, b"abcdef"))
    assert await stream.receive(4) == b"abcd"
    assert await stream.receive(4) == b"ef"
    engine.shutdown(socket.SHUT_WR)
    with pytest.raises(anyio.EndOfStream):
        await stream.receive()
    await stream.aclose()
    await stream.aclose()
    assert held.closed
    assert engine.recv(10) == b""
    engine.close()


@pytest.mark.anyio
async def test_a_relay_that_could_not_start_says_why() -> None:
    stream, engine, _ = pair()
    engine.sendall(framed(2, b"connect: no such file\n"))
    engine.close()
    with pytest.raises(anyio.BrokenResourceError, match="no such file"):
        await stream.receive()
    await stream.aclose()


@pytest.mark.anyio
async def test_a_broken_frame_breaks_the_stream() -> None:
    stream, engine, _ = pair()
    engine.sendall(b"\x07garbage")
    with pytest.raises(anyio.BrokenResourceError):
        await stream.receive()
    engine.close()
    await stream.aclose()


class Nothing(io.RawIOBase):
    """A TLS connection on which nothing has come yet."""

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: object) -> int:
        """As `ssl` does it."""
        raise ssl.SSLWantReadError


@pytest.mark.parametrize(("raw", "early"), [(io.BytesIO(b"early"), b"early"), (io.BytesIO(), b""), (Nothing(), b"")])
def test_bytes_that_came_with_the_head_are_not_lost(raw: io.RawIOBase, early: bytes) -> None:
    response = SimpleNamespace(raw=SimpleNamespace(_fp=SimpleNamespace(fp=io.BufferedReader(raw))))
    assert _already_read(response) == early


@pytest.mark.anyio
async def test_a_slow_engine_holds_the_sender_and_loses_nothing() -> None:
    stream, engine, _ = pair()
    data = bytes(range(256)) * 20_000
    taken = bytearray()

    async def take() -> None:
        engine.setblocking(False)
        while len(taken) < len(data):
            await anyio.wait_readable(engine)
            taken.extend(engine.recv(65536))

    async with anyio.create_task_group() as group:
        group.start_soon(stream.send, data)
        await anyio.wait_all_tasks_blocked()
        group.start_soon(take)
    assert bytes(taken) == data
    await stream.aclose()
    engine.close()


@pytest.mark.anyio
async def test_closing_ends_a_waiting_reader() -> None:
    stream, engine, _ = pair()
    ended = anyio.Event()

    async def read() -> None:
        with pytest.raises((anyio.ClosedResourceError, anyio.BrokenResourceError, anyio.EndOfStream)):
            await stream.receive()
        ended.set()

    async with anyio.create_task_group() as group:
        group.start_soon(read)
        await anyio.wait_all_tasks_blocked()
        await stream.aclose()
        with anyio.fail_after(5):
            await ended.wait()
    engine.close()


class Wired:
    """A wire on a stream of the engine's, and what came of it."""

    def __init__(self, stream: EngineStream) -> None:
        self.frames: list[tuple[int, int, bytes]] = []
        self.changed = anyio.Event()
        self.lost: BaseException | None = None
        self.wire = open_wire(stream, self._on_frame, self._on_lost)
        assert isinstance(self.wire, FramedWire)

    def _on_frame(self, kind: int, frame_id: int, payload: memoryview) -> None:
        self.frames.append((kind, frame_id, bytes(payload)))
        self.changed.set()

    def _on_lost(self, error: BaseException) -> None:
        self.lost = error
        self.changed.set()

    async def until(self, frames: int) -> None:
        """Until so many frames came, or the wire was lost."""
        with anyio.fail_after(5):
            while len(self.frames) < frames and self.lost is None:
                self.changed = anyio.Event()
                await self.changed.wait()


@pytest.mark.anyio
async def test_a_channel_drives_the_engines_socket_itself_and_loses_no_early_byte() -> None:
    sent = [(Reply.DATA, number, bytes([number]) * 70_000 * number) for number in range(1, 4)]
    plain = b"".join(frame(*one) for one in sent)
    cuts = [0, 10, *range(32_768, len(plain), 32_768), len(plain)]
    pieces = [framed(1, plain[start:stop]) for start, stop in itertools.pairwise(cuts)]
    engines = framed(2, b"a word") + b"".join(pieces)
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    held = Held()
    wired = Wired(EngineStream(ours, held, engines[:25]))
    async with anyio.create_task_group() as group:
        group.start_soon(wired.until, len(sent))
        await anyio.to_thread.run_sync(theirs.sendall, engines[25:])
    assert wired.frames == sent
    wired.wire.send(b"to the ", b"relay")
    assert theirs.recv(100) == b"to the relay"
    await wired.wire.aclose()
    assert held.closed
    assert theirs.recv(100) == b""
    theirs.close()


@pytest.mark.anyio
@pytest.mark.parametrize("rubbish", [b"\x07garbage", framed(1, b"\xff" * 16)])
async def test_rubbish_in_either_framing_ends_the_wire(rubbish: bytes) -> None:
    stream, engine, held = pair()
    wired = Wired(stream)
    engine.sendall(rubbish)
    await wired.until(1)
    assert isinstance(wired.lost, ProtocolViolation)
    assert held.closed
    engine.close()


@pytest.mark.anyio
async def test_closing_the_stream_under_a_wire_ends_it() -> None:
    stream, engine, held = pair()
    wired = Wired(stream)
    await stream.aclose()
    await wired.until(1)
    assert isinstance(wired.lost, anyio.EndOfStream)
    assert held.closed
    engine.close()
