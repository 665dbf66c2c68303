"""OPERATING.md is true: its commands run, its options and controls are those that there are."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from tests.docker.test_cli_by_hand import kinfold

from kinfold.sandbox.base import Limits
from kinfold.sandbox.docker import floors, probe

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "platform" / "OPERATING.md").read_text()
SESSIONS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("session", SESSIONS)
def test_the_pages_session_runs_as_it_stands(session: str, own_state: Path) -> None:
    env = {"KINFOLD_STATE": str(own_state)}
    printed = ""
    for line in session.splitlines():
        program, *arguments = shlex.split(line)
        assert program == "kinfold"
        done = kinfold(*arguments, env=env)
        assert done.returncode == 0, (line, done.stderr)
        printed += done.stdout.decode()
    first, note, stats, *top = printed.splitlines()
    assert note == "hello"
    assert stats.startswith(f"{first}\ttrial\trunning\t")
    assert any(line.startswith("exec_") and line.endswith("\tsleep") for line in top)


def test_the_page_names_every_control_that_doctor_prints_and_no_other() -> None:
    seen = probe.Seen(values={}, supervisor=frozenset())
    printed = {control.name for control in probe.judge(seen, Limits(), "runc", "socket")}
    table = PAGE.partition("| control | it means |")[2].partition("\n\n")[0]
    cells = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    assert {name for cell in cells for name in re.findall(r"`(\w+)`", cell)} == printed


def test_the_page_says_the_defaults_that_there_are() -> None:
    limits = Limits()
    words = f"`cpus` ({limits.cpus:g})", f"`pids` ({limits.pids})", "262,144"
    assert all(word in PAGE for word in words)
    assert limits.disk_inodes == 262_144
    assert (limits.memory_bytes >> 30, limits.disk_bytes >> 30, limits.file_bytes >> 30) == (2, 5, 2)
    assert len(floors.FLOORS) == 3
