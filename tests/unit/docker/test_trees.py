"""Removing and copying hostile trees by directory descriptors."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kinfold.errors import ConfigError
from kinfold.sandbox.docker import trees
from kinfold.sandbox.docker.trees import DIRECTORY, CopyRules, copy_tree, opened, remove_tree

RULES = CopyRules(owner=None, extra_mode=0, max_bytes=1 << 20, max_entries=10_000)


def _deep(base: Path, levels: int) -> None:
    """A chain of directories that no path could name, with a file at its end."""
    with opened(str(base), DIRECTORY) as start:
        here = os.dup(start)
        for _ in range(levels):
            os.mkdir("directory-with-a-name", dir_fd=here)
            below = os.open("directory-with-a-name", DIRECTORY, dir_fd=here)
            os.close(here)
            here = below
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.close(here)


def _remove(base: Path, name: str) -> list[str]:
    with opened(str(base), DIRECTORY) as parent:
        return remove_tree(parent, name)


def _copy(source: Path, target: Path, rules: CopyRules = RULES) -> trees.Copied:
    with opened(str(source), DIRECTORY) as origin, opened(str(target), DIRECTORY) as copy:
        return copy_tree(origin, copy, rules)


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    before = set(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= len(before)


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[Path]:
    """A directory in memory where there is one: thousands of directories are slow on a busy disk."""
    base = Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else tmp_path
    with tempfile.TemporaryDirectory(dir=base) as made:
        yield Path(made)


@pytest.mark.usefixtures("few_descriptors")
def test_a_tree_three_thousand_levels_deep_is_removed(memory: Path) -> None:
    (memory / "tree").mkdir()
    _deep(memory / "tree", 3000)
    assert _remove(memory, "tree") == []
    assert os.listdir(memory) == []


def test_a_tree_with_closed_directories_and_odd_names_is_removed(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / "b" / "c").mkdir(parents=True)
    (tree / "a" / "b" / "c" / "file").write_text("x")
    for name in (b"\xff\xfe", b"new\nline", b"-rf", b"\x1b[31m", b"n" * 255):
        os.close(os.open(os.fsencode(tree) + b"/" + name, os.O_CREAT | os.O_WRONLY))
    os.mkfifo(tree / "fifo")
    (tree / "a" / "b" / "c").chmod(0o000)
    (tree / "a" / "b").chmod(0o000)
    (tree / "a").chmod(0o000)
    assert _remove(tmp_path, "tree") == []
    assert os.listdir(tmp_path) == []


def test_removing_follows_no_link(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("x")
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "link").symlink_to(outside)
    (tree / "sub" / "link").symlink_to(outside)
    assert _remove(tmp_path, "tree") == []
    (tmp_path / "tree").symlink_to(outside)
    assert _remove(tmp_path, "tree") == []
    assert (outside / "precious").read_text() == "x"
    assert os.listdir(tmp_path) == ["outside"]


def test_removing_what_is_gone_is_no_error(tmp_path: Path) -> None:
    assert _remove(tmp_path, "nothing") == []


def test_what_will_not_go_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "stuck").write_text("x")
    (tmp_path / "tree" / "loose").write_text("x")
    unlink = os.unlink

    def refusing(path: str, *, dir_fd: int | None = None) -> None:
        if path == "stuck":
            raise PermissionError(1, "Operation not permitted")
        unlink(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", refusing)
    left = _remove(tmp_path, "tree")
    assert any("stuck: Operation not permitted" in entry for entry in left)
    assert os.listdir(tmp_path / "tree") == ["stuck"]


@pytest.mark.usefixtures("few_descriptors")
def test_a_copy_keeps_links_and_modes_and_leaves_special_files_out(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "sub").mkdir(parents=True)
    target.mkdir()
    (source / "run.sh").write_text("#!/bin/sh\n")
    (source / "run.sh").chmod(0o4755)
    (source / "sub" / "data").write_bytes(b"\0" * 5000)
    (source / "out").symlink_to("/etc/passwd")
    (source / "in").symlink_to("sub/data")
    os.mkfifo(source / "fifo")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(source / "socket"))
    (source / ".kinfold").mkdir()
    rules = CopyRules(owner=None, extra_mode=0, max_bytes=1 << 20, max_entries=10_000, skip=frozenset({".kinfold"}))
    done = _copy(source, target, rules)
    assert (done.entries, done.bytes, done.skipped) == (7, 5010, 2)
    assert sorted(os.listdir(target)) == ["in", "out", "run.sh", "sub"]
    assert os.readlink(target / "out") == "/etc/passwd"
    assert (target / "in").read_bytes() == b"\0" * 5000
    assert stat.S_IMODE((target / "run.sh").stat().st_mode) == 0o755
    assert (target / "sub" / "data").stat().st_mtime_ns == (source / "sub" / "data").stat().st_mtime_ns


def test_a_copy_stops_at_its_byte_budget(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    (tmp_path / "source" / "big").write_bytes(b"x" * 2000)
    rules = CopyRules(owner=None, extra_mode=0, max_bytes=1999, max_entries=10_000)
    with pytest.raises(ConfigError, match="larger than the sandbox's disk limit of 1999 bytes"):
        _copy(tmp_path / "source", tmp_path / "target", rules)


@pytest.mark.usefixtures("few_descriptors")
def test_a_copy_that_is_too_deep_is_refused_not_cut(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    _deep(tmp_path / "source", trees.MAX_DEPTH + 1)
    with pytest.raises(ConfigError, match="deeper than 200 levels"):
        _copy(tmp_path / "source", tmp_path / "target")
    _remove(tmp_path, "source")
    _remove(tmp_path, "target")


def test_a_file_that_becomes_a_link_between_stat_and_open_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.mkdir()
    target.mkdir()
    (tmp_path / "secret").write_text("secret")
    (source / "file").write_text("harmless")
    found = os.stat(source / "file")
    (source / "file").unlink()
    (source / "file").symlink_to(tmp_path / "secret")
    real = os.stat

    def stale(path: str, *, dir_fd: int | None = None, follow_symlinks: bool = True) -> os.stat_result:
        return found if path == "file" else real(path, dir_fd=dir_fd, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(os, "stat", stale)
    with pytest.raises(ConfigError, match="cannot copy 'file'"):
        _copy(source, target)
    assert os.listdir(target) == []
