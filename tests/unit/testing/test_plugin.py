"""The plugin of pytest: what it costs who does not use it, and what it says where there is no engine."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.testing.projects import ROOT, installed, run_pytest

from kinfold.errors import ConfigError
from kinfold.testing.in_container import RunTask, scripted_model
from kinfold.testing.plugin import _skip_or_fail


def test_who_does_not_use_the_plugin_imports_nothing_but_the_plugin() -> None:
    code = (
        "import sys, pytest; before = set(sys.modules); import kinfold.testing.plugin; "
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["kinfold", "kinfold.testing", "kinfold.testing.plugin"]


@pytest.mark.parametrize(
    ("ci", "asked", "required"),
    [
        (None, None, False), ("", None, False), ("false", None, False), ("true", None, True), ("1", None, True),
        (None, "1", True), (None, "0", False), ("true", "0", False), ("true", "", True),
    ],
)  # fmt: skip
def test_no_engine_is_a_failure_in_ci_or_where_it_was_asked_for(
    ci: str | None, asked: str | None, required: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("CI", ci), ("KINFOLD_REQUIRE_DOCKER", asked)):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    ending, way_out = (pytest.fail.Exception, "=0 lets") if required else (pytest.skip.Exception, "=1 makes")
    with pytest.raises(ending, match=f"(?s)nobody answers; start it.*KINFOLD_REQUIRE_DOCKER{way_out}"):
        _skip_or_fail("nobody answers; start it")


def test_without_an_engine_the_tests_that_need_one_are_skipped_and_counted(tmp_path: Path) -> None:
    project = Path(shutil.copytree(ROOT / "tests" / "example_project", tmp_path / "project"))
    (project / "tests" / "test_other.py").write_text("def test_of_something_else():\n    pass\n")
    site = installed(tmp_path)
    nowhere = {"DOCKER_HOST": f"unix://{tmp_path}/no.sock"}
    skipped = run_pytest(project, site, env=nowhere)
    assert skipped.returncode == 0, skipped.stdout + skipped.stderr
    assert "1 passed, 2 skipped" in skipped.stdout
    assert "kinfold: no container engine: " in skipped.stdout
    assert "(KINFOLD_REQUIRE_DOCKER=1 makes this a failure)" in skipped.stdout
    assert "2 tests of agents did NOT run" in skipped.stdout


def test_a_script_that_is_wrong_says_where() -> None:
    with pytest.raises(ConfigError, match=r"the test's script: main\.0\.calls\.0\.tool") as caught:
        scripted_model(main=[{"calls": [{"input": {}}]}])
    assert "subagents" in caught.value.hint


@pytest.mark.parametrize("name", ["/etc/passwd", "../up", "a/../../b", ""])
def test_a_file_outside_of_the_workspace_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="is no path in a workspace"):
        RunTask(state_dir=tmp_path, folder=tmp_path, image="x")(
            "x", model=scripted_model(main=["a"]), files={name: "x"}
        )
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.anyio
async def test_in_an_asynchronous_test_the_plain_call_names_the_other_one(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"await kinfold_task\.run"):
        RunTask(state_dir=tmp_path, folder=tmp_path, image="x")("x", model=scripted_model(main=["a"]))
