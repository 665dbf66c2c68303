"""The host's side of a workspace: who owns what, what is never touched, and the proof that both sides see one tree."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kinfold.errors import ConfigError, PathError, StartFailed
from kinfold.sandbox.docker import workspaces
from kinfold.sandbox.docker.proof import prove_workspace
from kinfold.sandbox.docker.quota import Size
from kinfold.sandbox.docker.workspaces import Making, Mapping, Workspaces
from kinfold.sandbox.sandbox import Sandbox

ID = "sbx_00000000000000a1"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")


def making(**fields: Any) -> Making:
    """A wish with the defaults of `create`."""
    base: dict[str, Any] = {
        "id": ID,
        "given": None,
        "copy_from": None,
        "user": None,
        "mapping": Mapping(),
        "size": Size(bytes=1 << 20, inodes=256),
    }
    return Making(**(base | fields))


def mode(path: Path) -> int:
    """Permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


@as_root
@pytest.mark.parametrize(
    ("fields", "owner"),
    [
        ({}, (1000, 1000)),
        ({"user": (1234, 5678)}, (1234, 5678)),
        ({"mapping": Mapping(base=(231072, 231072))}, (232072, 232072)),
    ],
)
def test_root_gives_what_it_makes_to_the_agent(tmp_path: Path, fields: Any, owner: tuple[int, int]) -> None:
    layout = Workspaces(tmp_path).make(making(**fields))
    for path in (layout.workspace, layout.home):
        assert (path.stat().st_uid, path.stat().st_gid) == owner
    assert (mode(layout.root), mode(layout.workspace), mode(layout.home)) == (0o700, 0o755, 0o700)
    assert (layout.dial.stat().st_uid, mode(layout.dial)) == (0, 0o755)


@as_root
@pytest.mark.parametrize(("owner", "agent"), [(1500, 1500), (0, 1000), (65534, 1000)])
def test_the_home_goes_to_whoever_will_be_the_agent_of_a_given_workspace(
    tmp_path: Path, owner: int, agent: int
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    os.chown(given, owner, owner)
    layout = Workspaces(tmp_path / "state").make(making(given=str(given)))
    assert layout.home.stat().st_uid == agent
    assert given.stat().st_uid == owner
    assert os.listdir(layout.home.parent) == ["home"]


def test_who_cannot_give_away_opens_what_only_it_can_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Mapping, "can_give", lambda self: False)
    rootless = Workspaces(tmp_path).make(making(mapping=Mapping(rootless=True)))
    assert (mode(rootless.workspace), mode(rootless.home), mode(rootless.root)) == (0o777, 0o777, 0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 1234)
    own = Workspaces(tmp_path / "b").layout(ID)
    monkeypatch.setattr(workspaces, "private_dir", lambda path: path.mkdir(parents=True, exist_ok=True))
    assert Workspaces(tmp_path / "b").make(making()) == own
    assert (mode(own.workspace), mode(own.home)) == (0o755, 0o700)


def test_a_copy_is_made_before_any_container_and_leaves_the_original_alone(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / ".kinfold").mkdir(parents=True)
    (source / "a").write_text("1")
    layout = Workspaces(tmp_path / "state").make(making(copy_from=str(source)))
    (layout.workspace / "a").write_text("2")
    assert os.listdir(layout.workspace) == ["a"]
    assert (source / "a").read_text() == "1"


def test_removing_keeps_the_workspace_until_it_is_asked_for(tmp_path: Path) -> None:
    state = Workspaces(tmp_path)
    layout = state.make(making())
    (layout.workspace / "result").write_text("x")
    assert state.remove(ID, workspace=False) == []
    assert os.listdir(layout.root) == ["disk"]
    assert os.listdir(layout.workspace.parent) == ["workspace"]
    assert state.remove(ID, workspace=True) == []
    assert state.remove(ID, workspace=True) == []
    assert state.ids() == []


def test_a_link_in_a_sandboxs_place_is_removed_and_not_followed(tmp_path: Path) -> None:
    state = Workspaces(tmp_path / "state")
    layout = state.make(making())
    state.remove(ID, workspace=True)
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "disk" / "home").mkdir(parents=True)
    layout.root.symlink_to(tmp_path / "precious")
    state.remove(ID, workspace=False)
    state.remove(ID, workspace=True)
    assert os.listdir(tmp_path / "precious" / "disk") == ["home"]
    assert not layout.root.is_symlink()


def test_an_instance_has_one_id_for_ever(tmp_path: Path) -> None:
    assert Workspaces(tmp_path).instance() == Workspaces(tmp_path).instance()
    assert Workspaces(tmp_path).instance() != Workspaces(tmp_path / "other").instance()


def test_a_disk_that_is_full_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(ConfigError, match="No space left") as caught:
        Workspaces(tmp_path).make(making())
    assert caught.value.hint


def test_scratch_goes_when_it_is_empty_and_stays_when_it_is_not(tmp_path: Path) -> None:
    workspaces.write_marker(str(tmp_path), "marker", b"x")
    assert workspaces.remove_scratch(str(tmp_path)) == []
    assert os.listdir(tmp_path) == [".kinfold"]
    workspaces.remove_marker(str(tmp_path), "marker")
    workspaces.remove_scratch(str(tmp_path))
    workspaces.remove_scratch(str(tmp_path))
    assert os.listdir(tmp_path) == []


def test_a_link_in_the_scratchs_place_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    given = tmp_path / "given"
    given.mkdir()
    (given / ".kinfold").symlink_to(tmp_path / "outside")
    with pytest.raises(ConfigError, match=r"\.kinfold is not a directory"):
        workspaces.write_marker(str(given), "marker", b"x")
    workspaces.remove_scratch(str(given))
    assert os.listdir(tmp_path / "outside") == []
    assert (given / ".kinfold").is_symlink()


class Elsewhere:
    """A sandbox whose workspace is another tree than the host's."""

    agent_uid = 1000
    controls = frozenset({"workspace_writable"})

    def __init__(self, seen: bytes | PathError) -> None:
        self.seen = seen

    async def read(self, path: str) -> bytes:
        """What the container finds at the marker's place."""
        if isinstance(self.seen, PathError):
            raise self.seen
        return self.seen


@pytest.mark.anyio
@pytest.mark.parametrize("seen", [b"another marker", PathError("not_found", "x")])
async def test_a_container_that_sees_another_tree_is_refused_with_the_likely_cause(
    tmp_path: Path, seen: bytes | PathError
) -> None:
    with pytest.raises(StartFailed) as caught:
        await prove_workspace(cast(Sandbox, Elsewhere(seen)), tmp_path)
    assert str(tmp_path) in caught.value.message
    assert "another machine" in caught.value.hint
    assert "in a container" in caught.value.hint
    assert list(tmp_path.rglob("marker-*")) == []


@pytest.mark.anyio
async def test_a_workspace_that_the_agent_cannot_enter_names_both_ways_out(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        await prove_workspace(cast(Sandbox, Elsewhere(PathError("permission_denied", "x"))), tmp_path)
    assert f"chown -R 1000 {tmp_path}" in caught.value.hint
    assert "--copy" in caught.value.hint


@pytest.mark.anyio
async def test_a_workspace_that_the_agent_can_only_read_is_refused(tmp_path: Path) -> None:
    async def read(path: str) -> bytes:
        return (tmp_path / path).read_bytes()

    sandbox = SimpleNamespace(agent_uid=1000, controls=frozenset(), read=read)
    with pytest.raises(ConfigError, match=r"cannot be written by the agent \(uid 1000\)"):
        await prove_workspace(cast(Sandbox, sandbox), tmp_path)
