"""One plain request, asked anew on the other side: what is sent is what was understood, so nothing can be smuggled."""

from __future__ import annotations

from collections.abc import Iterable

import anyio
import h11

from kinfold.sandbox.egress.mask import Mask
from kinfold.sandbox.egress.meter import Attempt
from kinfold.sandbox.egress.target import Refused, Target
from kinfold.sandbox.egress.wire import Http

ANSWER_TIMEOUT = 600.0
"""Seconds without a byte of the answer."""
_HOP_BY_HOP = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"proxy-authorization", b"proxy-authenticate", b"te",
     b"trailer", b"transfer-encoding", b"upgrade", b"expect", b"host")
)  # fmt: skip
Headers = list[tuple[bytes, bytes]]


def end_to_end(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers that are for the other end, without those that `Connection` names."""
    pairs = [(bytes(name).lower(), bytes(value)) for name, value in headers]
    named = {part.strip().lower() for name, value in pairs if name == b"connection" for part in value.split(b",")}
    return [(name, value) for name, value in pairs if name not in _HOP_BY_HOP and name not in named]


def outgoing(request: h11.Request, target: Target, inject: dict[str, str]) -> h11.Request:
    """The request as the host reads it. Raises `Refused` for a body of unclear length."""
    names = [bytes(name).lower() for name, _ in request.headers]
    chunked = b"transfer-encoding" in names
    if chunked and b"content-length" in names:
        raise Refused("bad_request", "a request with both Content-Length and Transfer-Encoding", 400)
    added = {name.lower().encode(): value.encode("latin-1") for name, value in inject.items()}
    headers = [pair for pair in end_to_end(request.headers) if pair[0] not in added]
    if inject:
        headers = [pair for pair in headers if pair[0] != b"accept-encoding"]
        headers.append((b"accept-encoding", b"identity"))  # what is compressed cannot be looked through for the secret
    default = 443 if inject else 80
    host = target.authority if target.port != default else target.authority.rpartition(":")[0]
    headers = [(b"host", host.encode()), *headers, *added.items(), (b"connection", b"close")]
    if chunked:
        headers.append((b"transfer-encoding", b"chunked"))
    return h11.Request(method=request.method, target=target.path, headers=headers)


class Forward:
    """One request and its answer, between a program and a host."""

    def __init__(self, program: Http, host: Http, attempt: Attempt, mask: Mask | None) -> None:
        self._program = program
        self._host = host
        self._attempt = attempt
        self._mask = mask
        self._refused: Refused | None = None
        self.begun = False
        """The program has been sent the answer's head: no other answer can follow."""

    async def run(self, request: h11.Request) -> None:
        """To the end of the answer. Raises `Refused`, `h11.RemoteProtocolError`, `anyio.BrokenResourceError`."""
        self._attempt.up(len(request.target) + sum(len(name) + len(value) + 4 for name, value in request.headers))
        await self._host.send(request)
        async with anyio.create_task_group() as group:
            group.start_soon(self._body, group.cancel_scope)
            try:
                await self._answer()
            except (Refused, h11.RemoteProtocolError, anyio.BrokenResourceError, TimeoutError) as error:
                self._refused = self._refused or _in_words(error)
            group.cancel_scope.cancel()
        if self._refused is not None:
            raise self._refused

    async def _body(self, scope: anyio.CancelScope) -> None:
        try:
            if self._program.state.they_are_waiting_for_100_continue:
                await self._program.send(h11.InformationalResponse(status_code=100, headers=[]))
            while not isinstance(event := await self._program.next(), h11.EndOfMessage):
                if not isinstance(event, h11.Data):
                    raise Refused("bad_request", "the request's body ended early", 400)
                self._attempt.up(len(event.data))
                await self._host.send(event)
            await self._host.send(h11.EndOfMessage())
        except (Refused, h11.RemoteProtocolError, anyio.BrokenResourceError) as error:
            if isinstance(error, anyio.BrokenResourceError) and not self._program.broken:
                return  # the host has heard enough: its answer says the rest
            self._refused = _in_words(error)
            scope.cancel()

    async def _answer(self) -> None:
        while True:
            with anyio.fail_after(ANSWER_TIMEOUT):
                event = await self._host.next()
            match event:
                case h11.InformationalResponse():
                    continue
                case h11.Response():
                    self.begun = True
                    await self._program.send(self._head(event))
                case h11.Data():
                    self._attempt.down(len(event.data))
                    data = bytes(event.data) if self._mask is None else self._mask.feed(bytes(event.data))
                    if data:
                        await self._program.send(h11.Data(data=data))
                case h11.EndOfMessage():
                    if self._mask is not None and (rest := self._mask.end()):
                        await self._program.send(h11.Data(data=rest))
                    await self._program.send(h11.EndOfMessage())
                    return
                case _:
                    raise Refused("connect_failed", "the host closed the connection without an answer", 502)

    def _head(self, response: h11.Response) -> h11.Response:
        headers = end_to_end(response.headers)
        if self._mask is not None:
            headers = [(name, self._mask.whole(value)) for name, value in headers]
        return h11.Response(status_code=response.status_code, reason=response.reason, headers=headers)


def _in_words(error: Exception) -> Refused:
    if isinstance(error, Refused):
        return error
    if isinstance(error, TimeoutError):
        return Refused("timeout", f"no byte of the answer for {ANSWER_TIMEOUT:g} s", 504)
    return Refused("connect_failed", f"the connection broke: {str(error) or type(error).__name__}", 502)
