"""What a request to the proxy wants to reach: pure parsing, of bytes that a hostile program wrote."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from kinfold.sandbox.allowlist import host_name, is_address

_PORT = re.compile(rb"[0-9]{1,5}\Z")


class Refused(Exception):
    """Raised for what the proxy will not do. Private: it becomes an HTTP answer and an `EgressAttempt`."""

    def __init__(self, reason: str, message: str, status: int = 403) -> None:
        super().__init__(message)
        self.reason = reason
        """One word of `EgressAttempt.reason`."""
        self.message = message
        self.status = status


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A host and a port, and of a plain request what to ask there."""

    host: str
    """As `host_name` gives it."""
    port: int
    path: bytes = b""

    @property
    def authority(self) -> str:
        """`host:port`, brackets around an IPv6 address."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def connect_target(text: bytes) -> Target:
    """The target of CONNECT: always with a port."""
    host, port = _authority(text, None)
    return Target(host=host, port=port)


def absolute_target(text: bytes) -> Target:
    """The target of any other method: `http://host[:port]/path`."""
    scheme, separator, rest = text.partition(b"://")
    if not separator:
        raise Refused("bad_request", "this is a proxy: ask it for http://HOST/PATH, or CONNECT to HOST:443", 400)
    if scheme.lower() != b"http":
        raise Refused("bad_request", f"{_show(scheme)}: only http:// goes this way; https:// needs CONNECT", 400)
    cut = re.search(rb"[/?#]", rest)
    authority, path = (rest, b"/") if cut is None else (rest[: cut.start()], rest[cut.start() :])
    if b"#" in path:
        raise Refused("bad_request", "a fragment has no place in a request", 400)
    host, port = _authority(authority, 80)
    return Target(host=host, port=port, path=path if path.startswith(b"/") else b"/" + path)


def check_host(headers: Iterable[tuple[bytes, bytes]], target: Target, default: int | None) -> None:
    """The Host header must name the target, or be missing: what is judged is what is asked."""
    for name, value in headers:
        if name.lower() == b"host":
            host, port = _authority(value, default if default is not None else target.port)
            if (host, port) != (target.host, target.port):
                raise Refused(
                    "host_mismatch", f"the Host header says {_show(value)}, the request {target.authority}", 400
                )


def _authority(text: bytes, default: int | None) -> tuple[str, int]:
    if b"@" in text:
        raise Refused("bad_request", "user information has no place in a request's host", 400)
    host, port = text, default
    if not text.endswith(b"]") and b":" in text:
        host, _, digits = text.rpartition(b":")
        port = int(digits) if _PORT.match(digits) else None
    try:
        name = host_name(host.decode("ascii"))
    except ValueError:
        raise Refused("bad_request", f"{_show(host)} is not a host name", 400) from None
    if b":" in host and not host.startswith(b"["):
        raise Refused("bad_request", "an IPv6 address stands in brackets", 400)
    if is_address(name) and host.strip(b"[]").lower() != name.encode() and b":" not in host:
        raise Refused("bad_request", f"{_show(host)} is an odd spelling of an address", 400)
    if port is None or not 0 < port < 65536:
        raise Refused("bad_request", f"{_show(text)} has no port from 1 to 65535", 400)
    return name, port


def _show(text: bytes) -> str:
    return repr(text[:100].decode("ascii", "backslashreplace"))
