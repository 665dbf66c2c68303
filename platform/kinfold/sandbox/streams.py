"""Connected sockets as the channel's bytes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import anyio

_BUFFER_BYTES = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class FramedSocket:
    """A connected, non-blocking socket on which the channel's bytes come inside frames of a transport's own."""

    socket: socket.socket
    early: bytes
    """What was read of it before, frames and all."""
    unframe: Callable[[memoryview], list[memoryview]]
    """The channel's bytes among the next ones, as views. Raises `ValueError` for what is no frame, and `OSError`."""
    ended: Callable[[], Exception]
    """What the end of the bytes is to be called: `anyio.EndOfStream`, or a `BrokenResourceError` that says more."""
    release: Callable[[], None]
    """Called once, after the socket was shut down and closed."""


@runtime_checkable
class FramedStream(Protocol):
    """A `ByteStream` that can give its socket away, as `SocketStream` can."""

    def take_framed(self) -> FramedSocket | None:
        """The socket, which the caller owns from here on; None where reading it takes more than `recv`.

        `aclose` still ends the connection: the owner of the socket sees the end of the stream.
        """
        ...


class SocketStream:
    """A `ByteStream` over a connected stream socket, which it owns.

    The channel recognises it and drives the socket itself (`take`): a request then costs one system call each way.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            connection.setsockopt(socket.SOL_SOCKET, option, _BUFFER_BYTES)
        self._socket: socket.socket | None = connection

    def take(self) -> socket.socket:
        """The socket, which the caller owns from here on."""
        connection = self._open()
        self._socket = None
        return connection

    async def receive(self, max_bytes: int = 262144) -> bytes:
        """At least one byte; raises `anyio.EndOfStream` at the end, `anyio.BrokenResourceError` when cut."""
        try:
            data = await asyncio.get_running_loop().sock_recv(self._open(), max_bytes)
        except OSError as error:
            raise anyio.BrokenResourceError from error
        if not data:
            raise anyio.EndOfStream
        return data

    async def send(self, data: bytes) -> None:
        """All of `data`; raises `anyio.BrokenResourceError` when cut."""
        try:
            await asyncio.get_running_loop().sock_sendall(self._open(), data)
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def aclose(self) -> None:
        """Shut both directions down and release the descriptor."""
        if self._socket is not None:
            shut(self._socket)
            self._socket = None

    def _open(self) -> socket.socket:
        if self._socket is None:
            raise anyio.ClosedResourceError
        return self._socket


def shut(connection: socket.socket) -> None:
    """Shut both directions down, then close: another holder of the descriptor sees the end too."""
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()
