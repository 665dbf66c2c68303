"""`kinfold agents add|list|show|remove` by the command line itself."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kinfold.cli.app import app
from kinfold.errors import ConfigError


def kinfold(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["agents", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_definitions_are_added_listed_shown_changed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KINFOLD_STATE", str(tmp_path / "state"))
    file = tmp_path / "scout.md"
    file.write_text("---\nname: scout\ndescription: Looks.\ntools: Read\ncolor: red\n---\nLook well.\n")
    assert kinfold("add", str(file)).startswith("scout\tversion 1\t")
    file.write_text(file.read_text().replace("well", "better"))
    assert kinfold("add", str(tmp_path)).startswith("scout\tversion 2\t")
    assert kinfold("list") == f"scout\t2\tinherit\tread_file\t{file}:1\n"
    assert "ignored: color (line 5)" in kinfold("show", "scout")
    assert json.loads(kinfold("show", "scout", "--version", "1", "--json"))["instructions"] == "Look well."
    assert kinfold("remove", "scout") == "scout\tremoved; tasks that run keep it\n"
    assert kinfold("list") == ""


def test_one_wrong_definition_keeps_all_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINFOLD_STATE", str(tmp_path / "state"))
    agents = tmp_path / "agents"
    agents.mkdir()
    (agents / "a.md").write_text("---\nname: a\ndescription: A.\n---\n")
    (agents / "b.md").write_text("---\nname: b\n---\n")
    with pytest.raises(ConfigError, match=r"b\.md:1: a definition needs 'description'"):
        kinfold("add", str(agents))
    assert kinfold("list") == ""
