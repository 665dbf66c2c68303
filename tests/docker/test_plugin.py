"""The example project: a stranger's tests of a stranger's agent, run by their own pytest."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from tests.unit.testing.projects import ROOT, installed, run_pytest


def test_the_example_project_tests_its_agent_in_a_real_container(tmp_path: Path) -> None:
    project = Path(shutil.copytree(ROOT / "tests" / "example_project", tmp_path / "project"))
    done = run_pytest(
        project, installed(tmp_path), f"--basetemp={tmp_path / 'temp'}", env={"KINFOLD_REQUIRE_DOCKER": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"\b2 passed in ", done.stdout)
    assert "conftest" not in done.stdout


def test_the_examples_first_test_is_what_its_readers_will_copy() -> None:
    """Ten lines of code, as promised."""
    source = (ROOT / "tests" / "example_project" / "tests" / "test_fixer.py").read_text()
    first = source[source.index("def test_") : source.index("@pytest.fixture")].strip()
    assert len(first.splitlines()) <= 13
