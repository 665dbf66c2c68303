"""One byte stream, many concurrent requests.

A `Channel` matches replies to requests by id, watches that the supervisor lives, and ends as a whole: the first
violation, silence or end of the stream fails it and every request on it with `ChannelBroken`. What to do then (attach
anew, repeat, report) is the sandbox's business.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Generator
from typing import Any, Generic, TypeVar

from kinfold.sandbox import encode, protocol, replies
from kinfold.sandbox.base import ByteStream
from kinfold.sandbox.collect import Answer, AnswerRefused, Discard, Plain
from kinfold.sandbox.protocol import ProtocolViolation, Reply, Request
from kinfold.sandbox.replies import Failure, Hello
from kinfold.sandbox.wire import Buffer, open_wire

T = TypeVar("T")

TICK = 1.0
"""How often deadlines are looked at."""
PING_TIMEOUT = 10.0
_CANCEL_TIMEOUT = 30.0
_EXCUSED = 5.0
_LOOKS = frozenset({Request.PING, Request.USAGE, Request.EXECS, Request.PROCESSES, Request.EGRESS})
"""To look at a sandbox, or to stand ready for its connections, is not to use it: its `idle_ttl` goes on."""
_FORGET_BATCH = 16
FOREVER = float("inf")


class ChannelBroken(Exception):
    """Raised by every request of a channel that ended. Private: the sandbox attaches anew, or says `SandboxLost`."""


class RemoteError(Exception):
    """Raised when the supervisor answers ERROR. Private: the sandbox turns it into an error of `kinfold.errors`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(f"kind {failure.kind}, errno {failure.errno}: {failure.message}")
        self.failure = failure


class DeadlinePassed(Exception):
    """Raised when a request was not answered in time on a channel that otherwise lives. Private, as above."""


class Call(Generic[T]):
    """One outstanding request; awaiting it gives its value."""

    __slots__ = ("answer", "channel", "deadline", "excuse", "future", "id", "patience", "paused_with_execs", "request")

    def __init__(self, channel: Channel, request: Request, call_id: int, answer: Answer[T], patience: float) -> None:
        self.channel = channel
        self.request = request
        self.id = call_id
        self.answer: Answer[Any] = answer
        self.future: asyncio.Future[T] = channel.loop.create_future()
        self.patience = patience
        """Seconds without a frame after which it fails; renewed by every frame."""
        self.deadline = channel.loop.time() + patience
        self.excuse: Callable[[], bool] | None = None
        """Asked when the deadline has passed: True puts it off, for it is we who hold things up."""
        self.paused_with_execs = False
        """Its deadline stands still while the sandbox's execs are paused."""

    def __await__(self) -> Generator[Any, None, T]:
        return self.future.__await__()

    def set_patience(self, patience: float) -> None:
        """Another deadline, from now on."""
        self.patience = patience
        self.deadline = self.channel.loop.time() + patience

    def send(self, kind: Request, *parts: Buffer) -> None:
        """A frame with this call's id and no reply of its own."""
        self.channel.send(kind, self.id, *parts)

    def abandon(self) -> None:
        """Nobody waits any more: ask the supervisor to stop, and drop what still comes."""
        self.future.cancel()
        self.channel.abandon(self)


