"""A lying supervisor costs the host neither memory nor time: whatever frames it sends, every await ends."""

from __future__ import annotations

import asyncio
import random
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.sandbox.fake_supervisor import FakeProvider, Frame, Peer, end
from tests.unit.sandbox.test_golden_frames import golden

from kinfold.errors import KinfoldError, SandboxLost
from kinfold.sandbox import execution, protocol, replies
from kinfold.sandbox.base import MIB, ExecRequest
from kinfold.sandbox.collect import Answer, Discard, FileBytes, KeptBytes, ListItems, Plain, StatItems, Written
from kinfold.sandbox.output import ExecAnswer, StreamAnswer, Waiting
from kinfold.sandbox.protocol import HEADER_BYTES, WRITE_WINDOW, FrameSplitter, ProtocolViolation, Reply, Request
from kinfold.sandbox.stdin import StdinFeed

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


@pytest.mark.threat("K11")
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


EMPTY: dict[str, tuple[Callable[[], Answer[Any]], Reply, bytes]] = {
    "a STAT's items": (lambda: StatItems(["a"]), Reply.ITEMS, bytes(4)),
    "a LIST's items": (lambda: ListItems(9), Reply.ITEMS, bytes(4)),
    "kept output": (lambda: KeptBytes(1, 0, 9), Reply.OUTPUT, b"\x01" + bytes(8)),
    "an exec's output": (lambda: exec_answer(), Reply.OUTPUT, b"\x01" + bytes(8)),
    "a stream's output": (lambda: stream_answer(), Reply.OUTPUT, b"\x02" + bytes(8)),
    "a file's bytes": (lambda: begun_read(), Reply.DATA, b""),
    "a window": (lambda: Written(WRITE_WINDOW, digest=False), Reply.WINDOW, b"\0" + WRITE_WINDOW.to_bytes(8, "little")),
}


def exec_answer() -> ExecAnswer:
    return ExecAnswer(100, StdinFeed(b"x", stays_open=False), lambda: None)


def stream_answer() -> StreamAnswer:
    return StreamAnswer(100, StdinFeed(b"", stays_open=True), lambda: None)


def begun_read() -> FileBytes:
    """A READ whose record has come."""
    answer = FileBytes(50)
    record = b"\x01" + bytes(4) + (5).to_bytes(8, "little") + bytes(24) + b"\0"
    answer.accept(Reply.ITEMS, memoryview((1).to_bytes(4, "little") + protocol.pack_bytes(b"a") + b"\x01" + record))
    return answer


@pytest.mark.threat("K11")
@pytest.mark.parametrize("what", EMPTY)
def test_a_frame_that_brings_nothing_is_a_violation_and_puts_no_deadline_off(what: str) -> None:
    make, kind, payload = EMPTY[what]
    with pytest.raises(ProtocolViolation):
        make().accept(kind, memoryview(payload))


@pytest.mark.threat("K11")
def test_single_bytes_of_alternating_streams_wait_in_few_pieces_for_a_reader_that_takes_none() -> None:
    answer = stream_answer()
    for number in range(60_000):
        word = bytes([1 + number % 2]) + (number // 2).to_bytes(8, "little") + b"x"
        answer.accept(Reply.OUTPUT, memoryview(word))
    assert len(answer.queue) < 1100
    assert sum(len(answer.queue.take().data) for _ in range(len(answer.queue))) == 60_000


@pytest.mark.threat("K11")
@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 900), st.booleans()), max_size=60), st.data())
def test_what_waits_for_a_reader_loses_no_byte_and_keeps_each_stream_in_order(
    pieces: list[tuple[int, int, bool]], data: st.DataObject
) -> None:
    waiting, at = Waiting(), [0, 0]
    sent, got = list[tuple[int, int, int]](), list[tuple[int, int, int]]()

    def took() -> None:
        piece = waiting.take()
        stream = int(piece.stream == "stderr")
        got.extend((stream, piece.offset + n, byte) for n, byte in enumerate(piece.data))

    for stream, size, gap in pieces:
        at[stream] += 7 * gap
        waiting.add(stream, at[stream], memoryview(bytes([size % 251]) * size))
        sent += [(stream, at[stream] + n, size % 251) for n in range(size)]
        at[stream] += size
        if len(waiting) and data.draw(st.booleans()):
            took()
    while len(waiting):
        took()
    for stream in (0, 1):
        assert [byte for byte in got if byte[0] == stream] == [byte for byte in sent if byte[0] == stream]


