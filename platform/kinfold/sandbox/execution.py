"""One exec from the request to its end, over as many channels as that takes.

The program runs in the container and does not care about channels. When one breaks, the exec is attached to by its id
on the next one; it is sent again only where the supervisor never knew it, and then under the same id.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Mapping

import anyio

from kinfold.errors import KinfoldError, NotFound, SandboxError, SandboxLost
from kinfold.sandbox import encode, replies
from kinfold.sandbox.base import DiskUse, ExecRequest, ExecResult
from kinfold.sandbox.channel import FOREVER, Call, Channel, ChannelBroken, DeadlinePassed, RemoteError
from kinfold.sandbox.collect import Plain
from kinfold.sandbox.files import file_error, wire_path
from kinfold.sandbox.link import Link
from kinfold.sandbox.output import STREAM_WINDOW, ExecAnswer, StreamAnswer
from kinfold.sandbox.protocol import MAX_PAYLOAD, ExecMode, Request
from kinfold.sandbox.replies import End, Failure
from kinfold.sandbox.stdin import StdinFeed
from kinfold.sandbox.workspace import normalize

START_TIMEOUT = 30.0
"""Seconds for a program to start; the supervisor itself answers within 2 s where pids are short."""
KILL_MARGIN = 15.0
"""Seconds beyond the grace in which a kill is proved, or the sandbox is lost."""
_ATTACHES = 64
"""More channels than this, lost by one exec, are no accident."""
_PAUSE_POLL = 2.0
_MAX_MS = 2**63


class Unstartable(Exception):
    """Raised when a request cannot even be sent (a NUL byte, too long). Private: it becomes a result with code 126."""


def exec_name(number: int) -> str:
    """An exec's id as callers see it."""
    return f"exec_{number:016x}"


def exec_number(name: str) -> int:
    """The number in an exec's id. Raises `NotFound` for what is none."""
    prefix, _, digits = name.partition("_")
    try:
        number = int(digits, 16)
    except ValueError:
        number = 0
    if prefix != "exec" or len(digits) != 16 or not number:
        raise NotFound(f"{name!r} is not the id of an exec", hint="ids look like exec_0123456789abcdef")
    return number


def milliseconds(seconds: float | None) -> int:
    """Whole milliseconds, at least 1; 0 for None or infinity. Raises `ValueError` for what is no duration."""
    if seconds is None or seconds == math.inf:
        return 0
    if not seconds >= 0:
        raise ValueError(f"{seconds} is no duration")
    return min(max(1, math.ceil(seconds * 1000)), _MAX_MS)


def encode_request(request: ExecRequest, env: Mapping[str, str]) -> bytes:
    """EXEC's payload. Raises `PathError` for the cwd, `Unstartable`, `ValueError` for a caller's mistake."""
    argv = ["sh", "-c", request.command] if isinstance(request.command, str) else list(request.command)
    if not argv:
        raise ValueError("an empty command")
    if request.max_output_bytes < 0 or request.output_limit < 1:
        raise ValueError("max_output_bytes and output_limit are not negative")
    mode = (ExecMode.STREAM if request.stream else 0) | (ExecMode.STDIN if _has_stdin(request) else 0)
    mode |= ExecMode.TERMINAL if request.tty else 0
    limit = STREAM_WINDOW if request.stream else 0
    merged = {**env, **request.env}
    for key in merged:
        if not key or "=" in key:
            raise ValueError(f"{key!r} is no name for an environment variable")
    payload = encode.exec_(
        owner=request.owner.encode(),
        mode=mode,
        argv=[_word(word) for word in argv],
        env=[_word(f"{key}={value}") for key, value in merged.items()],
        cwd=wire_path(normalize(request.cwd)),
        size=(request.tty.rows, request.tty.columns) if request.tty else (0, 0),
        timeout_ms=milliseconds(request.timeout),
        idle_timeout_ms=milliseconds(request.idle_timeout),
        grace_ms=milliseconds(request.grace) if request.grace else 0,
        keep=(request.max_output_bytes, request.max_output_bytes),
        output_limit=request.output_limit,
        limits=(limit, limit),
    )
    if len(payload) > MAX_PAYLOAD:
        raise Unstartable(
            f"the command and its environment are {len(payload)} bytes long, at most {MAX_PAYLOAD} can be passed: "
            "put the data into a file, or feed it on standard input"
        )
    return payload


def _has_stdin(request: ExecRequest) -> bool:
    return request.stdin is not None or request.stdin_open


def _word(word: str) -> bytes:
    try:
        raw = word.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise Unstartable("an argument holds a code point that cannot be passed to a program") from None
    if b"\0" in raw:
        raise Unstartable("an argument holds a NUL byte, which no program can be passed")
    return raw


