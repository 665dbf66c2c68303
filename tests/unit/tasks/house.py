"""A provider without containers, for tests of who owns what and how long."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.unit.agent.stage import MemorySandbox

from kinfold.sandbox.base import ByteStream, ProbeReport, SandboxRef, SandboxSpec


class MemoryProvider:
    """Makes `MemorySandbox`es and remembers them."""

    name = "memory"

    def __init__(self, failure: BaseException | None = None, *, kind: type[MemorySandbox] = MemorySandbox) -> None:
        self.failure = failure
        self.kind = kind
        self.made: list[MemorySandbox] = []

    async def create(self, spec: SandboxSpec) -> MemorySandbox:
        if self.failure is not None:
            raise self.failure
        sandbox = self.kind()
        sandbox.spec_given = spec
        self.made.append(sandbox)
        return sandbox

    async def connect(self, ref: SandboxRef) -> MemorySandbox:
        raise NotImplementedError

    async def list(self, labels: Mapping[str, str] | None = None) -> Any:
        raise NotImplementedError

    async def destroy(self, ref: SandboxRef) -> None:
        raise NotImplementedError

    async def probe(self) -> ProbeReport:
        raise NotImplementedError

    async def open_stream(self, ref: SandboxRef) -> ByteStream:
        raise NotImplementedError

    @property
    def all_closed(self) -> bool:
        """Whether each sandbox was closed, once."""
        return [sandbox.closed for sandbox in self.made] == [1] * len(self.made)
