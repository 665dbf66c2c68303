"""A stranger's project that has kinfold installed: its own pytest process, with nothing of this repository's tests."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[3]
OWN = ("KINFOLD_STATE", "KINFOLD_REQUIRE_DOCKER", "CI", "PYTEST_ADDOPTS", "PYTEST_PLUGINS", "PYTEST_CURRENT_TEST")


def installed(folder: Path) -> Path:
    """A directory for PYTHONPATH that makes the entry points of pyproject.toml those of an installed package."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    site = folder / "site"
    info = site / "kinfold_as_declared-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: kinfold-as-declared\nVersion: 0\n")
    lines = [f"[{group}]\n" + "".join(f"{k} = {v}\n" for k, v in named.items()) for group, named in declared.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return site


def run_pytest(
    project: Path, site: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the project's tests in a process of their own."""
    environment = {name: value for name, value in os.environ.items() if name not in OWN}
    path = os.pathsep.join(filter(None, [str(site), str(ROOT / "platform"), environment.get("PYTHONPATH", "")]))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rA", *arguments]
    return subprocess.run(
        command,
        cwd=project,
        env={**environment, "PYTHONPATH": path, **(env or {})},
        capture_output=True,
        text=True,
        timeout=110,
    )
