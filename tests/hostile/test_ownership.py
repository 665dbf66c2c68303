"""Who owns what on the host: nothing of a sandbox gives anybody there a right, and all of it can be removed again."""

from __future__ import annotations

import asyncio
import contextlib
import os
from pathlib import Path

import pytest
from tests.docker.provider_support import docker_provider, leftovers, spec
from tests.hostile.hostile_support import racing
from tests.hostile.native import at_work

from kinfold.errors import ConfigError, PathError, SandboxError
from kinfold.sandbox.base import ExecRequest, Limits
from kinfold.sandbox.docker.sweep import sweep
from kinfold.sandbox.docker.workspaces import remove_marker, remove_scratch, write_marker
from kinfold.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


@pytest.mark.threat("O02")
@racing
def test_whoever_swaps_what_the_host_is_making_in_a_live_workspace_gets_no_file_of_the_hosts(
    tmp_path: Path, share: float
) -> None:
    workspace, outside = tmp_path / "workspace", tmp_path / "outside"
    mine = workspace / "roots-own"
    for directory in (workspace, outside, mine):
        directory.mkdir(mode=0o700)
        (directory / "kept").touch(mode=0o600)
    os.chown(workspace, 1000, 1000)
    (workspace / "link").symlink_to(outside)
    watched = [outside, outside / "kept", mine, mine / "kept"]

    def looks() -> list[tuple[int, int, int]]:
        found = [*map(os.stat, watched[:2]), *(os.stat(path) for path in _wherever(workspace, mine.name))]
        return [(each.st_uid, each.st_gid, each.st_mode) for each in found]

    before = looks()
    with at_work(workspace, "swap", ".kinfold", "link", ".kinfold", "roots-own"):
        for number in range(round(20_000 * share)):
            with contextlib.suppress(ConfigError, OSError):
                write_marker(str(workspace), f"m{number}", b"x")
            with contextlib.suppress(OSError):
                remove_marker(str(workspace), f"m{number}")
            remove_scratch(str(workspace))
    assert os.listdir(outside) == ["kept"]
    assert looks() == before


def _wherever(workspace: Path, name: str) -> list[Path]:
    """Root's own directory and file, under whichever of the swapped names they are now."""
    at = next(
        path for path in (workspace / name, workspace / ".kinfold", workspace / "link")
        if path.is_dir() and not path.is_symlink() and (path / "kept").exists()
    )  # fmt: skip
    return [at, at / "kept"]


HARD_TO_REMOVE = """
mkdir -p a/b/c; echo x > a/b/c/f; chmod 000 a/b/c/f a/b/c a/b a
mkdir -p $HOME/h/i; touch $HOME/h/i/f; chmod 000 $HOME/h/i $HOME/h
mkdir -p .kinfold/s; chmod 000 .kinfold/s; mkfifo p; ln -s / l
"""


@pytest.mark.threat("O02", "O05")
async def test_what_the_agent_owns_and_has_closed_goes_with_the_sandbox(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec()) as box:
            assert (await box.exec(HARD_TO_REMOVE)).exit_code == 0
        assert leftovers(provider) == []


@pytest.mark.threat("O03")
async def test_the_agents_files_go_by_the_agents_own_hand_where_the_host_may_not_touch_them(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        facts = await provider.engine.facts()
        here = "rootless" if facts.rootless else "userns" if facts.uid_base != (0, 0) else "root"
        sandbox = await provider.create(spec(keep=600.0))
        async with sandbox:
            assert (await sandbox.exec(HARD_TO_REMOVE)).exit_code == 0
            ours = sandbox.agent_uid == os.geteuid()  # then the host itself may touch them
        [record] = (await provider.records.list()).records
        layout = provider.workspaces.layout(record.id)
        await sweep(provider, record, workspace=True)
        for target in (layout.workspace, layout.home):
            left = os.listdir(target) if target.exists() else []
            assert left == [] or ours, f"on a {here} engine"
        assert provider.workspaces.remove(record.id, workspace=True) == []
        assert provider.workspaces.ids() == []


@pytest.mark.threat("O04")
async def test_two_sandboxes_of_one_uid_take_no_process_from_each_other(own_state: Path) -> None:
    limits = Limits(pids=64)
    async with (
        docker_provider(own_state) as provider,
        await provider.create(spec(limits=limits)) as full,
        await provider.create(spec(limits=limits)) as other,
    ):
        limit = (await other.exec("grep 'Max processes' /proc/self/limits")).stdout_text.split()[2]
        assert limit == "unlimited" or int(limit) > 100 * limits.pids, "the engine's own; it counts a uid everywhere"
        filler = "i=0; while [ $i -lt 200 ]; do sleep 300 & i=$((i+1)); done; wait"
        filling = await full.start(ExecRequest(command=filler, owner="filler"))
        async with asyncio.timeout(30):
            while ((await full.usage()).pids or 0) < 60:
                await asyncio.sleep(0.05)
        forked = await other.exec("for i in 1 2 3 4 5 6 7 8 9 10; do sleep 0.2 & done; wait; echo done", timeout=20)
        assert forked.stdout == b"done\n", forked.stderr_text
        await full.end("filler", grace=0)
        assert (await filling.wait()).survivors == 0


ATTRIBUTES = """
import os
for n in range(64):
    try: os.setxattr("f", f"user.a{n}", b"x" * 3000)
    except OSError: break
print(n)
"""


@pytest.mark.threat("O05")
async def test_what_the_agent_has_closed_or_stuffed_is_a_typed_error_or_read(box: Sandbox, folder: str) -> None:
    await box.exec("mkdir d; echo x > d/f; echo y > f; chmod 000 d/f d", cwd=folder)
    assert (await box.exec(["python3", "-c", ATTRIBUTES], cwd=folder)).exit_code == 0
    assert await box.read(f"{folder}/f") == b"y\n"
    for path in (f"{folder}/d/f", f"{folder}/d"):
        with pytest.raises(PathError) as error:
            await box.read(path)
        assert error.value.reason in ("permission_denied", "is_directory")
    claims = await box.stat([f"{folder}/f", f"{folder}/d", f"{folder}/d/f"], claim=True)
    assert [isinstance(claim, PathError) for claim in claims] == [False, True, True]
    assert {entry.path for entry in (await box.list(folder, depth=5)).entries} == {
        f"/workspace/{folder}/{name}" for name in ("d", "f")
    }
    with pytest.raises((PathError, SandboxError)):
        _ = [piece async for piece in box.archive(f"{folder}/d")]
