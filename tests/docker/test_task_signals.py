"""Ctrl-C and SIGTERM at any moment leave no container, and say how the task ended."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import docker
import pytest

import kinfold
from kinfold.sandbox.docker.provider import DockerProvider

PROGRAM = textwrap.dedent(
    """
    import sys
    import kinfold
    from kinfold.models.scripted import ScriptedCall, ScriptedModel, ScriptedReply

    def reply(request):
        if request.run_kind == "main":
            call = {"subagent_type": "general", "description": "sleep", "prompt": "sleep"}
            return ScriptedReply(calls=(ScriptedCall(tool="task", input=call),))
        return ScriptedReply(calls=(ScriptedCall(tool="bash", input={"command": "echo up; sleep 3141"}),))

    result = kinfold.run_sync("sleep", model=ScriptedModel(reply))
    print(result.ended_by, flush=True)
    """
)


INTERRUPTED = (1, -signal.SIGINT)
"""How an interpreter ends after a KeyboardInterrupt that nobody caught; which one, depends on its threads."""


@pytest.fixture
def engine() -> Iterator[Any]:
    client = docker.from_env(timeout=30)
    yield client
    client.close()


@pytest.fixture
def program(own_state: Path) -> Iterator[subprocess.Popen[str]]:
    environ = {**os.environ, "PYTHONPATH": str(Path(kinfold.__file__).parents[1])}
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    )
    yield process
    if process.poll() is None:
        process.kill()
    process.communicate()


def events_of(state: Path) -> list[dict[str, Any]]:
    """All stored events, as another process reads them at any moment."""
    if not has_begun(state):
        return []
    with closing(sqlite3.connect(state / "kinfold.db")) as store:
        return [json.loads(event) for (event,) in store.execute("SELECT event FROM events ORDER BY task_id, seq")]


def has_begun(state: Path) -> bool:
    """Whether the task has its row, which it gets just before its sandbox."""
    with (
        suppress(sqlite3.OperationalError),
        closing(sqlite3.connect(f"file:{state}/kinfold.db?mode=ro", uri=True)) as store,
    ):
        return bool(store.execute("SELECT count(*) FROM tasks").fetchone()[0])
    return False


def until(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found


def containers(engine: Any, state: Path) -> list[Any]:
    """What this test's program left, running or not, its helpers too: all that carry its state directory's instance."""
    instance = DockerProvider(state_dir=state).instance
    found: list[Any] = engine.api.containers(all=True, filters={"label": [f"kinfold.instance={instance}"]})
    return found


@pytest.mark.parametrize(("signum", "says"), [(signal.SIGTERM, "interrupted"), (signal.SIGINT, "KeyboardInterrupt")])
def test_a_signal_while_a_command_runs_leaves_no_container(
    signum: signal.Signals, says: str, program: subprocess.Popen[str], own_state: Path, engine: Any
) -> None:
    until(lambda: program.poll() is not None or any(e["type"] == "tool_output" for e in events_of(own_state)))
    assert program.poll() is None, program.communicate()
    assert len(containers(engine, own_state)) == 1
    program.send_signal(signum)
    out, err = program.communicate(timeout=30)
    assert says in (out if signum == signal.SIGTERM else err)
    assert containers(engine, own_state) == []
    events = events_of(own_state)
    endings = [event["endedBy"] for event in events if event["type"] == "run_ended"]
    assert endings == (["interrupted"] * 2 if signum == signal.SIGTERM else ["cancelled"] * 2)
    assert [event["type"] for event in events].count("task_ended") == 1
    assert program.returncode in ((0,) if signum == signal.SIGTERM else INTERRUPTED)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("delay", [0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8])
def test_a_signal_while_the_sandbox_opens_leaves_no_container(
    signum: signal.Signals, delay: float, program: subprocess.Popen[str], own_state: Path, engine: Any
) -> None:
    until(lambda: has_begun(own_state))
    time.sleep(delay)
    program.send_signal(signum)
    out, err = program.communicate(timeout=60)
    if signum == signal.SIGTERM:  # before the first step the process ends; after it the task does
        assert (program.returncode, out) in ((143, ""), (0, "interrupted\n")), err
    else:
        assert program.returncode in INTERRUPTED, err
        assert "KeyboardInterrupt" in err
    assert containers(engine, own_state) == []
