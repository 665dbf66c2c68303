"""The channel's bytes through the engine: an exec of the relay whose hijacked connection becomes a `ByteStream`.

No thread per read: the connection's own socket is used, non-blocking. What comes from the engine is framed
(8 bytes: stream, three zeros, length) and is taken apart here; what goes to it is plain.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel

from kinfold.sandbox.docker.client import Engine
from kinfold.sandbox.docker.create import SOCKET_DIR, SUPERVISOR
from kinfold.sandbox.streams import FramedSocket

if TYPE_CHECKING:
    from docker.api.client import APIClient

HEADER = 8
STDOUT, STDERR = 1, 2
_RECEIVE = 256 * 1024
_KEPT_STDERR = 2048
_NOT_STARTED = b"OCI runtime exec failed"
"""With these words, in place of the relay's first bytes, the engine says why it started none."""
_START_DEADLINE = 30.0


class Demultiplexer:
    """Takes the engine's frames apart: bytes in, standard output out; the end of standard error is kept."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._left = 0
        self._stream = STDOUT
        self._begun = False
        self.stderr = b""

    def feed(self, data: bytes) -> bytes:
        """The standard output in `data`. Raises `ValueError` for what is no frame of the engine's."""
        return b"".join(self.pieces(memoryview(data)))

    def pieces(self, view: memoryview) -> list[memoryview]:
        """As `feed`, as views into what was given. Raises `ConnectionError` where the engine started no relay."""
        out: list[memoryview] = []
        while view:
            if self._left == 0:
                view = self._read_header(view)
                continue
            piece, view = view[: self._left], view[self._left :]
            self._left -= len(piece)
            if self._stream == STDOUT:
                if not self._begun and bytes(piece[: len(_NOT_STARTED)]) == _NOT_STARTED:
                    raise ConnectionError(f"the engine started no relay: {_words(bytes(piece[:_KEPT_STDERR]))}")
                self._begun = True
                out.append(piece)
            else:
                self.stderr = (self.stderr + bytes(piece))[-_KEPT_STDERR:]
        return out

    def _read_header(self, view: memoryview) -> memoryview:
        taken = view[: HEADER - len(self._header)]
        self._header += taken
        if len(self._header) == HEADER:
            kind, zeros = self._header[0], self._header[1:4]
            if kind not in (0, STDOUT, STDERR) or any(zeros):
                raise ValueError(f"not a frame of the engine's stream: {bytes(self._header)!r}")
            self._stream = STDERR if kind == STDERR else STDOUT
            self._left = int.from_bytes(self._header[4:], "big")
            self._header.clear()
        return view[len(taken) :]


def _words(raw: bytes) -> str:
    """What the engine, or the relay, has to say, on one line."""
    return " ".join("".join(char if char.isprintable() else " " for char in raw.decode("utf-8", "replace")).split())


