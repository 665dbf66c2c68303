"""Bytes both ways between a program and the host that it may reach, with the first of them looked at."""

from __future__ import annotations

import anyio

from kinfold.sandbox.allowlist import is_address
from kinfold.sandbox.egress import client_hello
from kinfold.sandbox.egress.meter import Attempt
from kinfold.sandbox.egress.target import Refused, Target
from kinfold.sandbox.egress.wire import Bytes
from kinfold.sandbox.tunnels import PIECE

HELLO_TIMEOUT = 30.0
IDLE_TIMEOUT = 600.0
"""Seconds without a byte in either direction after which a connection is given up."""


async def check_hello(program: Bytes, target: Target, early: bytes) -> bytes:
    """The program's first bytes, once they are known to ask for `target` and nothing else. Raises `Refused`.

    On port 443 they must be a TLS handshake; on another port they may be anything, but a handshake must fit.
    """
    data = early
    try:
        with anyio.fail_after(HELLO_TIMEOUT):
            while not data:
                data += await program.receive()
            if target.port != 443 and not client_hello.starts_like_tls(data):
                return data
            while (name := client_hello.server_name(data)) is None:
                data += await program.receive()
    except anyio.EndOfStream:
        if target.port != 443 and not data:
            return b""
        raise Refused("not_tls", "the connection ended before its TLS handshake") from None
    except TimeoutError:
        raise Refused("timeout", f"no TLS handshake within {HELLO_TIMEOUT:g} s") from None
    if name != target.host and not (name == "" and is_address(target.host)):
        raise Refused("sni_mismatch", f"CONNECT asked for {target.host}, the TLS handshake for {name or 'no name'}")
    return data


class Relay:
    """One connection's bytes; `run` returns when both directions have ended, or raises `Refused`."""

    def __init__(self, program: Bytes, host: Bytes, attempt: Attempt) -> None:
        self._program = program
        self._host = host
        self._attempt = attempt
        self._moved = 0.0
        self._refused: Refused | None = None

    async def run(self, target: Target, early: bytes) -> None:
        """To the end."""
        self._moved = anyio.current_time()
        async with anyio.create_task_group() as group:
            group.start_soon(self._watch, group.cancel_scope)
            group.start_soon(self._down, group.cancel_scope)
            await self._up(group.cancel_scope, target, early)
        if self._refused is not None:
            raise self._refused

    _ended = 0

    def _end(self, scope: anyio.CancelScope) -> None:
        self._ended += 1
        if self._ended == 2:
            scope.cancel()

    def _fail(self, scope: anyio.CancelScope, refused: Refused | None) -> None:
        self._refused = self._refused or refused
        scope.cancel()

    async def _up(self, scope: anyio.CancelScope, target: Target, early: bytes) -> None:
        try:
            data = await check_hello(self._program, target, early)
            while True:
                if data:
                    self._attempt.up(len(data))
                    await self._host.send(data)
                    self._moved = anyio.current_time()
                data = await self._program.receive(PIECE)
        except anyio.EndOfStream:
            await self._host.send_eof()
            self._end(scope)
        except Refused as refused:
            if refused.reason in ("sni_mismatch", "not_tls"):
                await self._program.send(client_hello.ALERT)
            self._fail(scope, refused)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._fail(scope, None)

    async def _down(self, scope: anyio.CancelScope) -> None:
        try:
            while True:
                data = await self._host.receive(PIECE)
                self._attempt.down(len(data))
                self._moved = anyio.current_time()
                await self._program.send(data)
        except anyio.EndOfStream:
            await self._program.send_eof()
            self._end(scope)
        except Refused as refused:
            self._fail(scope, refused)
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            self._fail(scope, None)

    async def _watch(self, scope: anyio.CancelScope) -> None:
        while (left := self._moved + IDLE_TIMEOUT - anyio.current_time()) > 0:  # noqa: ASYNC110 - it sleeps as long as it may
            await anyio.sleep(left)
        self._fail(scope, Refused("timeout", f"no byte in either direction for {IDLE_TIMEOUT:g} s"))
