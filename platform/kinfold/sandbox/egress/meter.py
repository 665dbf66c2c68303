"""How much a sandbox has sent and received, against its caps."""

from __future__ import annotations

from kinfold.sandbox.allowlist import Allowlist
from kinfold.sandbox.base import EgressAttempt
from kinfold.sandbox.egress.target import Refused, Target


class Totals:
    """Of one sandbox."""

    def __init__(self, allowlist: Allowlist) -> None:
        self._allowlist = allowlist
        self.sent = 0
        self.received = 0
        self.attempts = 0

    def begin(self) -> None:
        """One more attempt. Raises `Refused` when there were enough."""
        self.attempts += 1
        if self.attempts > self._allowlist.attempts:
            raise Refused("attempt_limit", f"this sandbox has made its {self._allowlist.attempts} connections", 429)

    def check(self) -> None:
        """Raises `Refused` when a cap has been passed."""
        if self.sent > self._allowlist.upload_bytes:
            raise Refused(
                "byte_limit", f"this sandbox has sent the {self._allowlist.upload_bytes} bytes that it may", 429
            )
        if self.received > self._allowlist.download_bytes:
            raise Refused(
                "byte_limit", f"this sandbox has received the {self._allowlist.download_bytes} bytes that it may", 429
            )


class Attempt:
    """One connection or request, from its first look to its event."""

    def __init__(self, totals: Totals, method: str) -> None:
        self._totals = totals
        self._method = method
        self.target: Target | None = None
        self.allowed = False
        self.reason = ""
        self.sent = 0
        self.received = 0

    def up(self, count: int) -> None:
        """Bytes are about to leave. Raises `Refused` at the cap."""
        self._totals.sent += count
        self._totals.check()
        self.sent += count

    def down(self, count: int) -> None:
        """Bytes have come in. Raises `Refused` at the cap."""
        self._totals.received += count
        self._totals.check()
        self.received += count

    def outcome(self) -> EgressAttempt:
        """As it is told."""
        host, port = ("", 0) if self.target is None else (self.target.host, self.target.port)
        return EgressAttempt(
            method=self._method, host=host, port=port, allowed=self.allowed, reason=self.reason,
            sent=self.sent, received=self.received,
        )  # fmt: skip
