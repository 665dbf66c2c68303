"""HTTP/1.1 over a byte stream, in either role: h11 does the reading, this does the waiting."""

from __future__ import annotations

from typing import Protocol, cast

import anyio
import h11

from kinfold.sandbox.tunnels import PIECE

MAX_HEAD = 65_536


class Bytes(Protocol):
    """A tunnel, or a connected socket."""

    async def receive(self, max_bytes: int = PIECE) -> bytes:
        """At least one byte; raises `anyio.EndOfStream` at the end."""
        ...

    async def send(self, data: bytes) -> None:
        """All of it."""
        ...

    async def send_eof(self) -> None:
        """No more from us."""
        ...

    async def aclose(self) -> None:
        """Release it."""
        ...


class Http:
    """One side of one connection."""

    def __init__(self, stream: Bytes, role: type[h11.CLIENT] | type[h11.SERVER]) -> None:
        self.stream = stream
        self.state = h11.Connection(role, max_incomplete_event_size=MAX_HEAD)
        self.broken = False
        """The stream was found cut when it was read."""

    async def next(self) -> h11.Event | type[h11.PAUSED]:
        """The next event. Raises `h11.RemoteProtocolError`, `anyio.BrokenResourceError`."""
        while True:
            event = self.state.next_event()
            if event is not h11.NEED_DATA:
                return cast("h11.Event | type[h11.PAUSED]", event)
            try:
                self.state.receive_data(await self.stream.receive(PIECE))
            except anyio.EndOfStream:
                self.state.receive_data(b"")
            except anyio.BrokenResourceError:
                self.broken = True
                raise

    async def send(self, event: h11.Event) -> None:
        """One event, as bytes."""
        if data := self.state.send(event):
            await self.stream.send(data)
