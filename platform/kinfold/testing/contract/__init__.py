"""What every provider must do, as tests that any provider's own test package runs.

A provider's test module takes all of it and says what it is::

    from kinfold.testing.contract import *

    pytestmark = pytest.mark.anyio

    @pytest.fixture(scope="module")
    async def provider(): ...            # an open Provider
    @pytest.fixture(scope="module")
    def make_spec(): ...                 # (**changes) -> SandboxSpec
    @pytest.fixture(scope="module")
    def abilities(): ...                 # of "own_uid", "pid_namespace", "cgroup": what it has

Tests that need an ability carry the mark `needs_…` and are skipped, with the reason, where it is missing. The programs
that run in the sandbox need `sh`, coreutils and `python3` in the image.
"""

from __future__ import annotations

import pytest

_ROOMS = (
    "archives",
    "background",
    "changes",
    "ends",
    "files",
    "kills",
    "lifecycle",
    "limits",
    "links",
    "names",
    "reattach",
    "stdin",
    "streams",
    "terminals",
)
pytest.register_assert_rewrite(*(f"{__name__}.{room}" for room in _ROOMS))

from kinfold.testing.contract.archives import *  # noqa: E402, F403
from kinfold.testing.contract.background import *  # noqa: E402, F403
from kinfold.testing.contract.changes import *  # noqa: E402, F403
from kinfold.testing.contract.ends import *  # noqa: E402, F403
from kinfold.testing.contract.files import *  # noqa: E402, F403
from kinfold.testing.contract.fixtures import *  # noqa: E402, F403
from kinfold.testing.contract.kills import *  # noqa: E402, F403
from kinfold.testing.contract.lifecycle import *  # noqa: E402, F403
from kinfold.testing.contract.limits import *  # noqa: E402, F403
from kinfold.testing.contract.links import *  # noqa: E402, F403
from kinfold.testing.contract.names import *  # noqa: E402, F403
from kinfold.testing.contract.reattach import *  # noqa: E402, F403
from kinfold.testing.contract.stdin import *  # noqa: E402, F403
from kinfold.testing.contract.streams import *  # noqa: E402, F403
from kinfold.testing.contract.terminals import *  # noqa: E402, F403
