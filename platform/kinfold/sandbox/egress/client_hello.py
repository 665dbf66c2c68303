"""The server name in a TLS ClientHello: read, not answered. Pure, of bytes that a hostile program wrote."""

from __future__ import annotations

from kinfold.sandbox.egress.target import Refused

MAX_BYTES = 65_536
"""Of records that may come before the name is known."""
ALERT = bytes.fromhex("15030300020270")
"""A fatal `unrecognized_name`, which TLS libraries turn into words."""


def starts_like_tls(data: bytes) -> bool:
    """Whether these first bytes may begin a TLS handshake."""
    return data[:1] == b"\x16"


def server_name(data: bytes) -> str | None:
    """The one name that the ClientHello asks for; "" where it asks for none; None where more bytes are needed.

    Raises `Refused` for bytes that are no ClientHello.
    """
    hello = _handshake(data)
    if hello is None:
        if len(data) > MAX_BYTES:
            raise Refused("sni_mismatch", f"no server name in the first {MAX_BYTES} bytes of the TLS handshake")
        return None
    try:
        return _name(hello)
    except IndexError:
        raise Refused("sni_mismatch", "the TLS handshake is malformed") from None


def _handshake(data: bytes) -> bytes | None:
    """The ClientHello's body, put together from as many records as it was cut into."""
    body = bytearray()
    at = 0
    while len(data) - at >= 5:
        size = int.from_bytes(data[at + 3 : at + 5], "big")
        if data[at] != 0x16 or data[at + 1] != 3 or not 0 < size <= 16_640:
            raise Refused("not_tls", "this does not begin with a TLS handshake")
        body += data[at + 5 : at + 5 + size]
        at += 5 + size
        if body[0] != 1:
            raise Refused("not_tls", "this does not begin with a TLS ClientHello")
        if len(body) >= 4 and len(body) >= 4 + int.from_bytes(body[1:4], "big"):
            return bytes(body[4 : 4 + int.from_bytes(body[1:4], "big")])
    return None


class _Reader:
    """Takes lengths and bytes off; `IndexError` where they are not there."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise IndexError
        self._at += size
        return self._data[self._at - size : self._at]

    def vector(self, width: int) -> bytes:
        return self.take(int.from_bytes(self.take(width), "big"))

    def __bool__(self) -> bool:
        return self._at < len(self._data)


def _name(hello: bytes) -> str:
    reader = _Reader(hello)
    reader.take(2 + 32)
    reader.vector(1)  # session
    reader.vector(2)  # cipher suites
    reader.vector(1)  # compression
    if not reader:
        return ""
    extensions = _Reader(reader.vector(2))
    names: list[bytes] = []
    while extensions:
        kind, body = extensions.take(2), extensions.vector(2)
        if kind == b"\0\0":
            entries = _Reader(_Reader(body).vector(2))
            while entries:
                if entries.take(1) != b"\0":
                    raise IndexError
                names.append(entries.vector(2))
    if len(names) > 1:
        raise Refused("sni_mismatch", "the TLS handshake asks for more than one server name")
    return names[0].decode("ascii", "backslashreplace").lower().removesuffix(".") if names else ""
