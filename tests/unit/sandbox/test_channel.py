"""One stream, many requests: matched by id, bounded, ended as a whole by anything that is not the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest
from tests.unit.sandbox.fake_supervisor import Answer, Frame, Peer, PlainStream, error, hello, items, record

from kinfold.sandbox import channel as channel_module
from kinfold.sandbox import encode, protocol, replies
from kinfold.sandbox.channel import Channel, ChannelBroken, DeadlinePassed, RemoteError
from kinfold.sandbox.collect import FileBytes, KeptBytes, ListItems, Plain, StatItems, Written
from kinfold.sandbox.protocol import MAX_PAYLOAD, Reply, Request

pytestmark = pytest.mark.anyio
Open = Callable[[Answer], Awaitable[tuple[Channel, Peer]]]


def silent(peer: Peer, frame: Frame) -> None:
    """Answer nothing."""


def echo(peer: Peer, frame: Frame) -> None:
    """Answer PING."""
    if frame.kind == Request.PING:
        peer.say(Reply.OK, frame.id, frame.payload)


@pytest.fixture(params=["socket", "stream"])
async def opened(request: pytest.FixtureRequest) -> AsyncIterator[Open]:
    """Opens channels to peers of the test's, on both kinds of wire."""
    made: list[tuple[Channel, Peer]] = []

    async def make(answer: Answer) -> tuple[Channel, Peer]:
        peer = Peer(answer)
        stream = peer.stream if request.param == "socket" else PlainStream(peer.stream)
        made.append((await Channel.open(stream), peer))
        return made[-1]

    yield make
    for channel, peer in made:
        await channel.aclose()
        await peer.close()


def ping(channel: Channel, word: bytes = b"", patience: float = 20.0) -> channel_module.Call[bytes]:
    return channel.call(Request.PING, word, Plain(replies.echo), patience=patience)


async def test_replies_find_their_requests_in_any_order(opened: Open) -> None:
    waiting: list[Frame] = []

    def backwards(peer: Peer, frame: Frame) -> None:
        waiting.append(frame)
        if len(waiting) == 20:
            for one in reversed(waiting):
                peer.say(Reply.OK, one.id, one.payload)

    channel, _ = await opened(backwards)
    calls = [ping(channel, str(number).encode()) for number in range(20)]
    assert [await call for call in calls] == [str(number).encode() for number in range(20)]
    assert len({call.id for call in calls}) == 20


VIOLATIONS = {
    "noise": lambda peer, frame: peer.raw(b"\xff" * 64),
    "a huge frame": lambda peer, frame: peer.raw(protocol.HEADER.pack(MAX_PAYLOAD + 1, Reply.OK, 0, 0, frame.id)),
    "a request": lambda peer, frame: peer.raw(protocol.HEADER.pack(0, Request.PING, 0, 0, frame.id)),
    "output nobody asked for": lambda peer, frame: peer.say(Reply.OUTPUT, frame.id, b"\x01" + bytes(8) + b"x"),
    "a broken error": lambda peer, frame: peer.say(Reply.ERROR, frame.id, b"\x63"),
}


@pytest.mark.parametrize("name", VIOLATIONS)
async def test_a_violation_ends_the_channel_and_every_request_on_it(opened: Open, name: str) -> None:
    def answer(peer: Peer, frame: Frame) -> None:
        if frame.payload == b"bad":
            VIOLATIONS[name](peer, frame)

    channel, _ = await opened(answer)
    lost: list[Channel] = []
    channel.on_broken = lost.append
    innocent, bad = ping(channel), ping(channel, b"bad")
    for call in (innocent, bad):
        with pytest.raises(ChannelBroken, match="broke the protocol"):
            await call
    with pytest.raises(ChannelBroken):
        ping(channel)
    assert lost == [channel]


async def test_the_end_of_the_stream_ends_every_request(opened: Open) -> None:
    channel, peer = await opened(silent)
    calls = [ping(channel) for _ in range(3)]
    peer.hang_up()
    for call in calls:
        with pytest.raises(ChannelBroken, match="ended"):
            await call


async def test_replies_for_nobody_are_dropped_and_counted(opened: Open) -> None:
    def twice(peer: Peer, frame: Frame) -> None:
        peer.say(Reply.OK, frame.id + 1, b"forged")
        peer.say(Reply.OK, frame.id, frame.payload)
        peer.say(Reply.OK, frame.id, b"again")

    channel, _ = await opened(twice)
    for word in (b"a", b"b"):
        assert await ping(channel, word) == word
    await ping(channel)
    assert channel.strays >= 4


async def test_an_error_is_its_own_requests_only(opened: Open) -> None:
    def answer(peer: Peer, frame: Frame) -> None:
        peer.say(Reply.ERROR, frame.id, error(2)) if frame.payload == b"bad" else echo(peer, frame)

    channel, _ = await opened(answer)
    bad, good = ping(channel, b"bad"), ping(channel, b"good")
    with pytest.raises(RemoteError):
        await bad
    assert await good == b"good"


