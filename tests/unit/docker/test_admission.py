"""What an operator can get wrong is refused with one clear error, before any engine is asked."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kinfold.errors import ConfigError
from kinfold.sandbox.base import GIB, MIB, Limits, SandboxSpec
from kinfold.sandbox.docker.admission import admit, fit_limits, parse_user


def _file(base: Path) -> dict[str, Any]:
    (base / "file").write_text("x")
    return {"workspace": str(base / "file")}


def _link(base: Path) -> dict[str, Any]:
    (base / "real").mkdir()
    (base / "link").symlink_to(base / "real")
    return {"workspace": str(base / "link")}


def _link_with_slash(base: Path) -> dict[str, Any]:
    return {"workspace": _link(base)["workspace"] + "/"}


def _dangling(base: Path) -> dict[str, Any]:
    (base / "link").symlink_to(base / "nowhere")
    return {"workspace": str(base / "link")}


def _state(base: Path) -> dict[str, Any]:
    return {"workspace": str(base / "state")}


def _above_state(base: Path) -> dict[str, Any]:
    return {"workspace": str(base)}


def _in_state(base: Path) -> dict[str, Any]:
    (base / "state" / "records").mkdir()
    return {"workspace": str(base / "state" / "records")}


def _both(base: Path) -> dict[str, Any]:
    return {"workspace": str(base), "copy_from": str(base)}


def _copied_file(base: Path) -> dict[str, Any]:
    return {"copy_from": _file(base)["workspace"]}


def plain(**fields: Any) -> Callable[[Path], dict[str, Any]]:
    """The same fields, wherever the test's directory is."""
    return lambda base: fields


REFUSED: list[tuple[str, Callable[[Path], dict[str, Any]], str, str]] = [
    ("a workspace that is a file", _file, "not a directory", "directory"),
    ("a workspace that is a link", _link, "symbolic link", "name its target"),
    ("a link with a slash behind it", _link_with_slash, "symbolic link", "name its target"),
    ("a workspace that is a dangling link", _dangling, "symbolic link", "target"),
    ("a workspace that does not exist", plain(workspace="/nowhere/at/all"), "does not exist", "mkdir -p"),
    ("the root directory", plain(workspace="/"), "of the system", "your own"),
    ("the root directory by another spelling", plain(workspace="/usr/.."), "of the system", "your own"),
    ("/proc", plain(workspace="/proc/sys"), "of the system", "your own"),
    ("/dev/shm", plain(workspace="/dev/shm"), "of the system", "your own"),
    ("where the engine's socket is", plain(workspace="/run"), "of the system", "your own"),
    ("a NUL byte", plain(workspace="a\0b"), "not a path", "existing"),
    ("an empty workspace", plain(workspace=""), "not a path", "existing"),
    ("kinfold's own state", _state, "own state", "another"),
    ("what holds kinfold's state", _above_state, "own state", "another"),
    ("kinfold's records", _in_state, "own state", "another"),
    ("workspace and copy", _both, "exclude each other", "--copy"),
    ("a copy of a file", _copied_file, "not a directory", "directory"),
    ("a copy of nothing", plain(copy_from=""), "copy_from is empty", "existing"),
    ("the user root", plain(user="0"), "user 0 cannot", "--user"),
    ("the warden", plain(user="65533"), "user 65533 cannot", "--user"),
    ("the overflow uid", plain(user="65534:1000"), "user 65534 cannot", "--user"),
    ("the group root", plain(user="1000:0"), "group 0 cannot", "--user 1000"),
    ("a user's name", plain(user="agent"), "not UID", "1000:1000"),
    ("a uid out of range", plain(user="4294967296"), "cannot be the agent's", "--user"),
    ("an image that reads as an option", plain(image="--privileged"), "not an image name", "--image"),
    ("no image", plain(image=""), "not an image name", "--image"),
    ("a name with a slash", plain(name="a/b"), "not usable", "63"),
    ("a label of ours", plain(labels={"kinfold.instance": "x"}), "not usable", "keys"),
    ("a label over two lines", plain(labels={"a": "x\ny"}), "not usable", "values"),
    ("a variable with an equals sign", plain(env={"A=B": "x"}), "'A=B'", "no '='"),
    ("a secret with a NUL", plain(secrets={"A": "x\0"}), "'A'", "NUL"),
    ("a time to live of nothing", plain(ttl=0.0), "ttl is 0.0", "above 0"),
    ("a negative keep", plain(keep=-1.0), "keep is -1.0", "0 removes"),
    ("a keep that is not a number", plain(keep=float("nan")), "keep is nan", "0 removes"),
    ("a runtime with a space", plain(runtime="runc --debug"), "not a runtime", "runsc"),
]


@pytest.mark.parametrize(("make", "message", "hint"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_a_spec_that_cannot_be_right_is_refused_with_a_hint(
    tmp_path: Path, make: Callable[[Path], dict[str, Any]], message: str, hint: str
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    with pytest.raises(ConfigError) as caught:
        admit(SandboxSpec(**make(tmp_path)), state)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "\n" not in caught.value.hint


def test_a_secret_never_stands_in_a_refusal(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        admit(SandboxSpec(secrets={"TOKEN": "hunter2\0"}), tmp_path)
    assert "hunter2" not in str(caught.value)


def test_links_above_a_workspace_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "real" / "ws").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    admitted = admit(SandboxSpec(workspace=str(tmp_path / "link" / "ws")), tmp_path / "state")
    assert admitted.given == os.path.realpath(tmp_path / "real" / "ws")


def test_an_earlier_made_workspace_can_be_given_again(tmp_path: Path) -> None:
    made = tmp_path / "sandboxes" / "sbx_0123456789abcdef" / "disk" / "workspace"
    made.mkdir(parents=True)
    assert admit(SandboxSpec(workspace=str(made)), tmp_path).given == os.path.realpath(made)


def test_two_specs_are_the_same_when_only_what_travels_per_exec_differs(tmp_path: Path) -> None:
    base = admit(SandboxSpec(name="a"), tmp_path).hash
    assert admit(SandboxSpec(name="b", env={"A": "1"}, secrets={"B": "2"}), tmp_path).hash == base
    assert admit(SandboxSpec(name="a", user="1001"), tmp_path).hash != base


@pytest.mark.parametrize(("text", "ids"), [("1000", (1000, 1000)), ("1000:2000", (1000, 2000)), (None, None)])
def test_a_user_is_a_uid_and_a_gid(text: str | None, ids: tuple[int, int] | None) -> None:
    assert parse_user(text) == ids


def test_default_limits_shrink_to_the_engine_and_the_memory() -> None:
    fitted = fit_limits(Limits(memory_bytes=64 * MIB), cpus=1)
    assert fitted.cpus == 1.0
    assert fitted.tmp_bytes + 2 * fitted.shm_bytes + 2 * MIB <= 32 * MIB


def test_limits_that_were_asked_for_are_refused_rather_than_changed() -> None:
    with pytest.raises(ConfigError, match="the engine has 2"):
        fit_limits(Limits(cpus=64), cpus=2)
    with pytest.raises(ConfigError, match="over half of memory_bytes") as caught:
        fit_limits(Limits(memory_bytes=GIB, tmp_bytes=GIB), cpus=2)
    assert "limits.memory_bytes" in caught.value.hint


def test_the_default_limits_fit_as_they_are() -> None:
    assert fit_limits(Limits(), cpus=2) == Limits()
