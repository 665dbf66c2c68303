"""A task whose process was killed goes on in another: in the same container, nothing lost, nothing twice unreported."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.docker.provider_support import IMAGE, containers_of

from kinfold.sandbox.docker.provider import DockerProvider
from kinfold.tasks.store.door import FILE_NAME

PROGRAM = str(Path(__file__).with_name("resumable.py"))
KINFOLD = str(Path(sys.executable).with_name("kinfold"))


def start(state: Path, *task: str) -> subprocess.Popen[bytes]:
    """The program, in a process of its own."""
    command = [sys.executable, PROGRAM, str(state), IMAGE, *task]
    # Unbuffered: `communicate` does not know what `readline` has read ahead.
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)


def lines_of(printed: bytes) -> list[dict[str, Any]]:
    """Its whole lines."""
    return [json.loads(line) for line in printed.splitlines(keepends=True) if line.endswith(b"\n")]


def to_the_end(process: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    """What it printed, its result last."""
    printed, errors = process.communicate(timeout=100)
    assert process.returncode == 0, errors.decode()
    return lines_of(printed)


def killed(state: Path, delay: float, *task: str) -> list[dict[str, Any]]:
    """What it printed until so many seconds after its sandbox was there."""
    process = start(state, *task)
    assert process.stdout is not None
    first = b""
    while b'"ready"' not in first:
        line = process.stdout.readline()
        assert line, process.communicate()[1].decode()
        first += line
    time.sleep(delay)
    process.send_signal(signal.SIGKILL)
    return lines_of(first + process.communicate(timeout=30)[0])


def delivered(result: dict[str, Any]) -> set[tuple[str, str]]:
    """Path and digest of each artifact."""
    return {(artifact["path"], artifact["sha256"]) for artifact in result["artifacts"]}


def check_log(workspace: Path, result: dict[str, Any], events: list[dict[str, Any]]) -> None:
    """No command ran twice but one whose outcome was told as unknown."""
    ran = Counter((workspace / "log").read_text().split())
    told = sum(event["type"] == "warning" and event["code"] == "interrupted_call" for event in events)
    assert set(ran) == {"first", "join", "left-a", "left-b", "left-c", "right-a"}
    assert sum(count - 1 for count in ran.values()) <= told, ran
    ends = Counter(event["runId"] for event in events if event["type"] == "run_ended")
    begins = Counter(event["runId"] for event in events if event["type"] == "run_started")
    assert ends == begins == Counter(dict.fromkeys(begins, 1)), "each run begins and ends once"
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert len(result["records"]) == 2


@pytest.mark.threat("F01")
@pytest.mark.parametrize(
    "count", [3, pytest.param(30, marks=[pytest.mark.slow, pytest.mark.timeout(900)])], ids=["three", "thirty"]
)
def test_a_task_killed_at_any_moment_goes_on_and_delivers_what_it_would_have_delivered(
    own_state: Path, count: int
) -> None:
    seed = int(os.environ.get("KINFOLD_TEST_SEED") or random.randrange(1 << 32))
    logging.getLogger(__name__).warning("KINFOLD_TEST_SEED=%d", seed)
    chance = random.Random(seed)
    lasts, whole = _undisturbed(own_state)
    assert whole["status"] == "completed"
    resumed = late = unknown = 0
    while resumed < count:
        assert late <= count, "nearly every kill came too late"
        seen = killed(own_state, chance.random() * lasts)
        task = seen[0]["taskId"]
        if chance.random() < 0.3 and is_open(own_state, task):  # one that goes on may be killed too
            killed(own_state, chance.random() * lasts / 2, task)
        if not is_open(own_state, task):
            late += 1
            continue
        resumed += 1
        *events, result = to_the_end(start(own_state, task))
        assert (result["status"], result["endedBy"]) == ("completed", "complete"), (seed, resumed)
        assert delivered(result) == delivered(whole), f"KINFOLD_TEST_SEED={seed}, number {resumed}"
        assert len({event["sandboxId"] for event in events if "sandboxId" in event}) == 1, "another container"
        check_log(Path(result["workspace"]), result, events)
        unknown += sum(event["type"] == "warning" and event["code"] == "interrupted_call" for event in events)
    logging.getLogger(__name__).warning("%d resumed, %d calls told as unknown, %d too late", resumed, unknown, late)
    environ = {**os.environ, "KINFOLD_STATE": str(own_state)}
    subprocess.run([KINFOLD, "reap"], check=True, timeout=100, env=environ)
    assert containers_of(DockerProvider(state_dir=own_state).instance) == []


def _undisturbed(state: Path) -> tuple[float, dict[str, Any]]:
    """How long a task runs that nobody kills, and its result."""
    began = ended = 0.0
    told: dict[str, Any] = {}
    with start(state) as process:
        for line in process.stdout or ():
            told = json.loads(line)
            began = time.monotonic() if told["type"] == "sandbox_changed" and not began else began
            ended = time.monotonic() if told["type"] == "task_ended" else ended
    return ended - began, told


def is_open(state: Path, task: str) -> bool:
    """Whether it was cut before its end."""
    with closing(sqlite3.connect(state / FILE_NAME)) as store:
        ((status,),) = store.execute("SELECT status FROM tasks WHERE id = ?", (task,)).fetchall()
    return bool(status == "running")
