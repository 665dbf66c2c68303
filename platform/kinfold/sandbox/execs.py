"""The execs of a sandbox: run one to its end, start one, find one again, end an owner's."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import anyio

from kinfold.errors import NotFound, SandboxError
from kinfold.sandbox import encode, replies
from kinfold.sandbox.base import ExecRequest, ExecResult, Output, OwnerEnd
from kinfold.sandbox.channel import RemoteError
from kinfold.sandbox.collect import KeptBytes, Plain
from kinfold.sandbox.execution import (
    KILL_MARGIN,
    Exec,
    Unstartable,
    encode_request,
    exec_name,
    exec_number,
    milliseconds,
    unstartable,
)
from kinfold.sandbox.link import Link
from kinfold.sandbox.process import Process
from kinfold.sandbox.protocol import Request

State = Literal["running", "background", "ended"]
STATES: tuple[State, ...] = ("running", "background", "ended")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecInfo:
    """An exec that the supervisor knows."""

    id: str
    state: State
    """`background`: the leader ended and left processes."""
    owner: str
    stdout_total: int
    stderr_total: int
    age: float
    """Seconds since its start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A slice of what the supervisor keeps of an exec's output."""

    pieces: tuple[Output, ...]
    """In order; a jump in the offsets means that what lies between was dropped."""
    state: State
    total: int
    """Bytes that the stream has had so far."""

    @property
    def data(self) -> bytes:
        """The pieces joined."""
        return b"".join(piece.data for piece in self.pieces)


class Execs:
    """The exec half of `Sandbox`, on its link; `env` goes to every exec."""

    def __init__(self, link: Link, env: Mapping[str, str]) -> None:
        self._link = link
        self._env = env
        self._drivers: set[asyncio.Task[ExecResult]] = set()

    async def run(self, request: ExecRequest) -> ExecResult:
        """See `Sandbox.run`."""
        channel = await self._link.ready()
        number = exec_number(request.id) if request.id else channel.fresh_id()
        if request.stdin_open or request.stream:
            request = replace(request, stdin_open=False, stream=False)
        try:
            payload = encode_request(request, self._env)
        except Unstartable as error:
            return unstartable(number, str(error))
        execution = Exec(self._link, number, request, payload)
        execution.begin(channel)
        try:
            return await execution.finish()
        except asyncio.CancelledError:
            await execution.kill_for_cancel()
            raise

    async def start(self, request: ExecRequest) -> Process:
        """See `Sandbox.start`."""
        channel = await self._link.ready()
        number = exec_number(request.id) if request.id else channel.fresh_id()
        try:
            execution = Exec(self._link, number, request, encode_request(request, self._env))
        except Unstartable as error:
            execution = Exec(self._link, number, request, None)
            return Process(self._link, execution, self._drive(_give(unstartable(number, str(error)))))
        execution.started = channel.loop.create_future()
        execution.begin(channel)
        driver = self._drive(execution.finish())
        try:
            await asyncio.shield(execution.started)
        except asyncio.CancelledError:
            driver.cancel()
            await execution.kill_for_cancel()
            raise
        if driver.done() or execution.answer.pid is None:
            await driver
        return Process(self._link, execution, driver)

    async def attach(self, exec_id: str, offsets: tuple[int, int]) -> Process:
        """See `Sandbox.attach`."""
        await self._check_known(exec_id)
        request = ExecRequest(command=["?"], stream=True)
        return await self._follow(Exec(self._link, exec_number(exec_id), request, None, offsets=offsets))

    async def take_up(self, request: ExecRequest) -> Process:
        """See `Sandbox.take_up`."""
        await self._check_known(request.id)
        execution = Exec(self._link, exec_number(request.id), replace(request, stdin=None, stream=False), None)
        execution.own()
        return await self._follow(execution)

    async def _check_known(self, exec_id: str) -> None:
        if exec_id not in {info.id for info in await self.list()}:
            raise NotFound(f"no exec {exec_id} in {self._link.ref.id}", hint="`execs()` lists those that are known")

    async def _follow(self, execution: Exec) -> Process:
        execution.attach_or_wait(await self._link.ready())
        return Process(self._link, execution, self._drive(execution.finish()))

    def _drive(self, finish: Coroutine[Any, Any, ExecResult]) -> asyncio.Task[ExecResult]:
        driver = asyncio.get_running_loop().create_task(finish)
        self._drivers.add(driver)
        driver.add_done_callback(self._driven)
        return driver

    def _driven(self, driver: asyncio.Task[ExecResult]) -> None:
        self._drivers.discard(driver)
        if not driver.cancelled():
            driver.exception()  # `wait` and `output` raise it; a caller that never asks must not make the loop complain

    async def end(self, owner: str, grace: float) -> list[OwnerEnd]:
        """See `Sandbox.end`."""
        payload = encode.end_owner(owner.encode(), milliseconds(grace) if grace else 0)
        try:
            ends = await self._link.ask(
                Request.END_OWNER, payload, lambda: Plain(replies.owner_ends), patience=grace + KILL_MARGIN
            )
        except RemoteError as error:
            raise self._link.lose(f"what {owner!r} left could not be ended: {error.failure.message}") from error
        return [OwnerEnd(exec_id=exec_name(number), killed=dead, survivors=left) for number, dead, left in ends]

    async def list(self) -> list[ExecInfo]:
        """See `Sandbox.execs`."""
        states = await self._link.ask(Request.EXECS, b"", lambda: Plain(replies.execs))
        return [
            ExecInfo(
                id=exec_name(state.exec_id),
                state=STATES[state.state - 1],
                owner=state.owner,
                stdout_total=state.stdout_total,
                stderr_total=state.stderr_total,
                age=state.age_ms / 1000,
            )
            for state in states
        ]

    async def kept(self, exec_id: str, stream: Literal["stdout", "stderr"], offset: int, limit: int) -> Kept:
        """See `Sandbox.kept`."""
        number = 1 if stream == "stdout" else 2
        limit = min(limit, 2**32 - 1)
        payload = encode.kept(exec_number(exec_id), number, offset, limit)
        try:
            pieces, state, total = await self._link.ask(Request.KEPT, payload, lambda: KeptBytes(number, offset, limit))
        except RemoteError as error:
            if error.failure.kind == replies.UNKNOWN_EXEC:
                raise NotFound(f"nothing is kept of {exec_id}", hint="`execs()` lists those that are known") from error
            raise SandboxError(f"{exec_id}: {error.failure.message or error.failure.kind}") from error
        return Kept(
            pieces=tuple(Output(stream=stream, offset=at, data=data) for at, data in pieces),
            state=STATES[state - 1],
            total=total,
        )

    async def end_all(self, timeout: float) -> None:
        """Kill every exec that runs; what cannot be proved dead in time is left to the provider's destroy."""
        with anyio.move_on_after(timeout):
            running = [info for info in await self.list() if info.state != "ended"]
            for info in running:
                payload = encode.kill(exec_number(info.id), 0)
                try:
                    await self._link.ask(Request.KILL, payload, lambda: Plain(replies.killed), patience=timeout)
                except RemoteError:
                    continue  # it ended meanwhile, or the destroy that follows ends it

    async def aclose(self) -> None:
        """Stop following what was started; the programs are not touched."""
        drivers = list(self._drivers)
        for driver in drivers:
            driver.cancel()
        await asyncio.gather(*drivers, return_exceptions=True)


async def _give(result: ExecResult) -> ExecResult:
    return result
