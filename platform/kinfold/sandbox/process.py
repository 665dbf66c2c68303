"""A program that runs on while its caller does other things: read its output, feed it, signal it, end it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from kinfold.errors import NotFound, SandboxError
from kinfold.sandbox import encode, replies
from kinfold.sandbox.base import ExecResult, Output, OwnerEnd, TerminalSize
from kinfold.sandbox.channel import ChannelBroken, RemoteError
from kinfold.sandbox.collect import Plain
from kinfold.sandbox.execution import Exec
from kinfold.sandbox.link import Link
from kinfold.sandbox.output import StreamAnswer
from kinfold.sandbox.protocol import Request


class Process:
    """A started exec. It lives in the container until it ends, is killed, or its owner or its sandbox ends.

    Made by `Sandbox.start` and `Sandbox.attach`.
    """

    def __init__(self, link: Link, execution: Exec, driver: asyncio.Task[ExecResult]) -> None:
        self._link = link
        self._exec = execution
        self._driver = driver
        self._reading = False

    @property
    def id(self) -> str:
        """`exec_` and 16 hex digits."""
        return self._exec.name

    @property
    def pid(self) -> int | None:
        """The leader's pid in the container; None where it never started or was attached to after its end."""
        return self._exec.answer.pid

    @property
    def ended(self) -> bool:
        """Whether the result is there."""
        return self._driver.done()

    async def output(self) -> AsyncGenerator[Output, None]:
        """Every piece of output, in the order in which it came; pauses the program while its reader is slow.

        Of a request without `stream` the head and the tail, at the end. Only one reader; when it leaves early the rest
        is taken and dropped. Raises `SandboxLost`.
        """
        if self._reading:
            raise RuntimeError("the output of a process has one reader")
        self._reading = True
        answer = self._exec.answer
        if not isinstance(answer, StreamAnswer):
            await asyncio.shield(self._driver)
            for piece in answer.replay():
                yield piece
            return
        self._driver.add_done_callback(lambda _: answer.wake.set())
        try:
            while True:
                while answer.queue:
                    piece = answer.queue.take()
                    yield piece
                    answer.took(piece)
                if self._driver.done():
                    self._driver.result()
                    return
                await answer.wake.wait()
                answer.wake.clear()
        finally:
            answer.drain()

    async def write(self, data: bytes) -> None:
        """Feed standard input; returns when all of it is on its way within what the program's side has room for.

        Raises `NotFound` when the program has ended, `ValueError` where standard input is not open.
        """
        feed = self._exec.feed
        if feed is None:
            raise ValueError("the request did not ask for `stdin_open`")
        feed.add(data)
        self._exec.pump()
        await feed.drained()

    async def close_stdin(self) -> None:
        """EOF after what was written."""
        if self._exec.feed is not None:
            self._exec.feed.close()
            self._exec.pump()

    async def signal(self, number: int, *, everyone: bool = False) -> int:
        """Send a signal to the leader, or to every process of the exec; how many got it (0 once it has ended)."""
        payload = encode.signal(self._exec.number, number, everyone=everyone)
        try:
            channel = await self._link.ready()
            return await self._link.once(channel, Request.SIGNAL, payload, Plain(replies.number32))
        except RemoteError as error:
            if error.failure.kind == replies.UNKNOWN_EXEC:
                return 0
            raise SandboxError(f"signal {number} to {self.id}: {error.failure.message}") from error
        except ChannelBroken as error:
            raise SandboxError(
                f"the connection broke while {self.id} was sent signal {number}: it may or may not have got it"
            ) from error

    async def resize(self, rows: int, columns: int) -> None:
        """Give its terminal another size; the foreground programs get SIGWINCH.

        Raises `NotFound` once it has ended, `ValueError` for a bad size and where it has no terminal.
        """
        size = TerminalSize(rows=rows, columns=columns)
        payload = encode.resize(self._exec.number, size.rows, size.columns)
        try:
            await self._link.ask(Request.RESIZE, payload, lambda: Plain(replies.nothing))
        except RemoteError as error:
            kind = error.failure.kind
            if kind in (replies.UNKNOWN_EXEC, replies.ENDED):
                raise NotFound(f"{self.id} has ended: it has no terminal any more") from error
            if kind == replies.INVALID:
                raise ValueError(f"{self.id}: {error.failure.message}; ask for one with `tty=`") from error
            raise SandboxError(f"resizing {self.id}: {error.failure.message}") from error

    async def kill(self, grace: float = 2.0) -> OwnerEnd:
        """TERM, `grace` seconds, KILL for the whole tree; returns with the proof. No error once it has ended."""
        killed, survivors = await self._exec.kill(grace)
        return OwnerEnd(exec_id=self.id, killed=killed, survivors=survivors)

    async def wait(self) -> ExecResult:
        """Its result. Output that nobody reads is taken and dropped but for head and tail. Raises `SandboxLost`."""
        answer = self._exec.answer
        if isinstance(answer, StreamAnswer) and not self._reading:
            answer.drain()
        return await asyncio.shield(self._driver)
