"""kinfold's plugin of pytest: tests of agents, in a real container, without paying for a model.

    def test_the_fixer_fixes(kinfold_task, scripted_model):
        script = scripted_model(main=[
            {"calls": [{"tool": "bash", "input": {"command": "sed -i s/4/5/ sum.txt"}}]},
            {"calls": [{"tool": "complete", "input": {"summary": "mended", "paths": ["sum.txt"]}}]},
        ])
        result = kinfold_task("Mend sum.txt", model=script, files={"sum.txt": "2 + 3 = 4"})
        assert result.ended_by == "complete"
        assert (kinfold_task.out / "sum.txt").read_text() == "2 + 3 = 5"

The plugin is there as soon as kinfold is installed, and costs who does not use it the import of this one module. The
fixtures: `kinfold_task` (`in_container.RunTask`), `kinfold_sandbox` (`in_container.OpenSandbox`), `scripted_model`
(`in_container.scripted_model`). The ini option `kinfold_image` names the image, `kinfold/base` where it is not set.

Where no container engine answers, a test that asks for a container *fails* under CI (`CI` is set, as all usual services
do) and under KINFOLD_REQUIRE_DOCKER=1, for nothing would have been tested; elsewhere, and under
KINFOLD_REQUIRE_DOCKER=0, it is skipped. Both name the reason and the way out, and a last line counts the skipped.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kinfold.models.scripted import ScriptedModel
    from kinfold.testing.in_container import OpenSandbox, RunTask

REQUIRE = "KINFOLD_REQUIRE_DOCKER"
NO_ENGINE = "kinfold: no container engine"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The ini option `kinfold_image`."""
    parser.addini("kinfold_image", "the image of kinfold's sandboxes", default="kinfold/base")


@pytest.fixture(scope="session")
def kinfold_state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """kinfold's state directory of this test run: what it measures of the engine once serves every test."""
    return tmp_path_factory.mktemp("kinfold")


@pytest.fixture(scope="session")
def kinfold_engine(kinfold_state: Path) -> None:
    """Skips or fails, as this module's docstring says, where no container engine answers."""
    from kinfold.testing.in_container import engine_problem

    if (problem := engine_problem(kinfold_state)) is not None:
        _skip_or_fail(problem)


@pytest.fixture
def kinfold_task(kinfold_engine: None, kinfold_state: Path, tmp_path: Path, pytestconfig: pytest.Config) -> RunTask:
    """Runs parent tasks in containers: `kinfold_task(prompt, model=…)`, or `await kinfold_task.run(…)`."""
    from kinfold.testing.in_container import RunTask

    return RunTask(state_dir=kinfold_state, folder=tmp_path, image=pytestconfig.getini("kinfold_image"))


@pytest.fixture
def kinfold_sandbox(
    kinfold_engine: None, kinfold_state: Path, tmp_path: Path, pytestconfig: pytest.Config
) -> OpenSandbox:
    """Opens sandboxes: `async with kinfold_sandbox() as sandbox`, in an asynchronous test."""
    from kinfold.testing.in_container import OpenSandbox

    return OpenSandbox(state_dir=kinfold_state, folder=tmp_path, image=pytestconfig.getini("kinfold_image"))


@pytest.fixture
def scripted_model() -> Callable[..., ScriptedModel]:
    """Makes models that say what a script says: `scripted_model(main=[…], subagents={label: […]})`, or of a file."""
    from kinfold.testing.in_container import scripted_model as made

    return made


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in the last lines how much was not tested for want of an engine."""
    skipped = [report for report in terminalreporter.stats.get("skipped", ()) if NO_ENGINE in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} tests of agents did NOT run: no container engine answers", red=True
        )


def _skip_or_fail(problem: str) -> None:
    if _is_required():
        pytest.fail(f"{NO_ENGINE}: {problem}\n{REQUIRE}=0 lets these tests be skipped", pytrace=False)
    pytest.skip(f"{NO_ENGINE}: {problem} ({REQUIRE}=1 makes this a failure)")


def _is_required() -> bool:
    asked = os.environ.get(REQUIRE, "")
    return asked not in ("", "0") or (asked == "" and os.environ.get("CI", "") not in ("", "0", "false"))
