"""Hides injected credentials in what a host answers: a server that echoes its request must not hand them over."""

from __future__ import annotations

from collections.abc import Iterable

_LEAST = 8
"""Shorter parts occur everywhere."""


class Mask:
    """Puts asterisks in the place of secrets, length for length, in bytes that come in pieces."""

    def __init__(self, values: Iterable[str]) -> None:
        parts = {part for value in values for part in (value, *value.split()) if len(part) >= _LEAST}
        self._secrets = sorted((part.encode("latin-1") for part in parts), key=len, reverse=True)
        self._held = b""

    def whole(self, data: bytes) -> bytes:
        """All of it, at once."""
        for secret in self._secrets:
            data = data.replace(secret, b"*" * len(secret))
        return data

    def feed(self, data: bytes) -> bytes:
        """What can be given out now; the rest may be the beginning of a secret."""
        data = self._held + data
        masked = self.whole(data)
        keep = max((_overlap(masked, secret) for secret in self._secrets), default=0)
        self._held = masked[len(masked) - keep :]
        return masked[: len(masked) - keep]

    def end(self) -> bytes:
        """What was held back."""
        held, self._held = self._held, b""
        return held


def _overlap(data: bytes, secret: bytes) -> int:
    """How many bytes at the end of `data` begin `secret`."""
    for size in range(min(len(data), len(secret) - 1), 0, -1):
        if data.endswith(secret[:size]):
            return size
    return 0
