"""A small HTTP/1.1 listener on 127.0.0.1: strict about what it reads, free in what it breaks off."""

from __future__ import annotations

import asyncio
import http
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Self

MOST_HEAD_BYTES = 64 * 1024
MOST_BODY_BYTES = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """A request that was read whole; header names are lower-case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


class Exchange:
    """The answering half of one request: a whole response, or a stream that may be broken off."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._chunked = False

    async def respond(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """Send a whole response."""
        self._head(status, {**headers, "content-length": str(len(body))})
        self._writer.write(body)
        await self._writer.drain()

    async def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Begin a response whose body comes by `send`."""
        self._chunked = True
        self._head(status, {**headers, "transfer-encoding": "chunked"})
        await self._writer.drain()

    async def send(self, data: bytes) -> None:
        """Send a piece of the body at once."""
        self._writer.write(b"%x\r\n%b\r\n" % (len(data), data))
        await self._writer.drain()

    async def end(self) -> None:
        """End the body in good order."""
        self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    def abort(self) -> None:
        """Break the connection at once."""
        self._writer.transport.abort()

    async def client_left(self) -> None:
        """Wait until the client closes the connection."""
        while await self._reader.read(4096):
            pass

    def _head(self, status: int, headers: Mapping[str, str]) -> None:
        try:
            phrase = http.HTTPStatus(status).phrase
        except ValueError:
            phrase = "Unassigned"
        lines = [f"HTTP/1.1 {status} {phrase}", "connection: close", *(f"{k}: {v}" for k, v in headers.items())]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))


class HttpListener:
    """Serves one request a connection with `answer`, on a free port, until it is closed.

    An `answer` that returns before its body is ended closes the connection behind it: a cut stream.
    """

    def __init__(self, answer: Callable[[HttpRequest, Exchange], Awaitable[None]]) -> None:
        self._answer = answer
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.failures: list[BaseException] = []
        """What `answer` raised; whoever closes the listener should look."""

    @property
    def url(self) -> str:
        """Where it listens."""
        if self._server is None:
            raise RuntimeError("the listener is not open: use `async with`")
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0, limit=MOST_HEAD_BYTES)
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        if self._server is None:
            return
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        exchange = Exchange(reader, writer)
        try:
            request = await read_request(reader)
            if isinstance(request, str):
                await exchange.respond(400, {"content-type": "text/plain"}, request.encode())
            elif request is not None:
                await self._answer(request, exchange)
        except ConnectionError:
            pass  # the client left; what it did not read is nobody's loss
        except Exception as error:  # noqa: BLE001  (kept for whoever closes the listener; the client sees a cut)
            self.failures.append(error)
        finally:
            await _close(writer)


async def read_request(reader: asyncio.StreamReader) -> HttpRequest | str | None:
    """One request; the reason as a text where it is malformed, None where the client left before it was whole."""
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError:
        return f"the head of the request is over {MOST_HEAD_BYTES} bytes"
    first, *lines = head[:-4].split("\r\n")
    parts = first.split(" ")
    if len(parts) != 3 or parts[2] != "HTTP/1.1":
        return f"not a request line of HTTP/1.1: {first!r}"
    headers: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon or not name or name != name.strip():
            return f"not a header: {line!r}"
        headers[name.lower()] = value.strip()
    length = headers.get("content-length", "0")
    if "transfer-encoding" in headers or not length.isdigit() or int(length) > MOST_BODY_BYTES:
        return f"a body needs a content-length up to {MOST_BODY_BYTES} bytes"
    try:
        body = await reader.readexactly(int(length))
    except asyncio.IncompleteReadError:
        return None
    return HttpRequest(method=parts[0], path=parts[1], headers=headers, body=body)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except ConnectionError:
        pass  # cut on purpose, or the client was faster
