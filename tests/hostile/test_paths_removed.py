"""What kinfold made is gone when it should be, whatever is in it, in bounded time, and nothing else is touched."""

from __future__ import annotations

import os
import secrets
import shutil
import time
from pathlib import Path

import pytest
from tests.docker.provider_support import docker_provider, leftovers, spec
from tests.hostile.hostile_support import racing
from tests.hostile.native import at_work

from kinfold.sandbox.base import GIB, Limits
from kinfold.sandbox.docker.workspaces import Workspaces

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

HOSTILE_TREE = """
import os, sys
def deep(levels):
    here = os.getcwd()
    for _ in range(levels):
        os.mkdir("a-directory-with-a-name"); os.chdir("a-directory-with-a-name")
    open("f", "w").close()
    os.chdir(here)
for place in (os.getcwd(), os.environ["HOME"]):
    os.chdir(place); deep(3000)
    for closed in ("c0", "c0/c1", "c0/c1/c2"): os.mkdir(closed)
    os.mkfifo("p"); os.symlink("/", "root"); os.symlink("/proc/self/root", "magic"); os.link("p", "hard")
    open(b"\\xff\\n\\x1b", "w").close(); open("r" * 255, "w").close()
    for closed in ("c0/c1/c2", "c0/c1", "c0"): os.chmod(closed, 0)
os.mkdir("/workspace/many"); os.chdir("/workspace/many")
for n in range(int(sys.argv[1])): open(str(n), "x").close()
os.chmod("/workspace/many", 0)
"""


@pytest.mark.threat("P15")
@pytest.mark.parametrize("files", [50_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
async def test_a_made_workspace_goes_at_its_end_however_deep_closed_and_full(own_state: Path, files: int) -> None:
    limits = Limits(disk_inodes=files + 20_000, disk_bytes=2 * GIB)
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec(limits=limits)) as box:
            made = await box.exec(["python3", "-c", HOSTILE_TREE, str(files)], timeout=500)
            assert made.exit_code == 0, made.stderr_text
            began = time.monotonic()
        assert time.monotonic() - began < 60
        assert leftovers(provider) == []
        assert os.listdir(own_state / "sandboxes") == []


@pytest.mark.threat("P15")
async def test_a_given_workspace_stays_as_it_is(own_state: Path, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir(mode=0o750)
    (given / "mine").write_bytes(b"mine")
    for path in (given, given / "mine"):
        os.chown(path, 1000, 1000)
    before = given.stat()
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec(workspace=str(given))) as box:
            await box.exec("mkdir -p made/deep; chmod 000 made/deep")
        assert leftovers(provider) == []
    after = given.stat()
    assert (after.st_uid, after.st_mode, after.st_ino) == (before.st_uid, before.st_mode, before.st_ino)
    assert sorted(os.listdir(given)) == ["made", "mine"] and (given / "mine").read_bytes() == b"mine"


@pytest.mark.threat("P15", "G03")
@racing
def test_a_tree_removed_on_the_host_while_it_is_swapped_takes_nothing_outside_with_it(
    tmp_path: Path, share: float
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for number in range(40):
        (outside / str(number)).write_bytes(b"kept")
    before = {entry.name: (entry.stat().st_mode, entry.stat().st_ino) for entry in os.scandir(outside)}
    workspaces = Workspaces(tmp_path / "state")
    gone = 0
    for _ in range(round(300 * share)):
        sandbox = f"sbx_{secrets.token_hex(8)}"
        root = tmp_path / "state" / "sandboxes" / sandbox
        for deep in ("w/a/b", "w/c", "w/d"):
            (root / deep).mkdir(parents=True)
        for number in range(40):
            (root / "w/a/b" / str(number)).touch()
        for link in ("w/a/l", "w/k", "w/c/l"):
            (root / link).symlink_to(outside)
        (root / "w/d").chmod(0)
        with at_work(root, "swap", "w/a/b", "w/a/l", "w/a", "w/k", "w/c/l", "w/d"):
            workspaces.remove(sandbox, workspace=True)
        assert workspaces.remove(sandbox, workspace=True) == []
        gone += not root.exists()
    assert gone == round(300 * share)
    assert {entry.name: (entry.stat().st_mode, entry.stat().st_ino) for entry in os.scandir(outside)} == before


@pytest.mark.threat("P15", "G03")
async def test_a_link_in_the_place_of_a_sandboxs_directory_is_removed_and_not_followed(own_state: Path) -> None:
    outside = own_state.parent / f"outside-{secrets.token_hex(4)}"
    outside.mkdir()
    (outside / "kept").touch()
    async with docker_provider(own_state) as provider, await provider.create(spec()) as box:
        await provider.destroy(box.ref)
        root = own_state / "sandboxes" / box.ref.id
        root.symlink_to(outside)
        assert provider.workspaces.remove(box.ref.id, workspace=True) == []
        assert not root.is_symlink() and os.listdir(outside) == ["kept"]
    shutil.rmtree(outside)
