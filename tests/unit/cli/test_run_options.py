"""What `kinfold run` makes of its options, before there is any container."""

from __future__ import annotations

from pathlib import Path

import anyio
import pytest
from typer.testing import CliRunner

from kinfold.cli import run as run_module
from kinfold.cli.app import app
from kinfold.cli.run import RunOptions, load_definitions
from kinfold.config import Settings
from kinfold.errors import ConfigError


def options(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> RunOptions:
    """What the command was asked to do."""
    seen: list[RunOptions] = []

    def note(options: RunOptions) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(run_module, "run_command", note)
    ended = CliRunner().invoke(app, ["run", "x", *arguments])
    assert ended.exit_code == 0, ended.output
    return seen[0]


def test_constraints_are_appended_and_a_dialect_is_named_only_where_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = options(monkeypatch)
    assert (plain.append_constraints, plain.dialect) == (False, None)
    asked = options(monkeypatch, "--append-constraints", "--agents", "a.md", "--dialect", "opencode")
    assert (asked.append_constraints, asked.dialect) == (True, "opencode")


def test_a_named_dialect_decides_how_the_agents_files_are_read(tmp_path: Path) -> None:
    file = tmp_path / "scout.md"
    file.write_text("---\ndescription: Looks around.\n---\nLook.\n")
    settings = Settings(agents=str(file))
    (named_by_its_file,) = anyio.run(load_definitions, settings, "opencode")
    assert named_by_its_file.type == "scout"
    with pytest.raises(ConfigError, match="name"):
        anyio.run(load_definitions, settings, "claude")


@pytest.mark.parametrize("agents", [None, "none", "store"])
def test_a_dialect_without_files_or_an_unknown_one_is_the_operators_error(agents: str | None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--dialect gemini without files"):
        anyio.run(load_definitions, Settings(agents=agents), "gemini")
    (tmp_path / "a.md").write_text("---\nname: a\ndescription: A.\n---\nx\n")
    with pytest.raises(ConfigError, match="there is no dialect 'gpt'"):
        anyio.run(load_definitions, Settings(agents=str(tmp_path)), "gpt")
