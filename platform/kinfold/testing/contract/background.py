"""What a program leaves running: the call returns, the output is kept, the owner's end kills it."""

from __future__ import annotations

import time

import pytest

from kinfold.errors import NotFound
from kinfold.sandbox.sandbox import Sandbox
from kinfold.testing.contract.looking import alive, eventually


async def test_a_server_left_in_the_background_returns_at_once(sandbox: Sandbox, token: str) -> None:
    started = time.monotonic()
    result = await sandbox.exec("sleep 300 & echo started", env={"KF_TOKEN": token}, owner=token)
    assert time.monotonic() - started < 30
    assert (result.ended_by, result.exit_code, result.stdout) == ("exited", 0, b"started\n")
    assert len(result.background_pids) == 1
    assert len(await alive(sandbox, token)) == 1
    [end] = await sandbox.end(token, grace=0.5)
    assert (end.exec_id, end.survivors) == (result.id, 0)
    assert await alive(sandbox, token) == []


async def test_what_it_prints_later_is_kept(sandbox: Sandbox, token: str, folder: str) -> None:
    script = f"(while [ ! -e {folder}/go ]; do sleep 0.02; done; echo later; sleep 300) & echo first"
    result = await sandbox.exec(script, owner=token)
    assert result.stdout == b"first\n"
    await sandbox.write(f"{folder}/go", b"")

    async def printed() -> bool:
        return (await sandbox.kept(result.id)).data == b"first\nlater\n"

    assert await eventually(printed)
    kept = await sandbox.kept(result.id, offset=6)
    assert (kept.data, kept.state, kept.total) == (b"later\n", "background", 12)
    await sandbox.end(token, grace=0)
    assert (await sandbox.kept(result.id)).state == "ended"


async def test_an_owners_end_kills_only_its_own(sandbox: Sandbox, token: str) -> None:
    mine = [await sandbox.exec("sleep 300 &", owner=token, env={"KF_TOKEN": token}) for _ in range(3)]
    other = await sandbox.exec("sleep 300 &", owner=f"{token}x", env={"KF_TOKEN": f"{token}x"})
    ends = await sandbox.end(token, grace=0.2)
    assert {end.exec_id for end in ends} >= {result.id for result in mine}
    assert await alive(sandbox, token) == []
    assert len(await alive(sandbox, f"{token}x")) == 1
    states = {info.id: info.state for info in await sandbox.execs()}
    assert states[other.id] == "background"
    await sandbox.end(f"{token}x", grace=0)


async def test_ending_an_owner_of_nothing_is_no_error(sandbox: Sandbox, token: str) -> None:
    assert await sandbox.end(token) == []


async def test_output_of_an_unknown_exec_is_not_found(sandbox: Sandbox) -> None:
    for exec_id in ("exec_00000000000000ff", "exec_", "nonsense", ""):
        with pytest.raises(NotFound):
            await sandbox.kept(exec_id)
        with pytest.raises(NotFound):
            await sandbox.attach(exec_id)
