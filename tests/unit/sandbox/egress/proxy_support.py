"""A proxy without a sandbox: a program's end in the test's hands, hosts on loopback, and a resolver that counts."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.abc

from kinfold.sandbox.allowlist import Allowlist, allowlist
from kinfold.sandbox.base import EgressAttempt
from kinfold.sandbox.egress.dial import Dialler
from kinfold.sandbox.egress.proxy import Proxy

Talk = Callable[[anyio.abc.ByteStream], Awaitable[None]]


class Pipe:
    """One end of a connection in memory, as a `Tunnel` behaves."""

    def __init__(self, out: Any, into: Any) -> None:
        self._out = out
        self._into = into

    async def receive(self, max_bytes: int = 65536) -> bytes:
        """What the other end sent."""
        data: bytes = await self._into.receive()
        return data

    async def send(self, data: bytes) -> None:
        """To the other end."""
        await self._out.send(data)

    async def send_eof(self) -> None:
        """No more."""
        await self._out.aclose()

    async def aclose(self) -> None:
        """Both ways."""
        await self._out.aclose()
        await self._into.aclose()


def pipe() -> tuple[Pipe, Pipe]:
    """A program's end, and the proxy's."""
    to_proxy, from_program = anyio.create_memory_object_stream[bytes](100)
    to_program, from_proxy = anyio.create_memory_object_stream[bytes](100)
    return Pipe(to_proxy, from_proxy), Pipe(to_program, from_program)


@dataclass
class Ask:
    """A proxy with its allowlist; `asked` are the names that its resolver was asked for."""

    network: Allowlist
    names: Mapping[str, list[str]] = field(default_factory=dict)
    context: ssl.SSLContext | None = None
    asked: list[str] = field(default_factory=list)
    attempts: list[EgressAttempt] = field(default_factory=list)

    def __post_init__(self) -> None:
        dialler = Dialler(allowlist=self.network, resolve=self._resolve, context=self.context)
        self._proxy = Proxy(dialler, self.attempts.append)

    async def _resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        return list(self.names.get(host, ()))

    async def __call__(self, *data: bytes) -> bytes:
        """All that the proxy answers to these bytes, sent one after the other and then ended."""
        program, ours = pipe()
        answer = b""

        async def serve() -> None:
            try:
                await self._proxy.serve(ours)
            except (anyio.BrokenResourceError, anyio.ClosedResourceError):
                pass
            await ours.aclose()

        with anyio.fail_after(20):
            async with anyio.create_task_group() as group:
                group.start_soon(serve)
                for piece in data:
                    await program.send(piece)
                await program.send_eof()
                try:
                    while True:
                        answer += await program.receive()
                except (anyio.EndOfStream, anyio.ClosedResourceError):
                    await program.aclose()
        return answer


@asynccontextmanager
async def host(talk: Talk, context: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    """A server on loopback; its port."""
    from anyio.streams.tls import TLSListener

    listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
    port = int(listener.extra(anyio.abc.SocketAttribute.local_port))
    serving: Any = listener if context is None else TLSListener(listener, context, standard_compatible=False)

    async def one(stream: anyio.abc.ByteStream) -> None:
        async with stream:
            await talk(stream)

    async with listener, anyio.create_task_group() as group:
        group.start_soon(serving.serve, one)
        try:
            yield port
        finally:
            group.cancel_scope.cancel()


def open_to(port: int, *hosts: str, **more: Any) -> Allowlist:
    """An allowlist of hosts (`name` gets this port) whose loopback address may be reached."""
    names = [name if ":" in name else f"{name}:{port}" for name in hosts]
    return allowlist(names, private=(f"127.0.0.1:{port}",), **more)