class Exec:
    """A program in the container; `finish` sees it to its end."""

    def __init__(
        self,
        link: Link,
        number: int,
        request: ExecRequest,
        payload: bytes | None,
        *,
        offsets: tuple[int, int] = (0, 0),
    ) -> None:
        self.number = number
        self.request = request
        self.feed = StdinFeed(request.stdin or b"", stays_open=request.stdin_open) if _has_stdin(request) else None
        self.answer = ExecAnswer(request.max_output_bytes, self.feed, self.pump)
        if request.stream:
            self.answer = StreamAnswer(request.max_output_bytes, self.feed, self.pump, offsets)
            self.answer.on_credit = self._credit
        self._link = link
        self._payload = payload
        """EXEC's; None where somebody else started it and we only attach."""
        self._ours = payload is not None
        """Whether the record goes with the end: who started it, or killed it; who only looks on takes nothing away."""
        self._call: Call[End] | None = None
        self._killed = False
        self._known_paused = 0.0
        self.started: asyncio.Future[None] | None = None
        """For who waits for the pid: done when it is known, or when the exec has ended."""
        self.answer.on_started = self._on_started

    @property
    def name(self) -> str:
        """The id that callers see."""
        return exec_name(self.number)

    def own(self) -> None:
        """Whoever started it is no more: its record goes with its end, as if we had."""
        self._ours = True

    # --- sending ----------------------------------------------------------------------------------------------------

    def begin(self, channel: Channel) -> None:
        """Send EXEC, and what standard input fits."""
        if self._payload is None:
            raise RuntimeError("only attached to")
        follow = tuple(self.feed.frames(self.number)) if self.feed is not None else ()
        call = channel.call(
            Request.EXEC, self._payload, self.answer, patience=START_TIMEOUT, call_id=self.number, follow=follow
        )
        call.paused_with_execs = True
        call.patience = FOREVER  # the deadline that is set stands: frames that say nothing do not put it off
        self._call = call

    def attach(self, channel: Channel) -> None:
        """Send ATTACH, and standard input that may have been lost on the way."""
        self.answer.restart()
        payload = encode.attach(
            self.number, stream=self.request.stream, offsets=self.answer.offsets, limits=self.answer.limits
        )
        follow: tuple[bytes, ...] = ()
        if self.feed is not None:
            self.feed.rewind()
            follow = tuple(self.feed.frames(self.number))
        call = channel.call(Request.ATTACH, payload, self.answer, patience=START_TIMEOUT, follow=follow)
        call.paused_with_execs = True
        self._call = call
        self._fix_deadline(call)

    def pump(self) -> None:
        """Send the standard input that there is room for."""
        if self.feed is not None and self._call is not None:
            self._call.channel.send_frames(*self.feed.frames(self.number))

    def _credit(self, stream: int, limit: int) -> None:
        if self._call is not None:
            self._call.send(Request.CREDIT, encode.credit(stream, limit))

    def _host_deadline(self) -> float:
        """When the host stops believing that the supervisor ends the exec in time."""
        if self._killed:
            return KILL_MARGIN
        timeout = self.request.timeout
        return FOREVER if timeout is None else timeout + self.request.grace + KILL_MARGIN

    def _fix_deadline(self, call: Call[End]) -> None:
        """From its start on, an exec has one moment to end, which output does not put off."""
        call.set_patience(FOREVER)
        if isinstance(self.answer, StreamAnswer):
            call.excuse = self.answer.is_behind
        call.deadline = call.channel.loop.time() + self._host_deadline()

    def _on_started(self) -> None:
        if self._call is not None:
            self._fix_deadline(self._call)
        self._settle()

    def _settle(self) -> None:
        if self.started is not None and not self.started.done():
            self.started.set_result(None)

    # --- ending -----------------------------------------------------------------------------------------------------

    async def finish(self) -> ExecResult:
        """Its result. Raises `PathError` for a bad cwd, `SandboxLost`; a cancelled caller has killed it first."""
        try:
            end = await self._end()
        finally:
            if self.feed is not None:
                self.feed.over()
            self._settle()
        return self._result(end)

    async def _end(self) -> End:
        lost = 0
        while lost < _ATTACHES:
            call = self._call
            if call is None:
                raise RuntimeError("not begun")
            try:
                end = await call
            except ChannelBroken:
                lost += 1
                self.attach_or_wait(await self._link.ready())
            except RemoteError as error:
                await self._refused(call, error.failure)
            except DeadlinePassed:
                await self._overdue(call)
            else:
                if not end.background_pids and self._ours:
                    call.channel.forget(self.number)
                return end
        raise self._link.lose(f"{self.name} lost {_ATTACHES} channels one after the other")

    def attach_or_wait(self, channel: Channel) -> None:
        """Attach on `channel`; where that breaks at once, the next turn sees it."""
        try:
            self.attach(channel)
        except ChannelBroken:
            return

    async def _refused(self, call: Call[End], failure: Failure) -> None:
        """EXEC or ATTACH was answered with an error: raise, or send the exec that never arrived."""
        if call.request == Request.EXEC and failure.kind == replies.CONFLICT:
            # It had arrived after all, on the channel that broke, while we asked for it on the next one.
            self.attach_or_wait(await self._link.ready())
            return
        if failure.kind != replies.UNKNOWN_EXEC:
            raise self._error(failure)
        if call.request != Request.ATTACH or self._payload is None or self.answer.pid is not None:
            raise SandboxLost(f"the supervisor knows nothing of {self.name} any more")
        channel = await self._link.ready()
        if self.feed is not None:
            self.feed.rewind()
        try:
            self.begin(channel)
        except ChannelBroken:
            return

    def _error(self, failure: Failure) -> KinfoldError:
        if failure.kind <= len(replies.PATH_REASONS):
            return file_error(failure, self.request.cwd)
        if failure.kind == replies.UNSUPPORTED:
            return SandboxError(
                f"{self.name} cannot have a terminal: {failure.message}",
                hint="ask for no `tty`: output and input then go through pipes",
                code="unsupported",
            )
        return SandboxError(
            f"{self.name} could not be started: {failure.message or failure.kind}",
            code="busy" if failure.kind == replies.BUSY else None,
        )

    async def _overdue(self, call: Call[End]) -> None:
        """The deadline passed: see that it is dead and ask for its end anew, or give the sandbox up."""
        call.abandon()
        paused = await self._paused_since_asked()
        if paused and not self._killed:  # another process's pause: its time is nobody's
            self.attach_or_wait(await self._link.ready())
            if self._call is not None:
                self._call.deadline = self._call.channel.loop.time() + max(paused, _PAUSE_POLL)
            return
        if not self._killed:
            self._killed = True
            try:
                await self.kill(0.0)
            except SandboxLost as lost:
                raise self._link.lose(f"{self.name} passed its deadline and could not be killed: {lost}") from lost
        else:
            raise self._link.lose(f"{self.name} passed its deadline, was killed, and its end is not told")
        self.attach_or_wait(await self._link.ready())

    async def _paused_since_asked(self) -> float:
        """Seconds of pauses that the deadline did not know of yet."""
        try:
            numbers = await self._link.ask(Request.USAGE, b"", lambda: Plain(replies.usage), patience=KILL_MARGIN)
        except SandboxLost:
            return 0.0  # the kill that follows says so
        known, self._known_paused = self._known_paused, (numbers[-1] or 0) / 1_000_000
        return self._known_paused - known

    async def kill(self, grace: float) -> tuple[int, int]:
        """End the whole tree, with proof: how many were killed, how many survived."""
        self._ours = True
        payload = encode.kill(self.number, milliseconds(grace) if grace else 0)
        try:
            return await self._link.ask(
                Request.KILL, payload, lambda: Plain(replies.killed), patience=grace + KILL_MARGIN
            )
        except RemoteError as error:
            if error.failure.kind == replies.UNKNOWN_EXEC:
                return 0, 0
            raise self._link.lose(f"{self.name} could not be killed: {error.failure.message}") from error

    async def kill_for_cancel(self) -> None:
        """What a cancelled caller leaves behind is dead before the cancellation goes on; bounded."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(self.request.grace + KILL_MARGIN) as scope:
            try:
                _, survivors = await self.kill(self.request.grace)
                if survivors:
                    self._link.lose(f"{self.name} was cancelled and {survivors} of its processes survived the kill")
            except SandboxLost:
                return  # kept by the link, and the cancellation goes first
            finally:
                if self._call is not None:
                    self._call.abandon()
                    self._call.channel.forget(self.number)
        if scope.cancelled_caught:
            self._link.lose(f"{self.name} was cancelled and its end could not be proved in time")

    def _result(self, end: End) -> ExecResult:
        stdout, out_head = self.answer.kept(end, 0)
        stderr, err_head = self.answer.kept(end, 1)
        err_total = end.totals[1]
        if end.start_errno and not stderr:
            stderr = _why_not_started(self.request, end.start_errno)
            err_head = err_total = len(stderr)
        return ExecResult(
            id=self.name,
            ended_by=end.ended_by,
            exit_code=end.exit_code,
            signal=end.signal,
            stdout=stdout,
            stderr=stderr,
            stdout_head_bytes=out_head,
            stderr_head_bytes=err_head,
            stdout_total=end.totals[0],
            stderr_total=err_total,
            duration=end.duration_us / 1_000_000,
            killed=end.killed,
            survivors=end.survivors,
            background_pids=end.background_pids,
            oom_kills=end.oom_kills,
            disk=DiskUse.of(end.disk),
        )


def _why_not_started(request: ExecRequest, errno: int) -> bytes:
    """As a shell says it, for the program itself never got to say anything."""
    program = "sh" if isinstance(request.command, str) else request.command[0]
    return f"{program}: {os.strerror(errno)}\n".encode("utf-8", "surrogateescape")


def unstartable(number: int, reason: str) -> ExecResult:
    """The result of a request that could not even be sent: 126, as of any program that cannot start."""
    words = f"kinfold: {reason}\n".encode()
    return ExecResult(
        id=exec_name(number),
        ended_by="exited",
        exit_code=126,
        signal=None,
        stdout=b"",
        stderr=words,
        stdout_head_bytes=0,
        stderr_head_bytes=len(words),
        stdout_total=0,
        stderr_total=len(words),
        duration=0.0,
    )
