"""A provider whose streams can be cut, to see what a sandbox makes of it."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from kinfold.errors import SandboxLost
from kinfold.sandbox.base import ByteStream, ProbeReport, Provider, SandboxRef, SandboxSpec
from kinfold.sandbox.sandbox import Sandbox
from kinfold.sandbox.streams import SocketStream


class CuttableProvider:
    """Passes everything on; remembers the streams that it opened."""

    def __init__(self, inner: Provider) -> None:
        self.name = inner.name
        self.opened = 0
        self.refusing = False
        """Refuse new streams, as an engine that is down."""
        self._inner = inner
        self._last: ByteStream | socket.socket | None = None

    async def sandbox(self, ref: SandboxRef) -> Sandbox:
        """A sandbox of its own on a running container."""
        sandbox = Sandbox(provider=self, ref=ref, spec=SandboxSpec(detached=True))
        await sandbox.open()
        return sandbox

    async def cut(self) -> None:
        """End the newest stream without a word, in both directions."""
        last, self._last = self._last, None
        if isinstance(last, socket.socket):
            last.shutdown(socket.SHUT_RDWR)
            last.close()
        elif last is not None:
            await last.aclose()

    def forget(self) -> None:
        """Let go of the newest stream without cutting it."""
        if isinstance(self._last, socket.socket):
            self._last.close()
        self._last = None

    async def open_stream(self, ref: SandboxRef) -> ByteStream:
        """A stream of the inner provider's."""
        if self.refusing:
            raise OSError("refused, as asked")
        self.forget()
        stream = await self._inner.open_stream(ref)
        self.opened += 1
        if isinstance(stream, SocketStream):
            # The channel takes the socket itself; a second descriptor of it can still be shut down.
            connection = stream.take()
            self._last = connection.dup()
            return SocketStream(connection)
        self._last = stream
        return stream

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """Not for this: the inner provider makes sandboxes."""
        raise SandboxLost("a cuttable provider only opens streams")

    async def connect(self, ref: SandboxRef) -> Sandbox:
        """As the inner provider."""
        return await self._inner.connect(ref)

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxRef]:
        """As the inner provider."""
        return await self._inner.list(labels)

    async def destroy(self, ref: SandboxRef) -> None:
        """As the inner provider."""
        await self._inner.destroy(ref)

    async def probe(self) -> ProbeReport:
        """As the inner provider."""
        return await self._inner.probe()
