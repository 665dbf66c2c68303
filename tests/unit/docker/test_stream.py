"""The engine's stream is taken apart whatever its pieces are, and closes for good."""

from __future__ import annotations

import io
import socket
import ssl
from types import SimpleNamespace

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfold.sandbox.docker.stream import Demultiplexer, EngineStream, _already_read


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