OVERRUNS: dict[str, tuple[Request, object, bytes, bytes]] = {
    "data beyond the credit": (Request.READ, FileBytes(3), items((b"f", record(9))), b"four"),
    "data before its record": (Request.READ, FileBytes(3), b"", b"x"),
    "more items than paths": (
        Request.STAT,
        StatItems(["/workspace/a"]),
        items((b"a", record(0)), (b"b", record(0))),
        b"",
    ),
    "more items than entries could make": (Request.LIST, ListItems(1), items(*[(b"a", record(0))] * 4), b""),
    "items for a write": (Request.WRITE, Written(9, digest=True), items((b"a", record(0))), b""),
    "items for kept output": (Request.KEPT, KeptBytes(1, 0, 9), items((b"a", record(0))), b""),
}


@pytest.mark.parametrize("name", OVERRUNS)
async def test_more_than_was_asked_for_ends_the_channel(opened: Open, name: str) -> None:
    request, answer, first, data = OVERRUNS[name]

    def overrun(peer: Peer, frame: Frame) -> None:
        if first:
            peer.say(Reply.ITEMS, frame.id, first)
        if data:
            peer.say(Reply.DATA, frame.id, data)

    channel, _ = await opened(overrun)
    with pytest.raises(ChannelBroken, match="broke the protocol"):
        await channel.call(request, b"", answer, patience=20)  # type: ignore[arg-type]


async def test_a_cancelled_caller_tells_the_supervisor_and_disturbs_nobody(opened: Open) -> None:
    channel, peer = await opened(echo)
    call = channel.call(Request.STAT, encode.stat([b"a"]), StatItems(["/workspace/a"]), patience=20)
    call.abandon()
    assert await ping(channel, b"x") == b"x"
    [cancel] = peer.of(Request.CANCEL)
    assert cancel.id == call.id
    peer.say(Reply.ITEMS, call.id, items((b"a", record(0))))
    peer.say(Reply.ERROR, call.id, error(36))
    assert await ping(channel, b"y") == b"y"
    assert channel.strays == 0


async def test_a_supervisor_that_does_not_answer_is_found_out(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "TICK", 0.05)
    monkeypatch.setattr(channel_module, "PING_TIMEOUT", 0.2)
    peer = Peer(silent)
    channel = await Channel.open(peer.stream, keepalive=0.1)
    call = channel.call(Request.USAGE, b"", Plain(replies.usage), patience=60)
    with anyio.fail_after(20), pytest.raises(ChannelBroken, match="silent"):
        await call
    await channel.aclose()
    await peer.close()


async def test_a_request_that_is_not_answered_fails_alone(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "TICK", 0.05)
    channel, peer = await opened(echo)
    call = channel.call(Request.USAGE, b"", Plain(replies.usage), patience=0.2)
    with anyio.fail_after(20), pytest.raises(DeadlinePassed, match="USAGE"):
        await call
    call.abandon()
    assert await ping(channel, b"x") == b"x"
    assert [frame.id for frame in peer.of(Request.CANCEL)] == [call.id]


async def test_a_host_that_stood_still_blames_nobody(opened: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "TICK", 0.05)
    channel, peer = await opened(silent)
    call = ping(channel, b"late", patience=0.5)
    await asyncio.sleep(0.06)
    blocked_until = channel.loop.time() + 0.8
    while channel.loop.time() < blocked_until:
        pass
    await asyncio.sleep(0.12)
    peer.say(Reply.OK, call.id, b"late")
    assert await call == b"late"


async def test_forgetting_travels_with_the_next_request(opened: Open) -> None:
    channel, peer = await opened(echo)
    channel.forget(5)
    channel.forget(6)
    await ping(channel)
    [forget] = peer.of(Request.FORGET)
    assert forget.payload == encode.forget([5, 6])
    assert peer.frames.index(forget) < peer.frames.index(peer.of(Request.PING)[0])
    for number in range(16):
        channel.forget(100 + number)
    await ping(channel)
    assert len(peer.of(Request.FORGET)) == 2


async def test_frames_wait_in_order_while_the_peer_does_not_read(opened: Open) -> None:
    channel, peer = await opened(echo)
    peer.reading.clear()
    data = bytes(range(256)) * 1024
    for number in range(40):
        channel.send(Request.WDATA, number + 1, data[: MAX_PAYLOAD - number])
    call = ping(channel, b"last")
    peer.reading.set()
    assert await call == b"last"
    assert [frame.payload for frame in peer.of(Request.WDATA)] == [data[: MAX_PAYLOAD - n] for n in range(40)]


@pytest.mark.parametrize("payload", [hello(version=2), b"", hello()[:-1], hello() + b"x"])
async def test_a_greeting_that_is_wrong_opens_nothing(payload: bytes) -> None:
    peer = Peer(lambda peer, frame: peer.say(Reply.OK, frame.id, payload), generation=0)
    with pytest.raises(ChannelBroken):
        await Channel.open(peer.stream)
    await peer.close()


async def test_a_supervisor_that_does_not_greet_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(channel_module, "TICK", 0.05)
    peer = Peer(silent, generation=0)
    with anyio.fail_after(20), pytest.raises(ChannelBroken, match="HELLO"):
        await Channel.open(peer.stream, timeout=0.2)
    await peer.close()
