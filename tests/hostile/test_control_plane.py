"""No door of the platform's or the engine's stands in a sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.docker.provider_support import engine_api
from tests.hostile.hostile_support import sandbox_with
from tests.hostile.outside import as_root_inside

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

DOORS = """
find / -path /proc -prune -o '(' -type s -o -name '*docker*' -o -name '*containerd*' ')' ! -name .dockerenv -print \
    2>/dev/null; true
"""


@pytest.mark.threat("C05")
async def test_no_socket_of_the_engine_or_the_platform_is_in_an_agents_reach(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        seen = await box.exec(DOORS, timeout=60)
        assert seen.stdout_text == ""
        # Root inside sees the supervisor's own, and of the host's nothing but what the supervisor dials.
        doors = set(as_root_inside(box, DOORS).split())
        assert {door for door in doors if not door.startswith("/run/kf/")} == set()
        tried = await box.exec("ls /run/kf /run/kf/host /run/kf/s 2>&1 | grep -c 'Permission denied'")
        assert tried.stdout.strip() == b"3"
        with engine_api() as api:
            mounts = api.inspect_container(box.ref.handle)["Mounts"]
        sources = {mount["Source"] for mount in mounts if mount["Type"] == "bind"}
        assert all(Path(source).is_relative_to(own_state) for source in sources), sources
