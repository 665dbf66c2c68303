"""Which addresses may be connected to, judged after resolution, on the very address that is then used."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network

from kinfold.sandbox.allowlist import Address

Resolve = Callable[[str, int], Awaitable[list[str]]]
"""The addresses of a host name; raises `OSError` where it has none."""

_REFUSED_V4 = tuple(
    IPv4Network(text)
    for text in (
        "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12", "192.0.0.0/24",
        "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16", "192.175.48.0/24",
        "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4", "168.63.129.16/32",
    )
)  # fmt: skip
"""Special-purpose ranges, multicast, and a cloud's metadata server that has a public address."""
_GLOBAL_V6 = IPv6Network("2000::/3")
_REFUSED_V6 = tuple(
    IPv6Network(text) for text in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20", "2620:4f:8000::/48")
)
"""Within the global range: special purposes, Teredo and 6to4 among them, that may stand for any IPv4 address."""


def is_public(address: Address) -> bool:
    """Whether it is an address of the open internet, and not one that is translated into another."""
    if isinstance(address, IPv4Address):
        return not any(address in network for network in _REFUSED_V4)
    # Mapped, compatible and NAT64 forms, unique local, link-local, loopback and multicast all lie outside of it.
    return address in _GLOBAL_V6 and not any(address in network for network in _REFUSED_V6)


def is_own(address: Address) -> bool:
    """Whether it is this machine's: a connection to it would come from inside every firewall. Sends nothing."""
    family = socket.AF_INET if isinstance(address, IPv4Address) else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((str(address), 9))
        except OSError:
            return False  # there is no way to it, as the connection itself will find
        return bool(ipaddress.ip_address(probe.getsockname()[0]) == address)


async def resolve(host: str, port: int) -> list[str]:
    """By this machine's own means."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(entry[4][0]) for entry in found))


def parse(text: str) -> Address | None:
    """An address, or None for what a resolver should not have said."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return None if isinstance(address, IPv6Address) and address.scope_id else address
