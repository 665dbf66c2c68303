"""The proxy: one program's connection, each request judged by itself, allowed or refused in words."""

from __future__ import annotations

import anyio
import h11

from kinfold.sandbox.allowlist import Allowlist
from kinfold.sandbox.base import OnEgress
from kinfold.sandbox.egress.dial import Dialler
from kinfold.sandbox.egress.forward import Forward, outgoing
from kinfold.sandbox.egress.mask import Mask
from kinfold.sandbox.egress.meter import Attempt, Totals
from kinfold.sandbox.egress.relay import IDLE_TIMEOUT, Relay
from kinfold.sandbox.egress.target import Refused, Target, absolute_target, check_host, connect_target
from kinfold.sandbox.egress.wire import Bytes, Http

_SHOWN = 10


class Proxy:
    """Serves the connections of one sandbox."""

    def __init__(self, dialler: Dialler, report: OnEgress) -> None:
        self._allowlist: Allowlist = dialler.allowlist
        self._dialler = dialler
        self._report = report
        self._totals = Totals(dialler.allowlist)

    async def serve(self, stream: Bytes) -> None:
        """One connection, to its end. Raises `anyio.BrokenResourceError` where the program has cut it."""
        program = Http(stream, h11.SERVER)
        while await self._one(program):
            program.state.start_next_cycle()

    async def _one(self, program: Http) -> bool:
        """One request; whether another may follow on the same connection."""
        try:
            with anyio.fail_after(IDLE_TIMEOUT):
                request = await program.next()
        except TimeoutError:
            return False
        except h11.RemoteProtocolError as error:
            attempt = Attempt(self._totals, "")
            await self._refuse(program, attempt, Refused("bad_request", str(error), error.error_status_hint))
            self._report(attempt.outcome())
            return False
        if not isinstance(request, h11.Request):
            return False  # it has left
        connect = request.method == b"CONNECT"
        attempt = Attempt(self._totals, "connect" if connect else "http")
        try:
            self._totals.begin()
            if connect:
                await self._connect(program, request, attempt)
            else:
                await self._forward(program, request, attempt)
        except Refused as refused:
            await self._refuse(program, attempt, refused)
        except anyio.BrokenResourceError:
            attempt.reason = attempt.reason or "cut"
            raise
        finally:
            self._report(attempt.outcome())
        return program.state.our_state is h11.DONE and program.state.their_state is h11.DONE

    async def _connect(self, program: Http, request: h11.Request, attempt: Attempt) -> None:
        target = attempt.target = connect_target(request.target)
        check_host(request.headers, target, target.port)
        self._judge(target)
        if target.host in self._allowlist.inject:
            raise Refused(
                "inject_host",
                f"use http://{target.host}/ here, not https://: kinfold adds a credential and speaks TLS to the host",
            )
        attempt.allowed = True
        host = await self._dialler.open(target, tls=False)
        try:
            await program.send(h11.Response(status_code=200, reason=b"Connection established", headers=[]))
            early, _ = program.state.trailing_data
            await Relay(program.stream, host, attempt).run(target, early)
        finally:
            await _close(host)

    async def _forward(self, program: Http, request: h11.Request, attempt: Attempt) -> None:
        asked = attempt.target = absolute_target(request.target)
        check_host(request.headers, asked, 80)
        inject = {name: value.get_secret_value() for name, value in self._allowlist.inject.get(asked.host, {}).items()}
        target = asked
        if inject and asked.port == 80:
            target = attempt.target = Target(host=asked.host, port=443, path=asked.path)
        self._judge(target)
        if inject and not all(inject.values()):
            raise Refused(
                "credential_missing", f"only the process that made this sandbox has the credential for {asked.host}"
            )
        sent = outgoing(request, target, inject)
        attempt.allowed = True
        host = await self._dialler.open(target, tls=bool(inject))
        forward = Forward(program, Http(host, h11.CLIENT), attempt, Mask(inject.values()) if inject else None)
        try:
            await forward.run(sent)
        except Refused as refused:
            if forward.begun:
                attempt.reason = refused.reason
                raise anyio.BrokenResourceError from refused  # half an answer: cut, so that it is not taken for a whole
            raise
        finally:
            await _close(host)

    def _judge(self, target: Target) -> None:
        answer = self._allowlist.permits(target.host, target.port)
        if answer == "yes":
            return
        known = ", ".join(self._allowlist.hosts[:_SHOWN]) + (", …" if len(self._allowlist.hosts) > _SHOWN else "")
        reason = "host_not_allowed" if answer == "host" else "port_not_allowed"
        raise Refused(reason, f"{target.authority} is not in this sandbox's network allowlist ({known})")

    async def _refuse(self, program: Http, attempt: Attempt, refused: Refused) -> None:
        """In the status line too: many programs show nothing else."""
        attempt.reason = refused.reason
        if program.state.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        words = f"kinfold: {refused.message}".encode("ascii", "replace")
        body = words + b"\n"
        headers = [
            (b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode()), (b"connection", b"close"),
        ]  # fmt: skip
        reason = bytes(c for c in words[:200] if 0x20 <= c < 0x7F)
        await program.send(h11.Response(status_code=refused.status, reason=reason, headers=headers))
        await program.send(h11.Data(data=body))
        await program.send(h11.EndOfMessage())


async def _close(stream: Bytes) -> None:
    with anyio.CancelScope(shield=True), anyio.move_on_after(1.0):
        await stream.aclose()
