"""A store that is locked, damaged, cut off, half-written or newer: a clear error, and never a wrong answer."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import alembic.command
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from tests.unit.tasks.test_records_contract import ID, ME, OTHER, record

from kinfold.errors import StoreError
from kinfold.sandbox.joined_records import JoinedRecords
from kinfold.sandbox.records import FileRecords
from kinfold.tasks.store import schema
from kinfold.tasks.store.door import FILE_NAME, Store
from kinfold.tasks.store.sandboxes import StoreRecords
from kinfold.tasks.store.tables import metadata
from kinfold.tasks.store.tasks import StoredTasks

pytestmark = pytest.mark.anyio
OPENER = """
import sys, anyio
from pathlib import Path
from kinfold.tasks.store.door import Store
async def main():
    async with Store(Path(sys.argv[1])) as store:
        print(await (await store.database()).check())
anyio.run(main)
"""


@pytest.fixture
async def filled(own_state: Path) -> Path:
    """The file of a store with some records and a task, closed."""
    async with Store(own_state) as store:
        records = StoreRecords(store)
        for number in range(20):
            await records.intend(record(f"sbx_{number:016x}", workspace=f"/w/{number}" * 20, created_at=float(number)))
        await StoredTasks(store).begin("task_1", user_id="u", prompt="p" * 5000, model="m")
    return own_state / FILE_NAME


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Another process's write, held open."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.mark.threat("F07")
async def test_a_locked_store_is_waited_for_then_named_and_can_be_read_meanwhile(filled: Path) -> None:
    async with Store(filled.parent, busy_timeout=0.3) as store:
        records = StoreRecords(store)
        await records.list()
        with writing(filled):
            began = time.monotonic()
            with pytest.raises(StoreError, match=r"kinfold\.db is locked: .*more than 0\.3 s") as caught:
                await records.intend(record(OTHER))
            assert time.monotonic() - began < 5
            assert (caught.value.code, "fuser" in caught.value.hint) == ("store_locked", True)
            assert len((await records.list()).records) == 20
        assert await records.intend(record(OTHER)) == record(OTHER)


@pytest.mark.threat("F07")
async def test_no_flipped_byte_makes_a_wrong_record(filled: Path) -> None:
    whole, chance = filled.read_bytes(), random.Random(7)
    true = {f"sbx_{number:016x}": f"/w/{number}" * 20 for number in range(20)}
    noticed = 0
    for _ in range(60):
        spoilt = bytearray(whole)
        for _ in range(8):
            spoilt[chance.randrange(len(spoilt))] ^= 1 << chance.randrange(8)
        for side in ("-wal", "-shm"):
            filled.with_name(filled.name + side).unlink(missing_ok=True)
        filled.write_bytes(spoilt)
        async with Store(filled.parent) as store:
            try:
                found = await StoreRecords(store).list(gone=True)
            except StoreError as error:
                assert error.code in ("store_corrupt", "store_newer", "store_failed"), error
                assert error.hint
                noticed += 1
                continue
        noticed += bool(found.broken)
        for item in found.records:
            assert true[item.id] == item.workspace
    assert noticed > 5


@pytest.mark.threat("F07")
@pytest.mark.parametrize("how", ["cut", "no_database", "garbage_in_the_middle", "other_tables"])
async def test_a_damaged_store_is_named_with_the_way_out_and_files_serve_on(filled: Path, how: str) -> None:
    files = FileRecords(filled.parent / "records")
    await files.intend(record(ID, created_at=9.0))
    size = filled.stat().st_size
    match how:
        case "cut":
            filled.write_bytes(filled.read_bytes()[: size // 2])
        case "no_database":
            filled.write_bytes(b"hello" * 1000)
        case "garbage_in_the_middle":
            data = filled.read_bytes()
            filled.write_bytes(data[:4096] + b"\xa5" * (size - 4096))
        case "other_tables":
            filled.unlink()
            with closing(sqlite3.connect(filled)) as other:
                other.execute("CREATE TABLE mine (a)")
    before = filled.read_bytes()
    async with Store(filled.parent) as store:
        with pytest.raises(StoreError, match=r"kinfold\.db is damaged") as caught:
            await _look_everywhere(store)
        assert "reap --by-labels" in caught.value.hint
        found = await JoinedRecords(StoreRecords(store), files).list()
        assert ID in [item.id for item in found.records]
        if how != "cut":
            assert [broken.whole for broken in found.broken] == [True]
    if how in ("no_database", "other_tables"):
        assert filled.read_bytes() == before, "nobody's data is written over"
    for path in filled.parent.glob("kinfold.db*"):
        path.rename(path.with_name(f"aside-{path.name}"))
    async with Store(filled.parent) as store:
        assert await StoreRecords(store).intend(record(OTHER)) == record(OTHER)


async def _look_everywhere(store: Store) -> None:
    await StoreRecords(store).list()
    await (await store.database()).check()


@pytest.mark.threat("F07")
@pytest.mark.parametrize("left", [0, 17, 0.5, 0.9])
async def test_a_cut_off_wal_loses_the_last_writes_and_nothing_else(
    own_state: Path, tmp_path: Path, left: float
) -> None:
    """As after a crash of the machine: the files are copied while the store is open."""
    crashed = tmp_path / "crashed"
    crashed.mkdir(mode=0o700)
    async with Store(own_state) as store:
        for number in range(10):
            await StoreRecords(store).intend(record(f"sbx_{number:016x}", created_at=float(number)))
        for name in (FILE_NAME, f"{FILE_NAME}-wal"):
            shutil.copy(own_state / name, crashed / name)
    wal = crashed / f"{FILE_NAME}-wal"
    size = wal.stat().st_size
    assert size > 0
    os.truncate(wal, int(left) if left >= 1 else int(size * left))
    async with Store(crashed) as store:
        found = await StoreRecords(store).list()
        assert [item.id for item in found.records] == [f"sbx_{n:016x}" for n in range(len(found.records))]
        assert found.broken == ()
        await StoreRecords(store).intend(record(OTHER))
        assert "sound" in await (await store.database()).check()


@pytest.mark.threat("F07")
async def test_a_store_of_a_newer_version_is_refused_untouched(filled: Path) -> None:
    with closing(sqlite3.connect(filled)) as other, other:
        other.execute("UPDATE alembic_version SET version_num = '9001'")
    before = filled.read_bytes()
    async with Store(filled.parent) as store:
        with pytest.raises(StoreError, match="newer kinfold: it has version '9001'") as caught:
            await StoreRecords(store).list()
    assert (caught.value.code, "KINFOLD_STATE" in caught.value.hint) == ("store_newer", True)
    assert filled.read_bytes() == before


@pytest.mark.threat("F07")
async def test_a_half_written_record_is_reported_and_not_trusted(filled: Path) -> None:
    with closing(sqlite3.connect(filled)) as other, other:
        other.execute("UPDATE sandboxes SET record = substr(record, 1, 40) WHERE id = 'sbx_0000000000000003'")
        other.execute("UPDATE sandboxes SET state = 'gone' WHERE id = 'sbx_0000000000000004'")
    async with Store(filled.parent) as store:
        found = await StoreRecords(store).list(gone=True)
        assert len(found.records) == 18
        assert sorted("checksum" in broken.reason for broken in found.broken) == [False, True]
        assert sorted("another state" in broken.reason for broken in found.broken) == [False, True]


@pytest.mark.threat("F07")
async def test_an_upgrade_that_fails_half_way_leaves_no_half_a_store(
    own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import alembic.operations

    def fail(*_: object) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patched:
        patched.setattr(alembic.operations.Operations, "execute", fail)
        async with Store(own_state) as store:
            with pytest.raises(StoreError):
                await store.database()
    with closing(sqlite3.connect(own_state / FILE_NAME)) as other:
        assert other.execute("SELECT name FROM sqlite_schema WHERE name = 'sandboxes'").fetchall() == []
    async with Store(own_state) as store:
        assert await StoreRecords(store).intend(record()) == record()


def test_many_processes_that_find_no_store_make_one(own_state: Path) -> None:
    command = [sys.executable, "-c", OPENER, str(own_state)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert "sound" in out, err
    modes = {path.name: path.stat().st_mode & 0o777 for path in own_state.iterdir() if path.is_file()}
    assert set(modes.values()) == {0o600}


async def test_the_migrations_make_the_tables_that_the_code_knows(filled: Path) -> None:
    scripts = ScriptDirectory(str(Path(schema.__file__).with_name("migrations")))
    assert scripts.get_current_head() == schema.HEAD
    engine = create_engine(f"sqlite:///{filled}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        assert connection.exec_driver_sql("SELECT * FROM user_usage").fetchall() == []
    engine.dispose()


async def test_a_store_of_the_first_version_is_brought_up_with_all_that_it_holds(
    own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    task, run = {"task_id": "task_a1"}, {"run_id": "run_1"}
    with monkeypatch.context() as older:
        older.setattr(schema, "HEAD", "0001")
        older.setattr(alembic.command, "upgrade", partial(_upgrade_to, "0001", alembic.command.upgrade))
        async with Store(own_state) as store:
            await StoredTasks(store).begin("task_a1", user_id="u", prompt="x", model="m")
    with closing(sqlite3.connect(own_state / FILE_NAME)) as other, other:
        assert other.execute("SELECT version_num FROM alembic_version").fetchall() == [("0001",)]
        _insert(other, "runs", {"id": "run_1", **task, "kind": "main", "model": "m", "started_at": 1.0})
        counts = dict.fromkeys(("input_tokens", "output_tokens", "cache_creation_tokens", "cache_read_tokens"), 7)
        row = {"id": "r", **task, **run, "attempt": 1, "kind": "step", "model": "m", "ended": "ok", **counts}
        _insert(other, "model_requests", {**row, "estimated": 0, "started_at": 1.0, "ended_at": 2.0})
    async with Store(own_state) as store:
        (found,) = (await StoredTasks(store).export("task_a1"))["modelRequests"]
    assert {name: found[name] for name in row} == row
    assert (found["cache_creation_hour_tokens"], found["detail"], found["request_id"]) == (0, None, None)


def _upgrade_to(version: str, upgrade: Callable[[Any, str], None], config: Any, head: str) -> None:
    upgrade(config, version)


def _insert(connection: sqlite3.Connection, table: str, row: dict[str, Any]) -> None:
    marks = ", ".join("?" * len(row))
    connection.execute(f"INSERT INTO {table} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


async def test_a_task_whose_process_is_dead_was_interrupted_and_one_that_lives_runs(own_state: Path) -> None:
    async with Store(own_state) as store:
        tasks = StoredTasks(store)
        await tasks.begin("task_a1", user_id="u", prompt="x", model="m")
        assert (await tasks.get("task_a")).standing == "running"
        dead = ME.model_copy(update={"pid": 1, "started": 1}).model_dump_json()
        with closing(sqlite3.connect(own_state / FILE_NAME)) as other, other:
            other.execute("UPDATE tasks SET owner = ?", (dead,))
        assert [task.standing for task in await tasks.list()] == ["interrupted"]
