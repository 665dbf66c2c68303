"""From an allowed name to a connected socket: resolved here, and connected to the very address that was judged."""

from __future__ import annotations

import functools
import ssl
from dataclasses import dataclass

import anyio
import anyio.to_thread

from kinfold.sandbox.allowlist import Allowlist, is_address
from kinfold.sandbox.egress import addresses
from kinfold.sandbox.egress.addresses import Resolve
from kinfold.sandbox.egress.target import Refused, Target
from kinfold.sandbox.egress.wire import Bytes

CONNECT_TIMEOUT = 10.0
_ADDRESSES = 4
"""How many of a name's addresses are tried."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialler:
    """Opens connections for one allowlist."""

    allowlist: Allowlist
    resolve: Resolve = addresses.resolve
    context: ssl.SSLContext | None = None
    """For hosts in `inject`; None: made of `allowlist.ca_file`, or of the machine's certificates."""

    async def open(self, target: Target, *, tls: bool) -> Bytes:
        """A connection to `target`. Raises `Refused`."""
        context = await anyio.to_thread.run_sync(self._context) if tls else None
        usable = await self._usable(target)
        failure: Exception | None = None
        for address in usable[:_ADDRESSES]:
            try:
                with anyio.fail_after(CONNECT_TIMEOUT):
                    if context is None:
                        return await anyio.connect_tcp(address, target.port)
                    return await anyio.connect_tcp(
                        address, target.port, tls=True, ssl_context=context, tls_hostname=target.host,
                        tls_standard_compatible=False,
                    )  # fmt: skip
            except ssl.SSLError as error:
                raise Refused("tls_failed", f"{target.authority}: {error.reason or error}", 502) from error
            except OSError as error:  # a timeout is one too
                failure = error
        words = f"no answer within {CONNECT_TIMEOUT:g} s" if isinstance(failure, TimeoutError) else str(failure)
        raise Refused("connect_failed", f"{target.authority} cannot be reached: {words}", 502) from failure

    def _context(self) -> ssl.SSLContext:
        return self.context or _default_context(self.allowlist.ca_file)

    async def _usable(self, target: Target) -> list[str]:
        """The addresses that may be connected to."""
        found = await self._addresses(target)
        usable = []
        for text in found:
            address = addresses.parse(text)
            permitted = address is not None and (address, target.port) in self.allowlist.private_ends
            if address is not None and (permitted or (addresses.is_public(address) and not addresses.is_own(address))):
                usable.append(str(address))
        if not usable:
            raise Refused(
                "private_address",
                f"{target.host} has no public address (it is {', '.join(found[:3])}): "
                "loopback, private and link-local ones are not reached from a sandbox",
            )
        return usable

    async def _addresses(self, target: Target) -> list[str]:
        if is_address(target.host):
            return [target.host]
        if target.host in self.allowlist.pins:
            return [self.allowlist.pins[target.host]]
        try:
            with anyio.fail_after(CONNECT_TIMEOUT):
                found = await self.resolve(target.host, target.port)
        except (OSError, UnicodeError) as error:
            raise Refused("not_resolved", f"{target.host} has no address: {str(error) or 'no answer'}", 502) from error
        if not found:
            raise Refused("not_resolved", f"{target.host} has no address", 502)
        return found


@functools.lru_cache(maxsize=4)
def _default_context(ca_file: str | None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=ca_file)
    context.set_alpn_protocols(["http/1.1"])
    return context
