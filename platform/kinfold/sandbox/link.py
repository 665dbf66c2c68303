"""A sandbox's connection to its supervisor: one channel at a time, and a new one when it breaks.

Requests that change nothing are repeated on the new channel (`Link.ask`). What may have changed something is not: its
caller gets `ChannelBroken` from `Link.once` and finds out what became of it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Literal, TypeVar

import anyio

from kinfold.errors import EngineUnavailable, SandboxError, SandboxLost, StartFailed
from kinfold.sandbox.base import Provider, SandboxRef
from kinfold.sandbox.channel import Channel, ChannelBroken, DeadlinePassed
from kinfold.sandbox.collect import Answer
from kinfold.sandbox.protocol import Request

T = TypeVar("T")
Ask = tuple[bytes, Callable[[], Answer[T]]]
Change = Literal["degraded", "ready", "lost"]
OnChange = Callable[[Change, str], None]
"""Called with what became of the connection, and why."""

PATIENCE = 60.0
"""Seconds without a frame after which an ordinary request is given up."""
REPEATS = 3
"""How often one request is sent again, each time on a new channel."""
_ATTEMPT_TIMEOUT = 15.0
_DELAYS = (0.0, 0.25, 1.5)
"""Seconds before each attempt at a new channel."""
_IN_FLIGHT = 16
_PAUSE_POLL = 1.0
_OUTAGE_POLL = 0.5
_FAILURES = (ChannelBroken, SandboxError, anyio.BrokenResourceError, anyio.EndOfStream, OSError)
"""What one attempt at a new channel may fail with; the next one may succeed. (`TimeoutError` is an `OSError`.)"""


class Link:
    """Owns the channel. `generation` never changes in its life: another one means that the container restarted.

    `outage`: for how many seconds an engine that does not answer is waited for. No longer than execs outlive the last
    channel: what ran would be gone by then.
    """

    def __init__(self, provider: Provider, ref: SandboxRef, *, keepalive: float, outage: float) -> None:
        self.ref = ref
        self.on_change: OnChange | None = None
        self._provider = provider
        self._keepalive = keepalive
        self._outage = outage
        self._degraded = False
        self._channel: Channel | None = None
        self._lost: str | None = None
        self._lock = asyncio.Lock()
        self._restoring: asyncio.Task[None] | None = None
        self.reconnects = 0
        self._last_use = 0.0
        self.on_channel: Callable[[Channel], None] | None = None
        """Called with every channel that is taken into use, the first one too."""
        self.execs_paused = False
        """Whether `Sandbox.pause` holds: deadlines of execs stand still, on a new channel too."""

    async def open(self) -> None:
        """The first channel. Raises `StartFailed`, or what `Provider.open_stream` raises."""
        try:
            channel = await self._attempt()
        except (ChannelBroken, anyio.BrokenResourceError, anyio.EndOfStream, OSError) as error:
            raise StartFailed(
                f"the supervisor of {self.ref.id} does not answer: {str(error) or type(error).__name__}",
                hint="the image must be for this machine's architecture; `kinfold doctor` checks the engine",
            ) from error
        self._adopt(channel)

    @property
    def channel(self) -> Channel:
        """The newest channel, broken or not."""
        if self._lost is not None:
            raise SandboxLost(self._lost)
        if self._channel is None:
            raise SandboxLost(f"sandbox {self.ref.id} is not open")
        return self._channel

    @property
    def alive(self) -> bool:
        """Whether a channel works at this moment."""
        return self._lost is None and self._channel is not None and self._channel.broken is None

    @property
    def last_use(self) -> float:
        """When something was last asked of the sandbox, by the loop's clock."""
        if self._channel is not None:
            self._last_use = max(self._last_use, self._channel.last_use)
        return self._last_use

    def touch(self) -> None:
        """It was used just now, in some other way."""
        self._last_use = asyncio.get_running_loop().time()

    async def ready(self) -> Channel:
        """A channel that works. Raises `SandboxLost`."""
        channel = self.channel
        return channel if channel.broken is None else await self.restored(channel)

    def lose(self, reason: str) -> SandboxLost:
        """From now on everything raises `SandboxLost` with this reason; the error to raise now."""
        if self._lost is None:
            self._lost = reason
            self._tell("lost", reason)
        return SandboxLost(self._lost)

    async def restored(self, broken: Channel) -> Channel:
        """A working channel in place of `broken`. Raises `SandboxLost` after bounded attempts."""
        async with self._lock:
            channel = self.channel
            if channel.broken is not None:
                channel = await self._anew(channel)
            return channel

    async def _anew(self, old: Channel) -> Channel:
        failure: BaseException | None = old.broken
        give_up = asyncio.get_running_loop().time() + self._outage
        attempts = iter(_DELAYS)
        delay = next(attempts, None)
        while delay is not None:
            await anyio.sleep(delay)
            try:
                channel = await self._attempt()
            except SandboxLost as lost:
                self.lose(lost.message)
                raise
            except EngineUnavailable as error:
                self._wait_for_engine(error, give_up)
                delay = _OUTAGE_POLL
            except _FAILURES as error:
                failure = error
                self._degrade(f"no channel: {str(error) or type(error).__name__}")
                await self._while_paused()
                delay = next(attempts, None)
            else:
                return await self._take_over(channel, old)
        raise self.lose(
            f"the supervisor of {self.ref.id} could not be reached again in {len(_DELAYS)} attempts: "
            f"{str(failure) or type(failure).__name__}"
        ) from failure

    async def _take_over(self, channel: Channel, old: Channel) -> Channel:
        if channel.hello.generation != old.hello.generation:
            await channel.aclose()
            raise self.lose(
                f"the container of {self.ref.id} was restarted: its supervisor is a new one, all that ran is gone"
            )
        self.reconnects += 1
        self._adopt(channel)
        if self._degraded:
            self._degraded = False
            self._tell("ready", "the supervisor answers again")
        return channel

    def _wait_for_engine(self, error: EngineUnavailable, give_up: float) -> None:
        """An engine that does not answer says nothing about the sandbox; raises `SandboxLost` when it is too late."""
        self._degrade(error.message)
        if asyncio.get_running_loop().time() >= give_up:
            raise self.lose(
                f"sandbox {self.ref.id} was out of reach for {self._outage:g} s (orphan_grace), its execs are ended: "
                f"{error.message}"
            ) from error

    def _degrade(self, reason: str) -> None:
        if not self._degraded:
            self._degraded = True
            self._tell("degraded", reason)

    def _tell(self, change: Change, reason: str) -> None:
        if self.on_change is not None:
            self.on_change(change, reason)

    async def _while_paused(self) -> None:
        """Wait as long as the engine holds the container frozen: nobody in it can answer, and no time passes there."""
        while await self._is_paused():  # noqa: ASYNC110 - nothing tells us of the end of an engine's pause
            await anyio.sleep(_PAUSE_POLL)

    async def _is_paused(self) -> bool:
        try:
            refs = await self._provider.list()
        except SandboxError:
            return False  # an engine that does not answer is what the next attempt will say
        return any(ref.id == self.ref.id and ref.state == "paused" for ref in refs)

    async def _attempt(self) -> Channel:
        """Raises `EngineUnavailable` also where only the way to the supervisor takes too long."""
        stream = None
        try:
            with anyio.fail_after(_ATTEMPT_TIMEOUT):
                stream = await self._provider.open_stream(self.ref)
                return await Channel.open(stream, keepalive=self._keepalive)
        except TimeoutError as error:
            if stream is not None:
                raise
            raise EngineUnavailable(
                f"no stream to {self.ref.id} within {_ATTEMPT_TIMEOUT:g} s", hint="`kinfold doctor` checks the engine"
            ) from error

    def _adopt(self, channel: Channel) -> None:
        self._channel = channel
        channel.execs_paused = self.execs_paused
        channel.on_broken = self._on_broken
        if self.on_channel is not None:
            self.on_channel(channel)
        if channel.broken is not None:
            self._on_broken(channel)

    def _on_broken(self, channel: Channel) -> None:
        # At once and unasked: background execs die when no channel has spoken for `orphan_grace`.
        if self._restoring is None or self._restoring.done():
            self._restoring = asyncio.get_running_loop().create_task(self._restore(channel))

    async def _restore(self, channel: Channel) -> None:
        try:
            await self.restored(channel)
        except SandboxLost:
            return  # kept in `_lost`: the next call says it

    # --- requests ---------------------------------------------------------------------------------------------------

    async def ask(
        self, request: Request, payload: bytes, answer: Callable[[], Answer[T]], *, patience: float = PATIENCE
    ) -> T:
        """A request that may be repeated. Raises `RemoteError`, `SandboxLost`."""
        for _ in range(REPEATS):
            channel = await self.ready()
            try:
                return await self.once(channel, request, payload, answer(), patience=patience)
            except ChannelBroken:
                continue
        raise self.lose(f"{request.name} broke {REPEATS} channels to {self.ref.id} one after the other")

    async def once(
        self, channel: Channel, request: Request, payload: bytes, answer: Answer[T], *, patience: float = PATIENCE
    ) -> T:
        """A request that is sent once. Raises `RemoteError`, `ChannelBroken`, `SandboxLost` when it is not answered."""
        call = channel.call(request, payload, answer, patience=patience)
        try:
            return await call
        except asyncio.CancelledError:
            call.abandon()
            raise
        except DeadlinePassed as error:
            call.abandon()
            raise SandboxLost(f"sandbox {self.ref.id}: {error}") from error

    async def ask_many(self, request: Request, asks: Iterable[Ask[T]], *, patience: float = PATIENCE) -> list[T]:
        """Requests that may be repeated, on their way together; answers in order.

        `asks` is drawn from as they are sent, so that the first is worked on while the next is made.
        """
        waiting = iter(asks)
        unanswered: deque[Ask[T]] = deque()
        done: list[T] = []
        for _ in range(REPEATS):
            channel = await self.ready()
            try:
                await self._pipeline(channel, request, waiting, unanswered, done, patience)
                return done
            except ChannelBroken:
                continue
        raise self.lose(f"{request.name} broke {REPEATS} channels to {self.ref.id} one after the other")

    async def _pipeline(
        self,
        channel: Channel,
        request: Request,
        waiting: Iterator[Ask[T]],
        unanswered: deque[Ask[T]],
        done: list[T],
        patience: float,
    ) -> None:
        """Send what a broken channel left `unanswered`, then what is `waiting`; each answered one goes to `done`."""
        calls = deque(channel.call(request, payload, answer(), patience=patience) for payload, answer in unanswered)
        try:
            while True:
                while len(calls) < _IN_FLIGHT and (ask := next(waiting, None)) is not None:
                    unanswered.append(ask)
                    calls.append(channel.call(request, ask[0], ask[1](), patience=patience))
                if not calls:
                    return
                done.append(await calls[0])
                calls.popleft()
                unanswered.popleft()
        except DeadlinePassed as error:
            raise SandboxLost(f"sandbox {self.ref.id}: {error}") from error
        finally:
            for call in calls:
                call.abandon()

    async def aclose(self) -> None:
        """Close the channel; further calls raise `SandboxLost`."""
        self.on_change = None
        if self._restoring is not None:
            self._restoring.cancel()
            await asyncio.gather(self._restoring, return_exceptions=True)
        if self._channel is not None:
            await self._channel.aclose()
        self.lose(f"sandbox {self.ref.id} is closed")
