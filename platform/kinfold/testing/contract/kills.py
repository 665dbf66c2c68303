"""Ends by force: the whole tree is dead when the call returns, and a fresh look from outside says so too."""

from __future__ import annotations

import time

import anyio
import pytest

from kinfold.sandbox.base import ExecRequest
from kinfold.sandbox.sandbox import Sandbox
from kinfold.testing.contract.looking import DAEMONS, alive, eventually

_BOMB = """
import os, signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
os.write(1, b"ready\\n")
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


async def test_a_timeout_keeps_what_was_printed(sandbox: Sandbox) -> None:
    started = time.monotonic()
    result = await sandbox.exec("echo before; sleep 60; echo after", timeout=0.5, grace=0.2)
    assert (result.ended_by, result.exit_code, result.stdout) == ("timed_out", None, b"before\n")
    assert 0.4 < result.duration < 20
    assert time.monotonic() - started < 20


async def test_a_timeout_kills_what_left_its_session_and_ignores_signals(sandbox: Sandbox, token: str) -> None:
    command = ["python3", "-c", DAEMONS, "5"]
    result = await sandbox.exec(command, env={"KF_TOKEN": token}, timeout=2.0, grace=0.2)
    left = await alive(sandbox, token)
    assert left == [], f"the timeout left {left}"
    assert result.ended_by == "timed_out"
    assert result.stdout == b"ready\n" * 5, "the daemons were not even there"
    assert result.survivors == 0
    assert result.killed >= 5


async def test_a_program_that_obeys_is_given_its_grace(sandbox: Sandbox) -> None:
    script = "trap 'echo bye; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    result = await sandbox.exec(script, timeout=0.5, grace=10)
    assert result.ended_by == "timed_out"
    assert result.stdout == b"up\nbye\n"


async def test_silence_ends_a_program_where_that_was_asked_for(sandbox: Sandbox) -> None:
    quiet = await sandbox.exec("echo a; sleep 60", idle_timeout=0.4, timeout=50, grace=0.2)
    assert (quiet.ended_by, quiet.stdout) == ("idle_timed_out", b"a\n")
    busy = await sandbox.exec("for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.1; done", idle_timeout=0.6, timeout=50)
    assert busy.ended_by == "exited"


async def test_a_cancelled_caller_leaves_nothing_alive(sandbox: Sandbox, token: str) -> None:
    async with anyio.create_task_group() as group:

        async def call() -> None:
            await sandbox.exec(["python3", "-c", DAEMONS, "5"], env={"KF_TOKEN": token}, grace=0.1)

        group.start_soon(call)
        assert await eventually(lambda: _count(sandbox, token, 6))
        group.cancel_scope.cancel()
    assert await alive(sandbox, token) == []
    assert (await sandbox.exec(["echo", "well"])).stdout == b"well\n"


async def _count(sandbox: Sandbox, token: str, count: int) -> bool:
    return len(await alive(sandbox, token)) >= count


async def test_killing_a_process_is_proved(sandbox: Sandbox, token: str) -> None:
    request = ExecRequest(command=["python3", "-c", DAEMONS, "5"], env={"KF_TOKEN": token}, stream=True)
    process = await sandbox.start(request)
    assert await eventually(lambda: _count(sandbox, token, 6))
    end = await process.kill(grace=0.1)
    assert end.survivors == 0
    assert end.killed >= 5
    assert await alive(sandbox, token) == []
    assert (await process.wait()).ended_by == "cancelled"
    assert (await process.kill()).survivors == 0, "a second kill is no error"


async def test_a_signal_reaches_the_leader(sandbox: Sandbox) -> None:
    script = "trap 'echo usr1; exit 7' USR1; echo up; while :; do sleep 0.02; done"
    process = await sandbox.start(ExecRequest(command=script, stream=True, timeout=60))
    pieces = []
    async for piece in process.output():
        pieces.append(piece.data)
        if piece.data == b"up\n":
            assert await process.signal(10) == 1
    assert b"".join(pieces) == b"up\nusr1\n"
    assert (await process.wait()).exit_code == 7
    assert await process.signal(10) == 0


async def test_a_kill_spares_the_neighbours(sandbox: Sandbox, token: str) -> None:
    neighbour = await sandbox.start(ExecRequest(command=["cat"], stdin_open=True, timeout=60))
    await sandbox.exec(["python3", "-c", DAEMONS, "3"], env={"KF_TOKEN": token}, timeout=1, grace=0.1)
    await neighbour.write(b"still here")
    await neighbour.close_stdin()
    assert (await neighbour.wait()).stdout == b"still here"


async def test_fifty_daemons_are_dead_at_once(sandbox: Sandbox, token: str) -> None:
    command = ["python3", "-c", DAEMONS, "50"]
    process = await sandbox.start(ExecRequest(command=command, env={"KF_TOKEN": token}, stream=True))
    assert await eventually(lambda: _count(sandbox, token, 51))
    started = time.monotonic()
    assert (await process.kill(grace=0)).survivors == 0
    assert time.monotonic() - started < 5
    assert await alive(sandbox, token) == []


@pytest.mark.needs_pid_namespace
@pytest.mark.needs_cgroup
async def test_a_fork_bomb_ends_at_its_timeout(own_sandbox: Sandbox, token: str) -> None:
    started = time.monotonic()
    result = await own_sandbox.exec(["python3", "-c", _BOMB], env={"KF_TOKEN": token}, timeout=2, grace=0.2)
    assert (result.ended_by, result.survivors) == ("timed_out", 0)
    assert time.monotonic() - started < 30
    assert await alive(own_sandbox, token) == []
    assert (await own_sandbox.exec(["echo", "well"])).stdout == b"well\n"


@pytest.mark.needs_own_uid
@pytest.mark.needs_pid_namespace
async def test_an_agent_that_kills_all_it_can_kills_only_its_own(own_sandbox: Sandbox) -> None:
    if own_sandbox.agent_uid == 0 or "pid1" not in own_sandbox.controls:
        pytest.fail("refusing to send a signal to everybody: this sandbox is not separate from the host")
    generation = own_sandbox.generation
    await own_sandbox.exec("kill -9 -1", timeout=20)
    assert (await own_sandbox.exec(["echo", "well"])).stdout == b"well\n"
    assert own_sandbox.generation == generation
