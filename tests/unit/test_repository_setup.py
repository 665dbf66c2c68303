"""The repository's own machinery: make's commands, and set-up on machines that lack something."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLAIN_TOOLS = ("bash", "cat", "cut", "dirname", "env", "mktemp", "rm", "sha256sum", "uname")


@pytest.fixture
def bare_path(tmp_path: Path) -> Path:
    """A PATH with a shell and little else: no compiler, no Python, no apt, no sudo, and nobody is root."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in PLAIN_TOOLS:
        found = shutil.which(name)
        assert found, name
        (folder / name).symlink_to(found)
    add_program(folder, "id", 'if [ "$1" = -u ]; then echo 1000; else echo somebody; fi')
    return folder


def add_program(folder: Path, name: str, script: str) -> None:
    """Put a shell script on the bare PATH."""
    (folder / name).write_text(f"#!{shutil.which('bash')}\n{script}\n")
    (folder / name).chmod(0o755)


def run_script(folder: Path, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a script of the repository with only that PATH."""
    bash = shutil.which("bash")
    assert bash
    return subprocess.run(
        [bash, *command],
        cwd=ROOT,
        env={"PATH": str(folder), "HOME": str(folder), **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_make_help_lists_every_command() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for target in phony.group(1).split():
        assert f"make {target} " in shown, target


def test_make_refuses_a_platform_package(tmp_path: Path) -> None:
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "platform").mkdir()
    (tmp_path / "platform" / "__init__.py").touch()
    done = subprocess.run(["make", "help"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "platform/__init__.py must not exist" in done.stderr


def test_without_root_or_sudo_the_one_apt_line_is_printed(bare_path: Path) -> None:
    add_program(bare_path, "apt-get", "exit 1")
    done = run_script(bare_path, "scripts/setup", "python")
    assert done.returncode == 2
    packages = "gcc libc6-dev make python3 python3-venv"
    assert done.stderr.splitlines()[-1] == f"hint: sudo apt-get install -y {packages}"


def test_on_another_distribution_the_packages_are_named(bare_path: Path) -> None:
    done = run_script(bare_path, "scripts/setup", "python")
    assert done.returncode == 2
    assert "gcc libc6-dev make python3 python3-venv" in done.stderr


def test_an_unknown_step_is_refused_with_the_usage(bare_path: Path) -> None:
    done = run_script(bare_path, "scripts/setup", "nonsense")
    assert done.returncode == 2
    assert "there is no step 'nonsense'" in done.stderr


def test_an_engine_named_by_docker_host_is_never_replaced(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "scripts/engine", "start"],
        cwd=_with_this_python(tmp_path),
        env={**os.environ, "DOCKER_HOST": f"unix://{tmp_path}/nobody.sock", "KINFOLD_STATE": str(tmp_path / "state")},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "DOCKER_HOST" in done.stderr
    assert not (tmp_path / "state").exists()


def test_stopping_ends_only_the_process_that_was_started(tmp_path: Path) -> None:
    """The noted pid belongs to another process by now: its start time differs, so it lives on."""
    state = tmp_path / "state"
    state.mkdir()
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as bystander:
        (state / "dockerd.started").write_text(f"{bystander.pid} 1\n")
        subprocess.run(
            ["bash", "scripts/engine", "stop"], cwd=ROOT, env={**os.environ, "KINFOLD_STATE": str(state)}, check=True
        )
        assert bystander.poll() is None
        since = _start_time(bystander.pid)
        (state / "dockerd.started").write_text(f"{bystander.pid} {since}\n")
        subprocess.run(
            ["bash", "scripts/engine", "stop"], cwd=ROOT, env={**os.environ, "KINFOLD_STATE": str(state)}, check=True
        )
        assert bystander.wait(timeout=10) != 0
    assert not (state / "dockerd.started").exists()


def _start_time(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def _with_this_python(folder: Path) -> Path:
    """A copy of the scripts whose `.venv` is the running interpreter's."""
    tree = folder / "tree"
    shutil.copytree(ROOT / "scripts", tree / "scripts", ignore=shutil.ignore_patterns("bench", "__pycache__"))
    (tree / ".venv" / "bin").mkdir(parents=True)
    starter = tree / ".venv" / "bin" / "python"
    starter.write_text(f'#!{shutil.which("bash")}\nexec {sys.executable} "$@"\n')
    starter.chmod(0o755)
    return tree
