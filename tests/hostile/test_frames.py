"""A lying supervisor costs the host neither memory nor time: whatever frames it sends, every await ends."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable

import pytest
from tests.unit.sandbox.fake_supervisor import FakeProvider, Frame, Peer, end

from kinfold.errors import KinfoldError, SandboxLost
from kinfold.sandbox import execution, protocol
from kinfold.sandbox.base import MIB, ExecRequest
from kinfold.sandbox.protocol import Reply, Request

pytestmark = pytest.mark.anyio

FLOOD = 40_000


def output(frame: Frame, offset: int, data: bytes, stream: int = 1) -> bytes:
    """One OUTPUT frame."""
    return protocol.frame(Reply.OUTPUT, frame.id, bytes([stream]) + offset.to_bytes(8, "little") + data)


def started(frame: Frame) -> bytes:
    """One STARTED frame."""
    return protocol.frame(Reply.STARTED, frame.id, (7).to_bytes(4, "little"))


async def pour(peer: Peer, frames: Callable[[int], bytes], count: int = FLOOD) -> None:
    """Send many frames at the pace at which the host takes them."""
    loop = asyncio.get_running_loop()
    batch = 500
    try:
        for first in range(0, count, batch):
            await loop.sock_sendall(peer._socket, b"".join(frames(n) for n in range(first, first + batch)))
    except OSError:
        return  # the host has hung up, as it should


async def memory_of_a_flood(frames: Callable[[Frame, int], bytes], *, stream: bool) -> int:
    """The most that the host holds while a supervisor pours `frames` into one exec, in bytes."""
    pouring: list[asyncio.Task[None]] = []

    def answer(peer: Peer, frame: Frame) -> None:
        if frame.kind in (Request.EXEC, Request.ATTACH):
            peer.raw(started(frame))
            pouring.append(asyncio.ensure_future(pour(peer, lambda n: frames(frame, n))))
        elif frame.kind == Request.KILL:
            peer.say(Reply.OK, frame.id, bytes(8))

    provider = FakeProvider(answer)
    sandbox = await provider.sandbox()
    tracemalloc.start()
    try:
        process = await sandbox.start(ExecRequest(command=["x"], stream=stream))
        await asyncio.wait([pouring[0]], timeout=30)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
        for task in pouring:
            task.cancel()
        waiting = asyncio.ensure_future(process.wait())
        waiting.cancel()
        await asyncio.gather(waiting, *pouring, return_exceptions=True)
        await sandbox.aclose()
        await provider.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_output_without_bytes_is_not_collected(stream: bool) -> None:
    assert await memory_of_a_flood(lambda frame, n: output(frame, 0, b""), stream=stream) < 3 * MIB


@pytest.mark.parametrize("stream", [False, True])
async def test_output_in_single_bytes_costs_what_its_bytes_cost(stream: bool) -> None:
    assert await memory_of_a_flood(lambda frame, n: output(frame, n, b"x"), stream=stream) < 3 * MIB


async def test_output_full_of_gaps_is_not_collected() -> None:
    assert await memory_of_a_flood(lambda frame, n: output(frame, 2 * n, b"x"), stream=False) < 3 * MIB


@pytest.mark.parametrize("word", ["started", "window"])
async def test_frames_that_say_nothing_do_not_put_an_execs_end_off(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "KILL_MARGIN", 0.5)
    monkeypatch.setattr(execution, "START_TIMEOUT", 1.5)
    chatting: list[asyncio.Task[None]] = []

    async def chat(peer: Peer, frame: Frame) -> None:
        while True:
            peer.raw(started(frame) if word == "started" else protocol.frame(Reply.WINDOW, frame.id, bytes(9)))
            await asyncio.sleep(0.2)

    def answer(peer: Peer, frame: Frame) -> None:
        if frame.kind in (Request.EXEC, Request.ATTACH):
            chatting.append(asyncio.ensure_future(chat(peer, frame)))
        elif frame.kind == Request.KILL:
            peer.say(Reply.OK, frame.id, bytes(8))

    provider = FakeProvider(answer)
    sandbox = await provider.sandbox()
    try:
        async with asyncio.timeout(9):
            with pytest.raises(SandboxLost):
                await sandbox.exec(["x"], timeout=0.5, grace=0.1)
    finally:
        for task in chatting:
            task.cancel()
        await asyncio.gather(*chatting, return_exceptions=True)
        await sandbox.aclose()
        await provider.close()


BIG = 2**64 - 1
LIES: dict[str, Callable[[Frame], bytes]] = {
    "output at the end of numbers": lambda f: output(f, BIG, b"x"),
    "output that wraps round": lambda f: output(f, BIG - 3, b"x" * 9),
    "output of a third stream": lambda f: output(f, 0, b"x", 3),
    "more than was asked to be kept": lambda f: output(f, 0, b"x" * 101),
    "output without a byte": lambda f: output(f, 0, b""),
    "output that goes back": lambda f: output(f, 50, b"x") + output(f, 10, b"x"),
    "an end with more heads than bytes": lambda f: protocol.frame(Reply.OK, f.id, end(0, 5)),
    "an end that is cut off": lambda f: protocol.frame(Reply.OK, f.id, end()[:-1]),
    "an end with a count of four billion": lambda f: protocol.frame(
        Reply.OK, f.id, end()[:50] + b"\xff\xff\xff\xff" + end()[54:]
    ),
    "two pids": lambda f: started(f) + protocol.frame(Reply.STARTED, f.id, (8).to_bytes(4, "little")),
    "a file's bytes": lambda f: protocol.frame(Reply.DATA, f.id, b"x"),
    "items": lambda f: protocol.frame(Reply.ITEMS, f.id, bytes(4)),
    "a stdin window of everything": lambda f: protocol.frame(Reply.WINDOW, f.id, b"\0" + b"\xff" * 8),
}


@pytest.mark.parametrize("lie", LIES)
async def test_a_lie_about_an_exec_ends_in_a_typed_error(lie: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(execution, "KILL_MARGIN", 0.5)
    monkeypatch.setattr(execution, "START_TIMEOUT", 1.5)

    def answer(peer: Peer, frame: Frame) -> None:
        if frame.kind in (Request.EXEC, Request.ATTACH):
            peer.raw(LIES[lie](frame))

    provider = FakeProvider(answer)
    sandbox = await provider.sandbox()
    try:
        async with asyncio.timeout(9):
            with pytest.raises(KinfoldError):
                await sandbox.exec(["x"], stdin=b"y", timeout=0.1, grace=0.1, max_output_bytes=100)
    finally:
        await sandbox.aclose()
        await provider.close()
