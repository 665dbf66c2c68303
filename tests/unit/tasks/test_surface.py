"""What `import kinfold` gives, and what it costs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import kinfold


def said_by(code: str) -> str:
    """What a fresh interpreter writes on standard error."""
    environ = {**os.environ, "PYTHONPATH": str(Path(kinfold.__file__).parents[1])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=environ)
    return done.stderr.strip()


def test_everything_that_is_named_exists() -> None:
    for name in kinfold.__all__:
        assert getattr(kinfold, name) is not None
    assert {"run", "run_sync", "ParentTask", "TaskResult", "RunLimits", "SubagentDefinition"} <= set(kinfold.__all__)


def test_importing_kinfold_imports_nothing_heavy() -> None:
    code = (
        "import sys; import kinfold; import kinfold.errors, kinfold.config; "
        "heavy = {'docker', 'anthropic', 'rich', 'sqlalchemy', 'typer'} & set(sys.modules); sys.exit(str(heavy or ''))"
    )
    assert said_by(code) == ""


def test_using_the_front_door_imports_no_engine_and_no_sdk() -> None:
    code = (
        "import sys; from kinfold import run, ParentTask, Tool, SandboxSpec; "
        "heavy = {'docker', 'anthropic', 'rich', 'sqlalchemy', 'typer'} & set(sys.modules); sys.exit(str(heavy or ''))"
    )
    assert said_by(code) == ""
