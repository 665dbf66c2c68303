"""The command line builds only what is named, and afterwards is whole again."""

from __future__ import annotations

import sys

import pytest

from kinfold.cli.app import app, run_app


def commands() -> dict[str, int]:
    return {
        str(group.name): len(group.typer_instance.registered_commands)
        for group in app.registered_groups
        if group.typer_instance
    }


@pytest.mark.parametrize(
    ("words", "shown", "code"),
    [
        (["--help"], "sandbox", 0),
        (["tasks", "--help"], "artifacts", 0),
        (["agents", "check", "--help"], "PATH", 0),
        (["nonsense"], "No such command 'nonsense'", 2),
        (["sandbox", "nonsense"], "No such command 'nonsense'", 2),
    ],
)
def test_every_command_is_found_and_none_is_lost(
    words: list[str], shown: str, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = commands()
    monkeypatch.setattr(sys, "argv", ["kinfold", *words])
    with pytest.raises(SystemExit) as ended:
        run_app()
    assert ended.value.code == code
    assert shown.lower() in "".join(capsys.readouterr()).lower()
    assert commands() == before
    assert all(before.values())
