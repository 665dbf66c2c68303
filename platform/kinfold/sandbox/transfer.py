"""The bytes of files, in and out: flow-controlled, whole or as a stream, checked by digest where asked."""

from __future__ import annotations

import asyncio
import hashlib
import io
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing

import anyio.to_thread

from kinfold.errors import PathError, SandboxError, SandboxLost
from kinfold.sandbox import encode, protocol
from kinfold.sandbox.base import MIB, FileStat
from kinfold.sandbox.channel import FOREVER, Call, Channel, ChannelBroken, DeadlinePassed, RemoteError
from kinfold.sandbox.collect import AnswerRefused, FileBytes, StatItems, Written
from kinfold.sandbox.file_stat import file_stat
from kinfold.sandbox.files import file_error, unknown_outcome, wire_path
from kinfold.sandbox.link import PATIENCE, REPEATS, Link
from kinfold.sandbox.protocol import EVERYTHING, MAX_PAYLOAD, WRITE_WINDOW, Request, StatFlag, WriteFlag
from kinfold.sandbox.replies import Record
from kinfold.sandbox.wire import Buffer
from kinfold.sandbox.workspace import normalize

READ_LIMIT = 64 * MIB
"""The most that `read` returns where no limit was asked for."""
_STREAM_CREDIT = 4 * MIB
_BIG = MIB
"""Digests of more bytes than this are taken in a thread."""
_ABSENT = bytes(32)


