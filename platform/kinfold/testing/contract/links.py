"""Links: inside they work, out of the workspace they lead nowhere, whichever way they are used."""

from __future__ import annotations

import pytest

from kinfold.errors import PathError
from kinfold.sandbox.base import FileStat
from kinfold.sandbox.sandbox import Sandbox

_TREE = """
mkdir -p real/sub; echo inside > real/file
ln -s real/file rel; ln -s real dir; ln -s dir/sub/../file chain; ln -s gone dangling; ln -s loop loop
ln -s /etc/passwd etc; ln -s ../../../../../../etc/passwd climb; ln -s / top; ln -s /proc/self/root magic
ln -s /workspace/{folder}/real/file abs
"""


@pytest.fixture
async def tree(sandbox: Sandbox, folder: str) -> str:
    """A directory with every kind of link."""
    result = await sandbox.exec(_TREE.replace("{folder}", folder), cwd=folder)
    assert result.exit_code == 0, result.stderr_text
    return folder


async def _reason(call: object) -> str:
    try:
        await call  # type: ignore[misc]
    except PathError as error:
        return error.reason
    return ""


@pytest.mark.parametrize("name", ["rel", "dir/file", "chain", "abs"])
async def test_a_link_inside_is_followed(sandbox: Sandbox, tree: str, name: str) -> None:
    assert await sandbox.read(f"{tree}/{name}") == b"inside\n"


@pytest.mark.parametrize("name", ["etc", "climb", "top/etc/passwd", "magic/etc/passwd"])
async def test_a_link_that_leaves_is_an_escape_for_every_request(sandbox: Sandbox, tree: str, name: str) -> None:
    path = f"{tree}/{name}"
    assert await _reason(sandbox.read(path)) == "path_escape"
    assert await _reason(sandbox.write(path, b"x")) == "path_escape"
    assert await _reason(sandbox.write(f"{path}/x", b"x")) == "path_escape"
    assert await _reason(sandbox.make_dir(f"{path}/x")) == "path_escape"
    assert await _reason(sandbox.exec(["true"], cwd=path)) == "path_escape"
    [claim] = await sandbox.stat([path], claim=True)
    assert isinstance(claim, PathError)
    assert claim.reason == "path_escape"


@pytest.mark.parametrize("name", ["top", "magic"])
async def test_a_directory_that_is_a_link_out_is_not_listed(sandbox: Sandbox, tree: str, name: str) -> None:
    assert await _reason(sandbox.list(f"{tree}/{name}")) in ("path_escape", "not_a_directory")
    assert await _reason(sandbox.list(f"{tree}/{name}/etc")) == "path_escape"
    assert await _reason(sandbox.remove(f"{tree}/{name}/tmp", recursive=True)) == "path_escape"
    assert await _reason(sandbox.rename(f"{tree}/rel", f"{tree}/{name}/tmp/x")) == "path_escape"


async def test_looking_and_removing_mean_the_link_itself(sandbox: Sandbox, tree: str) -> None:
    [stat] = await sandbox.stat([f"{tree}/etc"])
    assert isinstance(stat, FileStat)
    assert (stat.type, stat.target) == ("symlink", "/etc/passwd")
    for name in ("etc", "climb", "top", "magic", "dangling", "loop"):
        assert await sandbox.remove(f"{tree}/{name}") == 1
    assert await sandbox.remove(f"{tree}/dir", recursive=True) == 1
    assert await sandbox.read(f"{tree}/real/file") == b"inside\n"


async def test_dangling_links_and_loops_are_errors_and_make_nothing(sandbox: Sandbox, tree: str) -> None:
    assert await _reason(sandbox.read(f"{tree}/dangling")) == "not_found"
    assert await _reason(sandbox.write(f"{tree}/dangling", b"x")) in ("not_found", "path_escape")
    assert isinstance((await sandbox.stat([f"{tree}/gone"]))[0], PathError)
    assert await _reason(sandbox.read(f"{tree}/loop")) == "path_escape"
    assert await _reason(sandbox.write(f"{tree}/loop", b"x")) == "path_escape"


async def test_writing_through_a_link_replaces_its_target(sandbox: Sandbox, tree: str) -> None:
    await sandbox.write(f"{tree}/rel", b"new")
    assert await sandbox.read(f"{tree}/real/file") == b"new"
    [stat] = await sandbox.stat([f"{tree}/rel"])
    assert isinstance(stat, FileStat)
    assert stat.type == "symlink"


async def test_links_are_made_only_to_the_inside(sandbox: Sandbox, tree: str) -> None:
    made = await sandbox.symlink("real/file", f"{tree}/mine")
    assert (made.type, made.target) == ("symlink", "real/file")
    for target in ("/etc/passwd", "../../../etc", "/workspace-evil"):
        assert await _reason(sandbox.symlink(target, f"{tree}/other")) == "path_escape"
    assert await _reason(sandbox.symlink("x", f"{tree}/mine")) == "conflict"
    assert await _reason(sandbox.symlink("", f"{tree}/other")) == "invalid"


@pytest.mark.parametrize("name", ["fifo", "socket"])
async def test_a_special_file_never_makes_anybody_wait(sandbox: Sandbox, tree: str, name: str) -> None:
    make = "import os, socket; os.mkfifo('fifo'); socket.socket(socket.AF_UNIX).bind('socket')"
    assert (await sandbox.exec(["python3", "-c", make], cwd=tree)).exit_code == 0
    assert await _reason(sandbox.read(f"{tree}/{name}")) == "not_regular"
    assert await _reason(sandbox.write(f"{tree}/{name}", b"x")) == "not_regular"
    [claim] = await sandbox.stat([f"{tree}/{name}"], claim=True)
    assert isinstance(claim, PathError)
    assert claim.reason == "not_regular"