class EngineStream:
    """One relay's connection. `ByteStream` of the seam."""

    def __init__(self, sock: socket.socket, held: Any, early: bytes = b"") -> None:
        self._sock = sock
        self._held = held
        """The SDK's response: it keeps descriptors of its own, and is closed with us."""
        self._frames = Demultiplexer()
        self._ready = b""
        self._early = early
        self._closed = False
        self._taken = False
        self._sending = anyio.Lock()

    def take_framed(self) -> FramedSocket | None:
        """See `FramedStream`: the channel then drives the connection itself, without a task for each direction."""
        if isinstance(self._sock, ssl.SSLSocket):
            return None  # what TLS has decrypted already, no readiness tells of
        self._taken = True
        early, self._early = self._early, b""
        return FramedSocket(
            socket=self._sock, early=early, unframe=self._frames.pieces, ended=self._ended, release=self._held.close
        )

    async def receive(self, max_bytes: int = 262144) -> bytes:
        """See `ByteStream.receive`."""
        while not self._ready:
            data = await self._next()
            if not data:
                raise self._ended()
            try:
                self._ready = self._frames.feed(data)
            except (ValueError, ConnectionError) as error:
                raise anyio.BrokenResourceError(str(error)) from error
        if len(self._ready) <= max_bytes:
            data, self._ready = self._ready, b""
        else:
            data, self._ready = self._ready[:max_bytes], self._ready[max_bytes:]
        return data

    async def send(self, data: bytes) -> None:
        """See `ByteStream.send`."""
        async with self._sending:
            view = memoryview(data)
            while view:
                if self._closed:
                    raise anyio.ClosedResourceError
                try:
                    view = view[self._sock.send(view) :]
                except (BlockingIOError, ssl.SSLWantWriteError):
                    await anyio.wait_writable(self._sock)
                except ssl.SSLWantReadError:
                    await anyio.wait_readable(self._sock)
                except OSError as error:
                    raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Shut down first: closing alone leaves the connection open in the SDK's hands, and the relay alive."""
        if self._closed:
            return
        self._closed = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if self._taken:
            return  # who took the socket sees its end, and releases it
        anyio.notify_closing(self._sock)
        self._held.close()
        self._sock.close()
        await anyio.lowlevel.checkpoint()

    async def _next(self) -> bytes:
        if self._early:
            data, self._early = self._early, b""
            return data
        while True:
            if self._closed:
                raise anyio.ClosedResourceError
            try:
                return self._sock.recv(_RECEIVE)
            except (BlockingIOError, ssl.SSLWantReadError):
                await anyio.wait_readable(self._sock)
            except ssl.SSLWantWriteError:
                await anyio.wait_writable(self._sock)
            except OSError as error:
                raise anyio.BrokenResourceError from error

    def _ended(self) -> Exception:
        """The relay has no words for a normal end: what stands in its standard error says why it could not work."""
        words = _words(self._frames.stderr)
        return anyio.BrokenResourceError(f"the relay ended: {words}") if words else anyio.EndOfStream()


async def open_engine_stream(engine: Engine, container: str) -> EngineStream:
    """Start a relay in the container and give back its stream. Raises `EngineRefused` (404 gone, 409 not running)."""
    opening = _Opening(container)
    try:
        await engine.call("open a channel", opening.run, deadline=_START_DEADLINE)
    except BaseException:
        opening.give_up()
        raise
    return EngineStream(*opening.taken())


class _Opening:
    """A relay on its way. Who waits for it may leave: what a slow engine still brings then is closed at once."""

    def __init__(self, container: str) -> None:
        self._container = container
        self._lock = threading.Lock()
        self._given_up = False
        self._made: tuple[socket.socket, _Held, bytes] | None = None

    def run(self, api: APIClient) -> None:
        """Blocking, in a thread."""
        made = _start_relay(api, self._container)
        with self._lock:
            self._made = made
            if self._given_up:
                self._close()

    def taken(self) -> tuple[socket.socket, _Held, bytes]:
        """What `run` made."""
        if self._made is None:
            raise RuntimeError("not run")
        return self._made

    def give_up(self) -> None:
        """Nobody wants it any more."""
        with self._lock:
            self._given_up = True
            self._close()

    def _close(self) -> None:
        if self._made is not None:
            sock, held, _ = self._made
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            held.close()
            sock.close()


def _start_relay(api: APIClient, container: str) -> tuple[socket.socket, _Held, bytes]:
    """Blocking: exec the relay, take over its connection."""
    command = [SUPERVISOR, "connect", "--socket", SOCKET_DIR]
    made = api.exec_create(container, command, stdin=True, stdout=True, stderr=True, tty=False, user="0:0", workdir="/")
    raw: Any = api.exec_start(made["Id"], socket=True)
    response: Any = getattr(raw, "_response", None)
    sock: socket.socket = getattr(raw, "_sock", raw)
    sock.setblocking(False)
    return sock, _Held(raw, response), _already_read(response)


def _already_read(response: Any) -> bytes:
    """Bytes that the HTTP client read together with the response's head; the socket will not show them again."""
    buffered = response.raw._fp.fp if response is not None else None
    if buffered is None or not hasattr(buffered, "peek"):
        return b""
    try:
        waiting = len(buffered.peek())
    except ssl.SSLWantReadError:  # plain sockets say "nothing yet" by an empty peek
        return b""
    return bytes(buffered.read1(waiting)) if waiting else b""


class _Held:
    """What the SDK keeps of a hijacked connection, closed in the order that releases every descriptor."""

    def __init__(self, raw: Any, response: Any) -> None:
        self._raw = raw
        self._response = response

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        with contextlib.suppress(OSError):
            self._raw.close()
