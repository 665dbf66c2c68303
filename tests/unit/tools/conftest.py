"""The benches on which tools are tried: one over a fake sandbox, one over real files and processes."""

from __future__ import annotations

import pytest
from tests.unit.tools.bench import Bench, FakeSandbox


@pytest.fixture
def fake() -> FakeSandbox:
    """Files in memory."""
    return FakeSandbox()


@pytest.fixture
def bench(fake: FakeSandbox) -> Bench:
    """A fresh run over the fake sandbox."""
    return Bench(fake)