class Channel:
    """The requests on one stream. Made by `Channel.open`; bound to the running event loop."""

    def __init__(self, stream: ByteStream, *, keepalive: float = 15.0) -> None:
        self.loop = asyncio.get_running_loop()
        self.broken: ChannelBroken | None = None
        self.strays = 0
        """Replies for ids that were not outstanding; dropped."""
        self.on_broken: Callable[[Channel], None] | None = None
        """Called once, when the channel ends other than by `aclose`."""
        self.execs_paused = False
        self.last_request = self.loop.time()
        """When the last request that was not a mere sign of life was made."""
        self._calls: dict[int, Call[Any]] = {}
        self._forget: list[int] = []
        self._hello: Hello | None = None
        self._keepalive = keepalive
        self._next_ping = self.loop.time() + keepalive
        self._last_tick = self.loop.time()
        self._wire = open_wire(stream, self._on_frame, self._on_lost)
        self._timer = self.loop.call_later(TICK, self._tick)

    @classmethod
    async def open(cls, stream: ByteStream, *, timeout: float = PING_TIMEOUT, keepalive: float = 15.0) -> Channel:
        """A channel whose HELLO was answered. Raises `ChannelBroken`; the stream is then released."""
        channel = cls(stream, keepalive=keepalive)
        call = channel.call(Request.HELLO, encode.hello(), Plain(replies.hello), patience=timeout)
        try:
            channel._hello = await call
        except BaseException as error:
            await channel.aclose()
            if isinstance(error, RemoteError | DeadlinePassed):
                raise ChannelBroken(f"the supervisor did not answer HELLO: {error}") from error
            raise
        return channel

    @property
    def hello(self) -> Hello:
        """What the supervisor said of itself."""
        if self._hello is None:
            raise RuntimeError("the channel is not open")
        return self._hello

    def call(
        self,
        request: Request,
        payload: bytes,
        answer: Answer[T],
        *,
        patience: float,
        call_id: int = 0,
        follow: tuple[Buffer, ...] = (),
    ) -> Call[T]:
        """Send a request and return at once; `follow` are whole frames that go out with it, in one piece."""
        if self.broken is not None:
            raise self.broken
        call_id = call_id or self.fresh_id()
        call = Call(self, request, call_id, answer, patience)
        self._calls[call_id] = call
        if request not in _LOOKS:
            self.last_request = self.loop.time()
        first = protocol.frame(request, call_id, payload)
        if self._forget:
            first = self._take_forgotten() + first
        self._wire.send(first, *follow)
        return call

    @property
    def last_use(self) -> float:
        """The loop's time of the last request; now, while one waits for its answer."""
        busy = any(call.request not in _LOOKS for call in self._calls.values())
        return self.loop.time() if busy else self.last_request

    def fresh_id(self) -> int:
        """A random id that is not in use."""
        while True:
            call_id = secrets.randbits(64)
            if call_id and call_id not in self._calls:
                return call_id

    def send(self, kind: Request, call_id: int, *parts: Buffer) -> None:
        """A frame that has no reply."""
        self._wire.send(protocol.header(kind, call_id, sum(map(len, parts))), *parts)

    def send_frames(self, *frames: Buffer) -> None:
        """Whole frames, encoded already."""
        if frames:
            self._wire.send(*frames)

    def forget(self, exec_id: int) -> None:
        """Tell the supervisor, with the next request, that an ended exec's record can go."""
        self._forget.append(exec_id)
        if len(self._forget) >= _FORGET_BATCH and self.broken is None:
            self._wire.send(self._take_forgotten())

    def _take_forgotten(self) -> bytes:
        ids, self._forget = self._forget, []
        return protocol.frame(Request.FORGET, self.fresh_id(), encode.forget(ids))

    def abandon(self, call: Call[Any]) -> None:
        """See `Call.abandon`."""
        if self._calls.get(call.id) is call:
            call.answer = Discard()
            call.set_patience(_CANCEL_TIMEOUT)
            self.send(Request.CANCEL, call.id)

    # --- what arrives -----------------------------------------------------------------------------------------------

    def _on_frame(self, kind: int, call_id: int, payload: memoryview) -> None:
        call = self._calls.get(call_id)
        if call is None:
            self.strays += 1
            return
        if kind == Reply.OK:
            value = call.answer.finish(payload)
            del self._calls[call_id]
            if not call.future.done():
                call.future.set_result(value)
        elif kind == Reply.ERROR:
            failure = replies.failure(payload)
            del self._calls[call_id]
            if not call.future.done():
                call.future.set_exception(RemoteError(failure))
                call.future.exception()  # a caller that has left must not make the loop complain
        else:
            self._accept(call, kind, payload)

    def _accept(self, call: Call[Any], kind: int, payload: memoryview) -> None:
        try:
            call.answer.accept(kind, payload)
        except AnswerRefused as refusal:
            if not call.future.done():
                call.future.set_exception(refusal)
                call.future.exception()
            self.abandon(call)
            return
        if call.patience != FOREVER:
            call.deadline = self.loop.time() + call.patience

    def _on_lost(self, error: BaseException) -> None:
        if isinstance(error, ProtocolViolation):
            self._break(f"the supervisor broke the protocol: {error}")
        else:
            self._break(f"the stream to the supervisor ended: {error}".removesuffix(": "))

    def _break(self, why: str) -> None:
        if self.broken is not None:
            return
        self.broken = ChannelBroken(why)
        self._timer.cancel()
        self._wire.close()
        calls, self._calls = self._calls, {}
        for call in calls.values():
            if not call.future.done():
                call.future.set_exception(ChannelBroken(why))
                call.future.exception()
        if self.on_broken is not None:
            self.on_broken(self)

    # --- time -------------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        now = self.loop.time()
        gap = now - self._last_tick - TICK
        self._last_tick = now
        self._timer = self.loop.call_later(TICK, self._tick)
        if gap > TICK:
            # This process stood still: nobody's time has passed, and what arrived meanwhile comes first.
            for call in self._calls.values():
                call.deadline += gap + TICK
            return
        for call in [call for call in self._calls.values() if call.deadline <= now or call.paused_with_execs]:
            if call.paused_with_execs and self.execs_paused:
                call.deadline += TICK
            elif call.deadline <= now:
                self._expire(call)
                if self.broken is not None:
                    return
        if now >= self._next_ping:
            self._ping(now)

    def _ping(self, now: float) -> None:
        self._next_ping = now + self._keepalive
        if not any(call.request == Request.PING for call in self._calls.values()):
            self.call(Request.PING, b"", Plain(replies.echo), patience=PING_TIMEOUT)

    def _expire(self, call: Call[Any]) -> None:
        if call.request == Request.PING or isinstance(call.answer, Discard):
            self._break(f"the supervisor has been silent for {call.patience:g} s")
        elif call.excuse is not None and call.excuse():
            call.deadline = self.loop.time() + _EXCUSED
        elif not call.future.done():
            call.deadline = FOREVER
            call.future.set_exception(DeadlinePassed(f"{call.request.name} was not answered in {call.patience:g} s"))
            call.future.exception()

    async def ping(self) -> None:
        """One round trip."""
        await self.call(Request.PING, b"", Plain(replies.echo), patience=PING_TIMEOUT)

    async def aclose(self) -> None:
        """End the channel; what still runs in the container runs on."""
        self.on_broken = None
        if self.broken is None:
            if self._forget:
                self._wire.send(self._take_forgotten())
            self._break("the channel was closed")
        await self._wire.aclose()
