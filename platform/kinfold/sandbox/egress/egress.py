"""A sandbox's egress as its owner holds it: claims the connections of each new channel and serves them."""

from __future__ import annotations

import asyncio
import logging

import anyio

from kinfold.sandbox.allowlist import Allowlist
from kinfold.sandbox.base import EgressAttempt, OnEgress
from kinfold.sandbox.channel import Channel, ChannelBroken, RemoteError
from kinfold.sandbox.egress.dial import Dialler
from kinfold.sandbox.egress.proxy import Proxy
from kinfold.sandbox.tunnels import Claim, Tunnel

logger = logging.getLogger(__name__)
_FAREWELL = 10.0
"""Seconds that a program has to read the rest and leave."""


class Egress:
    """The connections of one sandbox's programs; byte and connection counts outlive a channel."""

    def __init__(self, allowlist: Allowlist, sandbox_id: str, *, dialler: Dialler | None = None) -> None:
        self._allowlist = allowlist
        self._sandbox_id = sandbox_id
        self._proxy = Proxy(dialler or Dialler(allowlist=allowlist), self._report)
        self._claim: Claim | None = None
        self._serving: set[asyncio.Task[None]] = set()
        self._closed = False
        self.on_attempt: OnEgress | None = None
        """Told of each attempt when it has ended."""

    def claim(self, channel: Channel) -> None:
        """Carry the connections that come by this channel."""
        if self._closed or channel.broken is not None:
            return
        self._claim = Claim(channel, self._allowlist.connections, self._open)
        self._claim.call.future.add_done_callback(self._on_over)

    def _on_over(self, future: asyncio.Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, RemoteError):
            logger.error("sandbox %s: no egress: %s", self._sandbox_id, error.failure.message)
        elif error is not None and not isinstance(error, ChannelBroken):
            logger.error("sandbox %s: egress ended: %s", self._sandbox_id, error)

    def _open(self, tunnel: Tunnel) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(tunnel))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, tunnel: Tunnel) -> None:
        try:
            await self._proxy.serve(tunnel)
            await tunnel.finish(_FAREWELL)
        except anyio.BrokenResourceError:
            return  # the program, or the channel, has gone
        except Exception:
            logger.exception("sandbox %s: a connection failed", self._sandbox_id)  # our bug: one connection, no more
        finally:
            tunnel.cut()

    def _report(self, attempt: EgressAttempt) -> None:
        logger.info(
            "sandbox %s: egress to %s:%d %s%s, %d bytes out, %d in", self._sandbox_id, attempt.host, attempt.port,
            "allowed" if attempt.allowed else "denied", f" ({attempt.reason})" if attempt.reason else "",
            attempt.sent, attempt.received,
        )  # fmt: skip
        if self.on_attempt is not None:
            self.on_attempt(attempt)

    async def aclose(self) -> None:
        """Cut what is open, and take no more; every attempt has been told of when this returns."""
        self._closed = True
        if self._claim is not None:
            self._claim.release()
        serving = list(self._serving)
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