class Transfer:
    """The part of `Sandbox` that reads and writes files, on its link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    async def read(self, path: str, *, offset: int, limit: int | None, digest: bool) -> bytes:
        """See `Sandbox.read`."""
        where = normalize(path)
        bound = READ_LIMIT + 1 if limit is None else limit
        if min(offset, bound) < 0:
            raise ValueError("offset and limit are not negative")
        payload = encode.read(wire_path(where), offset=offset, limit=bound, digest=digest, credit=bound)
        refuse_large = _refuse_large(offset) if limit is None else None
        held = io.BytesIO()  # grows in place, and gives its bytes away without another copy

        def answer() -> FileBytes:
            held.seek(0)
            held.truncate()
            return FileBytes(bound, refuse_large, held.write)

        try:
            expected = await self._link.ask(Request.READ, payload, answer)
        except AnswerRefused:
            raise _too_large(where) from None
        except RemoteError as error:
            raise file_error(error.failure, where) from error
        data = held.getvalue()
        if len(data) > READ_LIMIT and limit is None:
            raise _too_large(where)
        if digest:
            await _check_digest(where, data, expected)
        return data

    async def read_stream(self, path: str, *, offset: int) -> AsyncGenerator[bytes, None]:
        """See `Sandbox.read_stream`."""
        where = normalize(path)
        reading = _Reading(offset)
        for _ in range(REPEATS):
            channel = await self._link.ready()
            try:
                async with aclosing(reading.run(channel, wire_path(where))) as pieces:
                    async for data in pieces:
                        yield data
                return
            except ChannelBroken:
                continue
            except RemoteError as error:
                raise file_error(error.failure, where) from error
            except AnswerRefused:
                raise PathError("conflict", where, "changed while it was read") from None
            except DeadlinePassed as error:
                raise SandboxLost(f"sandbox {self._link.ref.id}: {error}") from error
        raise self._link.lose(f"READ broke {REPEATS} channels to {self._link.ref.id} one after the other")

    async def write(self, path: str, data: bytes, *, if_match: str | None, flags: WriteFlag, mode: int) -> FileStat:
        """See `Sandbox.write`."""
        where = normalize(path)
        if path.endswith("/"):
            raise PathError("is_directory", path)
        match = _if_match(if_match)
        payload = encode.write(wire_path(where), flags=flags, mode=mode, if_match=match)
        writing = _Writing(data, digest=bool(flags & WriteFlag.DIGEST))
        channel = await self._link.ready()
        call = None
        try:
            call = writing.begin(channel, payload)
            return file_stat(where, await call)
        except RemoteError as error:
            raise file_error(error.failure, where) from error
        except ChannelBroken:
            return await self._written(where, data)
        except DeadlinePassed as error:
            raise SandboxLost(f"sandbox {self._link.ref.id}: {error}") from error
        finally:
            if call is not None:
                call.abandon()

    async def _written(self, where: str, data: bytes) -> FileStat:
        return await written_after_all(self._link, where, await sha256(data))

    async def open_writer(self, path: str, *, mode: int) -> FileWriter:
        """See `Sandbox.open_writer`."""
        where = normalize(path)
        writer = FileWriter(self._link, where)
        payload = encode.write(wire_path(where), flags=WriteFlag.PARENTS, mode=mode, if_match=None)
        while True:
            channel = await self._link.ready()
            try:
                writer.begin(channel, payload)
                return writer
            except ChannelBroken:
                continue


async def written_after_all(link: Link, where: str, digest: str) -> FileStat:
    """What became of a write whose channel broke: done when the file holds these very bytes, else not known."""
    payload = encode.stat([wire_path(where)], StatFlag.DIGEST)
    [entry] = await link.ask(Request.STAT, payload, lambda: StatItems([where]), patience=600.0)
    if isinstance(entry, FileStat) and entry.sha256 == digest:
        return entry
    raise unknown_outcome(where)


class FileWriter:
    """A file being written piece by piece; nothing of it is seen until `finish`. Made by `Sandbox.open_writer`."""

    def __init__(self, link: Link, where: str) -> None:
        self._link = link
        self._where = where
        self._sent = 0
        self._digest = hashlib.sha256()
        self._room = asyncio.Event()
        self._answer = Written(WRITE_WINDOW, digest=False)
        self._call: Call[Record] | None = None

    def begin(self, channel: Channel, payload: bytes) -> None:
        """Send the request."""
        self._answer.on_window = self._room.set
        self._call = channel.call(Request.WRITE, payload, self._answer, patience=PATIENCE)
        self._call.future.add_done_callback(lambda _: self._room.set())
        self._call.set_patience(FOREVER)

    @property
    def _open(self) -> Call[Record]:
        if self._call is None:
            raise RuntimeError("not begun")
        return self._call

    async def write(self, data: bytes) -> None:
        """The next bytes; returns when they are on their way. Raises `PathError`."""
        call = self._open
        self._digest.update(data)
        view = memoryview(data)
        while len(view):
            while self._answer.window <= self._sent and not call.future.done():
                call.set_patience(PATIENCE)
                self._room.clear()
                await self._room.wait()
            call.set_patience(FOREVER)
            if call.future.done():
                await self._end(call)
                raise SandboxError(f"the write of {self._where!r} ended before its end was sent")
            size = min(len(view), self._answer.window - self._sent, MAX_PAYLOAD)
            call.send(Request.WDATA, bytes(view[:size]))
            self._sent += size
            view = view[size:]

    async def finish(self) -> FileStat:
        """Put the file in place. Raises `PathError`."""
        call = self._open
        if not call.future.done():
            call.set_patience(PATIENCE)
            call.send(Request.WDATA_EOF)
        return await self._end(call)

    async def _end(self, call: Call[Record]) -> FileStat:
        try:
            return file_stat(self._where, await call)
        except RemoteError as error:
            raise file_error(error.failure, self._where) from error
        except ChannelBroken:
            return await written_after_all(self._link, self._where, self._digest.hexdigest())
        except DeadlinePassed as error:
            raise SandboxLost(f"sandbox {self._link.ref.id}: {error}") from error

    def abandon(self) -> None:
        """Give up; no effect after `finish`."""
        if self._call is not None:
            self._call.abandon()


class _Reading:
    """One READ as a stream: grants credit as its consumer takes, and goes on where it was on a new channel."""

    def __init__(self, offset: int) -> None:
        self._offset = offset
        self._pieces: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self._record: Record | None = None

    async def run(self, channel: Channel, path: bytes) -> AsyncGenerator[bytes, None]:
        taken = 0
        self._pieces.clear()
        answer = FileBytes(_STREAM_CREDIT, self._same_file, self._push)
        payload = encode.read(path, offset=self._offset, limit=EVERYTHING, digest=False, credit=_STREAM_CREDIT)
        call = channel.call(Request.READ, payload, answer, patience=PATIENCE)
        call.future.add_done_callback(lambda _: self._wake.set())
        try:
            while True:
                while self._pieces:
                    data = self._pieces.popleft()
                    taken += len(data)
                    self._offset += len(data)
                    if not call.future.done() and taken + _STREAM_CREDIT - answer.credit >= _STREAM_CREDIT // 2:
                        answer.credit = taken + _STREAM_CREDIT
                        call.send(Request.CREDIT, encode.credit(0, answer.credit))
                    call.set_patience(FOREVER)  # a slow consumer is not a silent supervisor
                    yield data
                if call.future.done():
                    call.future.result()
                    return
                call.set_patience(PATIENCE)
                await self._wake.wait()
                self._wake.clear()
        finally:
            call.abandon()

    def _push(self, data: memoryview) -> None:
        self._pieces.append(bytes(data))
        self._wake.set()

    def _same_file(self, record: Record) -> None:
        first = self._record or record
        self._record = first
        if (record.inode, record.size, record.mtime_ns) != (first.inode, first.size, first.mtime_ns):
            raise AnswerRefused


class _Writing:
    """One WRITE: sends what the window allows, from the callback that widens it."""

    def __init__(self, data: bytes, *, digest: bool) -> None:
        self._digest = digest
        self._data = memoryview(data).cast("B")
        self._sent = 0
        self._ended = False

    def begin(self, channel: Channel, payload: bytes) -> Call[Record]:
        answer = Written(WRITE_WINDOW, digest=self._digest)
        call_id = channel.fresh_id()
        follow = tuple(self._frames(call_id, answer.window))
        call = channel.call(Request.WRITE, payload, answer, patience=PATIENCE, call_id=call_id, follow=follow)
        answer.on_window = lambda: channel.send_frames(*self._frames(call_id, answer.window))
        return call

    def _frames(self, call_id: int, window: int) -> Iterator[Buffer]:
        end = min(window, len(self._data))
        while self._sent < end:
            piece = self._data[self._sent : min(self._sent + MAX_PAYLOAD, end)]
            self._sent += len(piece)
            yield protocol.header(Request.WDATA, call_id, len(piece))
            yield piece
        if self._sent == len(self._data) and not self._ended:
            self._ended = True
            yield protocol.frame(Request.WDATA_EOF, call_id)


async def sha256(data: bytes) -> str:
    """The digest in hex; of much data in a thread."""
    if len(data) <= _BIG:
        return hashlib.sha256(data).hexdigest()
    return await anyio.to_thread.run_sync(lambda: hashlib.sha256(data).hexdigest())


async def _check_digest(where: str, data: bytes, expected: str | None) -> None:
    if await sha256(data) != expected:
        raise SandboxError(f"the bytes of {where!r} do not have the digest that the supervisor took of them")


def _if_match(expected: str | None) -> bytes | None:
    if expected is None:
        return None
    if expected == "absent":
        return _ABSENT
    try:
        raw = bytes.fromhex(expected)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise ValueError("if_match is a SHA-256 in hex, or 'absent'")
    return raw


def _refuse_large(offset: int) -> Callable[[Record], None]:
    def refuse(record: Record) -> None:
        if record.size - offset > READ_LIMIT:
            raise AnswerRefused

    return refuse


def _too_large(where: str) -> PathError:
    return PathError(
        "too_large",
        where,
        f"holds more than the {READ_LIMIT // MIB} MiB that one read returns",
        hint="read a part with offset and limit, or use read_stream",
    )
