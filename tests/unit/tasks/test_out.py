"""Artifacts copied out: whole, checked, beneath the directory, or not at all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.unit.agent.stage import MemorySandbox, sha256

from kinfold.errors import ConfigError
from kinfold.messages import Artifact, FsType
from kinfold.tasks.out import OutDirectory

pytestmark = pytest.mark.anyio


def artifact(path: str, digest: str | None, fs_type: FsType = "file") -> Artifact:
    return Artifact(path=path, size=1, fs_type=fs_type, sha256=digest)


@pytest.fixture
def sandbox() -> MemorySandbox:
    made = MemorySandbox()
    made.files = {"/workspace/sub/a.txt": b"A", "/workspace/d/x": b"X", "/workspace/d/y/z": b"Z"}
    return made


@pytest.fixture
def out(tmp_path: Path) -> OutDirectory:
    return OutDirectory(tmp_path / "new" / "out")


async def test_a_file_arrives_under_its_path_and_replaces_an_old_one(sandbox: MemorySandbox, out: OutDirectory) -> None:
    (out.path / "sub").mkdir()
    (out.path / "sub" / "a.txt").write_text("old")
    copied = await out.take([artifact("/workspace/sub/a.txt", sha256(b"A"))], sandbox)
    assert (copied.files, copied.problems) == ([str(out.path / "sub/a.txt")], [])
    assert (out.path / "sub" / "a.txt").read_bytes() == b"A"
    assert [path.name for path in (out.path / "sub").iterdir()] == ["a.txt"]


async def test_a_directory_arrives_whole_or_not_at_all(sandbox: MemorySandbox, out: OutDirectory) -> None:
    lines = b"".join(b"%s\0%s\n" % (name, sha256(data).encode()) for name, data in ((b"x", b"X"), (b"y/z", b"Z")))
    delivered = artifact("/workspace/d", hashlib.sha256(lines).hexdigest(), "directory")
    copied = await out.take([delivered], sandbox)
    assert copied.problems == []
    assert (out.path / "d" / "y" / "z").read_bytes() == b"Z"
    sandbox.files["/workspace/d/x"] = b"changed"
    (problem,) = (await out.take([delivered], sandbox)).problems
    assert "changed since it was delivered" in problem
    assert (out.path / "d" / "x").read_bytes() == b"X"


async def test_content_that_is_not_what_was_delivered_is_not_written(sandbox: MemorySandbox, out: OutDirectory) -> None:
    copied = await out.take([artifact("/workspace/sub/a.txt", sha256(b"other"))], sandbox)
    assert copied.files == []
    assert "not what was delivered" in copied.problems[0]
    assert list((out.path / "sub").iterdir()) == []


@pytest.mark.parametrize(
    "path", ["/workspace/../etc/x", "/workspace/\ud800", "/workspace/a//b", "/etc/passwd", "/workspace-evil/a", "a"]
)
async def test_a_path_that_is_not_plainly_beneath_the_workspace_goes_nowhere(
    path: str, sandbox: MemorySandbox, out: OutDirectory
) -> None:
    copied = await out.take([artifact(path, None)], sandbox)
    assert copied.files == []
    assert len(copied.problems) == 1
    assert list(out.path.iterdir()) == []


async def test_a_link_on_this_side_is_never_followed(sandbox: MemorySandbox, out: OutDirectory, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (out.path / "sub").symlink_to(elsewhere)
    copied = await out.take([artifact("/workspace/sub/a.txt", sha256(b"A"))], sandbox)
    assert len(copied.problems) == 1
    assert list(elsewhere.iterdir()) == []
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (out.path / "sub").unlink()
    (out.path / "sub").mkdir()
    (out.path / "sub" / "a.txt").symlink_to(victim)
    assert (await out.take([artifact("/workspace/sub/a.txt", sha256(b"A"))], sandbox)).problems == []
    assert victim.read_text() == "mine"
    assert not (out.path / "sub" / "a.txt").is_symlink()


async def test_a_directory_in_the_way_is_a_problem_and_stays(sandbox: MemorySandbox, out: OutDirectory) -> None:
    (out.path / "sub" / "a.txt").mkdir(parents=True)
    copied = await out.take([artifact("/workspace/sub/a.txt", sha256(b"A"))], sandbox)
    assert len(copied.problems) == 1
    assert [path.name for path in (out.path / "sub").iterdir()] == ["a.txt"]


async def test_one_missing_artifact_does_not_stop_the_others(sandbox: MemorySandbox, out: OutDirectory) -> None:
    wanted = [artifact("/workspace/gone", None), artifact("/workspace/sub/a.txt", sha256(b"A"))]
    copied = await out.take(wanted, sandbox)
    assert (len(copied.files), len(copied.problems)) == (1, 1)


async def test_a_directory_made_for_nothing_goes_again(sandbox: MemorySandbox, tmp_path: Path) -> None:
    (tmp_path / "given").mkdir()
    for path in (tmp_path / "new" / "deep", tmp_path / "given"):
        OutDirectory(path).close()
    assert [entry.name for entry in tmp_path.iterdir()] == ["given"]
    sandbox.files["/workspace/a"] = b"A"
    filled = OutDirectory(tmp_path / "new" / "deep")
    await filled.take([artifact("/workspace/a", None)], sandbox)
    filled.close()
    assert (tmp_path / "new" / "deep" / "a").read_bytes() == b"A"


def test_an_output_directory_that_cannot_serve_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot be the output directory"):
        OutDirectory(tmp_path / "file" / "deeper")
    with pytest.raises(ConfigError, match="inside the workspace"):
        OutDirectory(tmp_path / "ws" / "out", workspace=tmp_path / "ws")
