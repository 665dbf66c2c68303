"""Exit codes and the two lines of an error."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kinfold.cli.closing import show_result
from kinfold.cli.ending import exit_code_of, exit_code_of_ending, exit_with, printable, say_error
from kinfold.cli.tree import TreeState
from kinfold.errors import (
    ConfigError,
    EngineUnavailable,
    ImageMissing,
    KinfoldError,
    ModelError,
    NotFound,
    SandboxLost,
)
from kinfold.messages import STATUS_OF, Artifact, SkippedPath
from kinfold.tasks.result import TaskResult


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (NotFound("x"), 2),
        (EngineUnavailable("x"), 3),
        (ImageMissing("x"), 3),
        (SandboxLost("x"), 3),
        (ModelError("x", kind="authentication"), 4),
        (KinfoldError("x"), 1),
    ],
)
def test_every_kind_of_error_has_its_exit_code(error: KinfoldError, code: int) -> None:
    assert exit_code_of(error) == code


def test_every_ending_has_its_exit_code() -> None:
    codes = {ended_by: exit_code_of_ending(status, ended_by) for ended_by, status in STATUS_OF.items()}
    zero = {ended_by for ended_by, code in codes.items() if code == 0}
    assert zero == {"complete", "text", "stop_condition"}
    assert codes["sandbox_lost"] == 3
    assert codes["model_error"] == 4
    assert codes["timeout"] == 1


def test_an_expected_error_is_two_lines_also_out_of_a_task_group(capsys: pytest.CaptureFixture[str]) -> None:
    group = ExceptionGroup("unhandled", [ConfigError("no such directory", hint="make it first")])
    with pytest.raises(SystemExit) as ended:
        exit_with(group)
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: no such directory\nhint: make it first\n"


def test_a_bug_keeps_its_traceback() -> None:
    with pytest.raises(ZeroDivisionError):
        exit_with(ZeroDivisionError())


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert printable("a\x1b]0;x\x07\u202eb\nc\td") == "a\\x1b]0;x\\x07\\x202eb\nc\td"


def test_a_line_break_in_a_name_makes_no_line_of_ours(capsys: pytest.CaptureFixture[str]) -> None:
    result = TaskResult(
        task_id="task_1",
        status="completed",
        ended_by="complete",
        summary="two\nlines",
        artifacts=(Artifact(path="/workspace/a\nb", size=1, fs_type="file", change="created"),),
        skipped=(SkippedPath(path="x\nfiles: /forged", reason="missing"),),
        warnings=("w\nerror: forged",),
        steps=1,
        workspace="/true",
    )
    show_result(result, TreeState())
    shown = capsys.readouterr()
    assert "two\nlines\n" in shown.out
    assert "/workspace/a\\nb" in shown.out
    begins = [line.partition(":")[0] for line in shown.err.splitlines()]
    assert begins == [
        "skipped",
        "warning",
        "completed (complete), 1 steps, 0 tokens, cost unknown, task task_1",
        "files",
    ]
    say_error("not\nhint: forged")
    assert capsys.readouterr().err == "error: not\n  hint: forged\n"


def test_help_needs_neither_pydantic_nor_rich() -> None:
    program = "import sys, kinfold.cli.app; print(sorted({'pydantic', 'rich', 'docker', 'anyio'} & set(sys.modules)))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
