"""What an operator's machine does wrong while kinfold runs: full disks, closed doors, a Ctrl-C at any moment."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

AS_ROOT = [] if os.geteuid() == 0 else ["sudo", "-n", "--"]
KINFOLD = str(Path(sys.executable).with_name("kinfold"))
WRITE_MUCH = """
main:
  - calls:
      - {tool: write_file, input: {path: big.txt, content: "BIG"}}
  - calls: [{tool: bash, input: {command: "ls -A . | grep -v kinfold | wc -l"}}]
  - text: ${result.1.text} / ${result.2.text}
"""


@contextlib.contextmanager
def small_disk(place: Path, size: str) -> Iterator[Path]:
    """A file system of its own of this size that everybody may write to."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0777", "tmpfs", str(place)]
    subprocess.run([*AS_ROOT, *mount], check=True)
    try:
        yield place
    finally:
        subprocess.run([*AS_ROOT, "umount", str(place)], check=True)


def fill(path: Path) -> None:
    """Write to a file until its disk is full."""
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 1024) == 1024:
            pass


def containers(state: str) -> str:
    """Containers of the instance that lives in this state directory."""
    instance = Path(state) / "instance"
    if not instance.exists():
        return ""
    command = ["docker", "ps", "-aq", "--filter", f"label=kinfold.instance={instance.read_text().strip()}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The installed command, to its end."""
    return subprocess.run(
        [KINFOLD, *arguments], capture_output=True, text=True, timeout=110, env={**os.environ, **env}, check=False
    )


@pytest.fixture
def model(tmp_path: Path) -> str:
    """A script that needs the sandbox for a moment."""
    path = tmp_path / "model.yaml"
    path.write_text("main:\n  - calls: [{tool: bash, input: {command: 'sleep 0.5; echo done'}}]\n  - all done\n")
    return f"scripted:{path}"


def test_a_full_state_directory_is_one_error_before_any_container_stays(tmp_path: Path, model: str) -> None:
    with small_disk(tmp_path / "small", "64k") as disk:
        state = disk / "state"
        state.mkdir(mode=0o700)
        fill(disk / "filler")
        ended = run("run", "p", "--model", model, KINFOLD_STATE=str(state))
        assert ended.returncode in (2, 3), ended.stderr
        assert "error: " in ended.stderr
        assert "hint: " in ended.stderr
        assert "No space left" in ended.stderr or "full" in ended.stderr
        assert "Traceback" not in ended.stderr
        assert containers(str(state)) == ""


def test_a_full_workspace_is_a_failed_tool_result_and_leaves_no_half_file(tmp_path: Path) -> None:
    script = tmp_path / "much.yaml"
    script.write_text(WRITE_MUCH.replace("BIG", "x" * 300_000))
    with small_disk(tmp_path / "small", "128k") as disk:
        ended = run("run", "p", "--model", f"scripted:{script}", "--workspace", str(disk), "--json")
        assert ended.returncode == 0, ended.stderr
        assert "no space left" in ended.stdout.lower()
        left = [path.name for path in disk.iterdir() if path.name != ".kinfold"]
        assert left == []


def test_an_engine_that_denies_permission_says_what_to_do(tmp_path: Path, model: str) -> None:
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        path.chmod(0)
        # Root passes any door: it goes without that right.
        humbly = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
        ended = subprocess.run(
            [*humbly, KINFOLD, "run", "p", "--model", model],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, "DOCKER_HOST": f"unix://{path}"},
            check=False,
        )
    assert ended.returncode == 3, ended.stderr
    assert "permission" in ended.stderr.lower()
    assert "hint: " in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("moment", [0.1, 0.3, 0.6, 0.9, 1.2, 1.5, 1.8, 2.2, 2.8, 3.5])
def test_ctrl_c_at_any_moment_leaves_no_container_and_no_traceback(moment: float, model: str) -> None:
    process = subprocess.Popen(
        [KINFOLD, "run", "p", "--model", model], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        process.wait(moment)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    if "in main" in errors or "Traceback" not in errors:  # else the interpreter had not yet come to our code
        assert process.returncode in (130, 0), errors
        assert "Traceback" not in errors
    assert containers(os.environ["KINFOLD_STATE"]) == ""
