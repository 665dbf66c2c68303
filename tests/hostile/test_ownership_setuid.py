"""A setuid program that an agent leaves in its workspace gives nobody on the host a right."""

from __future__ import annotations

import asyncio
import os
import subprocess
from pathlib import Path

import pytest
from tests.docker.provider_support import docker_provider, spec
from tests.hostile.hostile_support import sandbox_with, workspace_on_the_host

from kinfold.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

NOBODY = 65534


def mount_options(path: Path) -> set[str]:
    """Those of the mount that a path of this machine lies on."""
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounts = {fields[4]: set(fields[5].split(",")) for fields in map(str.split, file)}
    at = path
    while str(at) not in mounts:
        at = at.parent
    return mounts[str(at)]


def as_nobody(program: int) -> str:
    """What `id -u`, run from this descriptor by a user without rights, says of itself."""
    seen = subprocess.run(
        [f"/proc/self/fd/{program}", "-u"],
        user=NOBODY,
        group=NOBODY,
        extra_groups=[],
        pass_fds=[program],
        capture_output=True,
        check=True,
        timeout=20,
    )
    return seen.stdout.decode().strip()


def refused(box: Sandbox) -> dict[str, str]:
    """The controls that do not hold for this sandbox, and why."""
    return {control.name: control.reason for control in box.not_enforced}


@pytest.mark.threat("O01")
async def test_a_setuid_program_in_a_made_workspace_gives_no_right_on_the_host(own_state: Path) -> None:
    async with sandbox_with(own_state, "probe") as box:
        place = workspace_on_the_host(box)
        if not {"nosuid", "nodev"} <= mount_options(place):
            assert refused(box)["workspace_nosuid"], "it must say so, and why"
            return
        assert "workspace_nosuid" not in refused(box)
        inside = (await box.exec("grep ' /workspace ' /proc/self/mountinfo")).stdout_text.split()[5]
        assert {"nosuid", "nodev"} <= set(inside.split(","))
        program = place / "id"
        program.write_bytes(Path("/usr/bin/id").read_bytes())
        os.chown(program, 0, 0)
        program.chmod(0o6755)
        held = os.open(program, os.O_RDONLY)  # what is above the workspace is closed to everybody else
        try:
            seen = await asyncio.to_thread(as_nobody, held)
        finally:
            os.close(held)
        assert seen == str(NOBODY)


@pytest.mark.threat("O01")
async def test_a_given_workspace_is_not_said_to_be_safe_from_setuid(own_state: Path, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    os.chown(given, 1000, 1000)
    async with docker_provider(own_state) as provider, await provider.create(spec(workspace=str(given))) as box:
        assert "workspace_nosuid" in refused(box)