DECODERS: tuple[Callable[[memoryview], Any], ...] = (
    replies.failure, replies.hello, replies.started, replies.window, replies.output, replies.end, replies.items,
    replies.record, replies.digest, replies.listing_end, replies.number32, replies.number64, replies.killed,
    replies.owner_ends, replies.usage, replies.execs, replies.kept_end, replies.echo, replies.nothing,
)  # fmt: skip
ANSWERS: tuple[Callable[[], Answer[Any]], ...] = (
    exec_answer, stream_answer, begun_read, Discard, lambda: StatItems(["a", "b"]), lambda: ListItems(3),
    lambda: FileBytes(50), lambda: Written(50, digest=True), lambda: KeptBytes(1, 0, 50), lambda: Plain(replies.usage),
)  # fmt: skip


def spoiled(frame: bytes, chance: random.Random) -> bytes:
    """A frame with a few bytes, its length, its end or its very self changed."""
    data = bytearray(frame)
    for _ in range(chance.randrange(4)):
        data[chance.randrange(len(data))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    match chance.randrange(8):
        case 0:
            del data[chance.randrange(len(data)) :]
        case 1:
            data[0:4] = chance.choice((0, 1, len(data), 2**18, 2**18 + 1, 2**32 - 1)).to_bytes(4, "little")
        case 2:
            data += chance.randbytes(chance.randrange(40))
        case 3:
            data = bytearray(chance.randbytes(chance.randrange(1, 64)))
    return bytes(data)


def take(frame: bytes, number: int, chance: random.Random) -> int:
    """One frame by every way in: the splitter, its decoder, an answer. 1 where it is refused."""
    refused = 0
    splitter, seen = FrameSplitter(HEADER_BYTES + protocol.MAX_PAYLOAD), list[tuple[int, bytes]]()
    try:
        splitter.feed(frame, lambda kind, _, payload: seen.append((kind, bytes(payload))))
    except ProtocolViolation:
        refused = 1
    payload = memoryview(seen[0][1] if seen else frame[HEADER_BYTES:])
    answer = ANSWERS[number % len(ANSWERS)]()
    for attempt in (
        lambda: DECODERS[number % len(DECODERS)](payload),
        lambda: answer.accept(chance.choice(list(Reply)), payload),
        lambda: answer.finish(payload),
    ):
        try:
            attempt()
        except ProtocolViolation:
            refused = 1
    return refused


def run_of_frames(count: int, seed: int) -> tuple[int, int]:
    """How many of so many spoiled golden frames were refused, and what the run held at most, in bytes."""
    chance = random.Random(seed)
    frames = [one.data for one in golden()]
    refused = 0
    tracemalloc.start()
    try:
        for number in range(count):
            refused += take(spoiled(chance.choice(frames), chance), number, chance)
        return refused, tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.threat("K11")
def test_thousands_of_spoiled_frames_give_values_or_violations_and_cost_no_memory() -> None:
    refused, peak = run_of_frames(4_000, 11)
    assert refused > 1_000
    assert peak < 8 * MIB


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.threat("K11")
def test_a_million_spoiled_frames_give_values_or_violations_and_cost_no_memory() -> None:
    refused, peak = run_of_frames(1_000_000, 12)
    assert refused > 250_000
    assert peak < 8 * MIB
