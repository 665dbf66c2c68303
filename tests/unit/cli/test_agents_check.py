"""`kinfold agents check`: all that a directory holds, its cost, and the exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kinfold.cli.agents_check import check_command, own_tokens
from kinfold.definitions import load
from kinfold.errors import ConfigError


def agent(path: Path, front: str, body: str = "Work.") -> Path:
    path.write_text(f"---\n{front}\n---\n{body}\n")
    return path


def run(path: Path, capsys: pytest.CaptureFixture[str], **options: object) -> tuple[int, str]:
    code = check_command(path, **{"dialect": None, "model": None, "as_json": False, **options})  # type: ignore[arg-type]
    return code, capsys.readouterr().out


def test_a_good_directory_is_listed_with_model_tools_limits_and_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent(tmp_path / "a.md", "name: a\ndescription: A.\ntools: Read, Bash\nmodel: haiku\nmaxTurns: 7\ncolor: red")
    agent(tmp_path / "b.md", "name: b\ndescription: B.")
    code, out = run(tmp_path, capsys, model="opus")
    assert code == 0
    first, second, total = out.splitlines()
    assert first.startswith(
        f"ok\t{tmp_path}/a.md:1\ta (claude); model anthropic:claude-haiku-5-5; tools read_file,bash"
    )
    assert "7 steps" in first and "ignored: color (line 7)" in first
    assert "model anthropic:claude-opus-5-5" in second
    assert total.startswith("2 ok, 0 skipped, 0 error; the main agent reads ")


def test_an_error_is_told_with_line_and_reason_and_the_exit_code_is_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    agent(tmp_path / "a.md", "name: a\ndescription: A.\nmodel: gpt-x")
    agent(tmp_path / "b.md", "name: b\ndescription: B.\ntools: Raed")
    agent(tmp_path / "c.md", "name: c\ndescription: C.")
    agent(tmp_path / "d.md", "name: d\ndescription: D.\nmodel: claude-haiku-4-5\neffort: low")
    code, out = run(tmp_path, capsys)
    assert code == 1
    assert f"error\t{tmp_path}/a.md:4\t'model': unknown model 'gpt-x'" in out
    assert f"error\t{tmp_path}/b.md:4\t'tools' names the unknown tool 'Raed'; did you mean 'Read'?" in out
    assert f"error\t{tmp_path}/d.md:5\t'effort': 'low' is no effort of anthropic:claude-haiku-4-5" in out
    assert "1 ok, 0 skipped, 3 error" in out


def test_the_json_holds_what_the_lines_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = agent(tmp_path / "a.md", "name: a\ndescription: A.\nhooks: []")
    code, out = run(path, capsys, as_json=True)
    (found,) = json.loads(out)
    assert code == 0
    assert (found["status"], found["type"], found["model"], found["maxSteps"]) == ("ok", "a", "inherit", 30)
    assert found["ignoredFields"] == [{"name": "hooks", "line": 4}]
    assert found["ownTokens"] == own_tokens(load(path)[0])


def test_the_tokens_follow_the_words_that_are_sent(tmp_path: Path) -> None:
    short = own_tokens(load(agent(tmp_path / "a.md", "name: a\ndescription: A.", "x" * 400))[0])
    long = own_tokens(load(agent(tmp_path / "a.md", "name: a\ndescription: A.", "x" * 4_400))[0])
    fewer = own_tokens(load(agent(tmp_path / "a.md", "name: a\ndescription: A.\ntools: Read", "x" * 400))[0])
    assert long - short == 1_000
    assert fewer < short


def test_a_wrong_dialect_and_a_missing_path_are_errors_of_the_operator(tmp_path: Path) -> None:
    agent(tmp_path / "a.md", "name: a\ndescription: A.")
    with pytest.raises(ConfigError, match="there is no dialect 'gpt'"):
        check_command(tmp_path, dialect="gpt", model=None, as_json=False)
    with pytest.raises(ConfigError, match="no such file"):
        check_command(tmp_path / "x", dialect=None, model=None, as_json=False)
