"""The demo's staging and its own judgement."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kinfold.cli import demo
from kinfold.errors import ConfigError


def test_the_staged_tree_is_a_copy_without_hidden_entries_and_with_a_failing_test(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / ".git").mkdir(parents=True)
    (source / "node_modules").mkdir()
    (source / "a.txt").write_text("a")
    (source / "link").symlink_to("/etc/passwd")
    target = tmp_path / "target"
    target.mkdir()
    demo.stage(source, target)
    assert sorted(path.name for path in (target / "tree").iterdir()) == ["a.txt", "link"]
    assert (target / "tree/link").is_symlink()
    ended = subprocess.run([sys.executable, "-B", "-m", "unittest"], cwd=target / "planted", capture_output=True)
    assert ended.returncode == 1
    assert b"FAILED (failures=1)" in ended.stderr


def test_a_file_as_the_tree_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(ConfigError, match="is not a directory"):
        demo.stage(file, tmp_path)


def test_a_tree_over_the_bound_is_refused_before_it_is_copied(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    with (source / "sparse").open("wb") as file:
        file.truncate(demo.MAX_TREE_BYTES + 1)
    with pytest.raises(ConfigError, match="more than the demo's"):
        demo.stage(source, tmp_path / "target")
    assert not (tmp_path / "target").exists()
