"""Records survive crashes, other processes and truncated files, and a dead owner is told from a living one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kinfold.config import state_dir
from kinfold.errors import ConfigError, NotFound, StoreError
from kinfold.sandbox.records import FileRecords, Owner, SandboxRecord, private_dir

ID = "sbx_00000000000000a1"


def record(ident: str = ID, **fields: Any) -> SandboxRecord:
    """A record as `create` writes it."""
    base: dict[str, Any] = {
        "id": ident,
        "provider": "docker",
        "instance": "one",
        "owner": Owner.current(),
        "created_at": 1.0,
    }
    return SandboxRecord(**(base | fields))


@pytest.fixture
def records(tmp_path: Path) -> FileRecords:
    return FileRecords(tmp_path / "records")


@pytest.mark.anyio
async def test_a_truncated_record_is_reported_and_not_trusted(records: FileRecords, tmp_path: Path) -> None:
    await records.intend(record())
    await records.intend(record("sbx_00000000000000a2"))
    path = tmp_path / "records" / f"{ID}.json"
    path.write_text(path.read_text()[:40])
    found = await records.list()
    assert [item.id for item in found.records] == ["sbx_00000000000000a2"]
    assert [item.source for item in found.broken] == [str(path)]
    with pytest.raises(NotFound):
        await records.adopt(record())


@pytest.mark.anyio
async def test_a_record_under_another_ones_name_is_broken(records: FileRecords, tmp_path: Path) -> None:
    await records.intend(record())
    os.rename(tmp_path / "records" / f"{ID}.json", tmp_path / "records" / "sbx_00000000000000b1.json")
    found = await records.list()
    assert found.records == ()
    assert ID in found.broken[0].reason


@pytest.mark.anyio
async def test_records_are_for_their_owner_only(records: FileRecords, tmp_path: Path) -> None:
    await records.intend(record())
    assert (tmp_path / "records").stat().st_mode & 0o077 == 0
    assert (tmp_path / "records" / f"{ID}.json").stat().st_mode & 0o077 == 0


@pytest.mark.anyio
async def test_a_failed_write_leaves_the_old_record(
    records: FileRecords, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await records.intend(record())

    def full(source: str, target: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(StoreError, match="No space") as caught:
        await records.renew(record(), 7.0)
    assert (caught.value.code, caught.value.hint) == ("store_full", "free some disk space")
    monkeypatch.undo()
    assert (await records.list()).records[0].expires_at is None
    assert sorted(os.listdir(tmp_path / "records")) == [".lock", f"{ID}.json"]


def test_this_process_is_alive() -> None:
    assert Owner.current().fate() == "alive"


def test_a_process_that_ended_is_dead_even_while_it_is_a_zombie() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    owner = Owner.current().model_copy(update={"pid": child.pid, "started": _started(child.pid)})
    assert owner.fate() == "alive"
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert owner.fate() == "dead"
    child.communicate()
    assert owner.fate() == "dead"


def test_a_reused_pid_is_not_the_owner() -> None:
    owner = Owner.current()
    assert owner.model_copy(update={"started": owner.started - 1}).fate() == "dead"


def test_another_boot_of_this_machine_is_dead_and_another_machine_is_unknown() -> None:
    owner = Owner.current()
    assert owner.model_copy(update={"boot": "another"}).fate() == "dead"
    assert owner.model_copy(update={"host": socket.gethostname() + "-other"}).fate() == "unknown"
    assert owner.model_copy(update={"namespace": 1}).fate() == "unknown"


def test_a_state_directory_that_others_can_write_is_refused(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match="can be written by others") as caught:
        private_dir(shared)
    assert "KINFOLD_STATE" in caught.value.hint


def test_the_state_directory_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KINFOLD_STATE", str(tmp_path / "own"))
    assert state_dir() == tmp_path / "own"
    monkeypatch.delenv("KINFOLD_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert state_dir() == tmp_path / "kinfold"


def _started(pid: int) -> int:
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        if fields:
            return int(fields[19])
    raise AssertionError("no such process")
