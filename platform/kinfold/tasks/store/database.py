"""The connections to a store's file, and what is set on each.

WAL: a reader never waits for the writer, nor the writer for readers. `busy_timeout`: how long a writer waits for
another process's. `synchronous = FULL`: what was reported as kept is there after a power cut; that is one fsync a
commit, and nothing that a program in a sandbox waits for commits. One
writer at a time: a lock in this process, `BEGIN IMMEDIATE` between processes, so that a reading that a write depends on
cannot be overtaken.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
from sqlalchemy import URL, Connection, event
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from kinfold.errors import StoreError
from kinfold.tasks.store import faults, schema

_WRITES = "kinfold_writes"


class Database:
    """An open store. Every method raises `StoreError` where the file cannot be had, read or written."""

    def __init__(self, path: Path, *, busy_timeout: float, refusal: StoreError | None = None) -> None:
        self.path = path
        self.refusal = refusal
        """Why nothing can be written, where it can only be read."""
        self._busy_timeout = busy_timeout
        self._writer = anyio.Lock()
        self._engine = self._make_engine()

    @classmethod
    async def open(cls, path: Path, *, busy_timeout: float) -> Database:
        """The file at `path`, made or upgraded where it must be; on a full disk it may be for reading only."""
        try:
            await anyio.to_thread.run_sync(schema.prepare, path, busy_timeout)
        except StoreError as error:
            if error.code != "store_full" or not schema.is_readable(path):
                raise
            return cls(path, busy_timeout=busy_timeout, refusal=error)
        return cls(path, busy_timeout=busy_timeout)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[AsyncConnection]:
        """A connection that sees one state of the store."""
        with self._translated():
            async with self._engine.connect() as connection:
                yield connection

    @asynccontextmanager
    async def writing(self) -> AsyncIterator[AsyncConnection]:
        """A transaction of the only writer: kept as a whole at the block's end, or not at all.

        Shielded, and bounded by the wait for the lock: a cancelled caller still learns what was kept.
        """
        if self.refusal is not None:
            raise self.refusal
        with anyio.CancelScope(shield=True), self._translated():
            async with self._writer, self._engine.connect() as connection:
                await connection.execution_options(**{_WRITES: True})
                async with connection.begin():
                    yield connection

    async def check(self) -> str:
        """That the whole file is sound, and can be written; what there is, in words. Raises `StoreError`."""
        async with self.writing() as connection:
            said = [str(row[0]) for row in await connection.exec_driver_sql("PRAGMA integrity_check(5)")]
            if said != ["ok"]:
                raise faults.corrupt(self.path, "; ".join(said))
            broken = len((await connection.exec_driver_sql("PRAGMA foreign_key_check")).all())
            if broken:
                raise faults.corrupt(self.path, f"{broken} rows speak of others that are not there")
            counts = [
                (await connection.exec_driver_sql(f"SELECT count(*) FROM {name}")).scalar_one()
                for name in ("tasks", "sandboxes")
            ]
            version = (await connection.exec_driver_sql("SELECT version_num FROM alembic_version")).scalar_one()
        size = self.path.stat().st_size
        return f"{self.path}, version {version}, {size:,} bytes, {counts[0]} tasks, {counts[1]} sandboxes, sound"

    async def aclose(self) -> None:
        """Close the connections."""
        await self._engine.dispose()

    def _translated(self) -> _Translated:
        return _Translated(self.path, self._busy_timeout)

    def _make_engine(self) -> AsyncEngine:
        url = URL.create("sqlite+aiosqlite", database=str(self.path))
        if self.refusal is not None:
            lying = {"mode": "ro", "immutable": "1", "uri": "true"}
            url = URL.create("sqlite+aiosqlite", database=self.path.as_uri(), query=lying)
        engine = create_async_engine(
            url,
            connect_args={"timeout": self._busy_timeout},
            pool_size=2,
            max_overflow=2,
            pool_timeout=60.0,
        )
        event.listen(engine.sync_engine, "connect", _set_up if self.refusal is None else _set_up_reader)
        event.listen(engine.sync_engine, "begin", _begin)
        return engine


class _Translated:
    """Turns what the driver raises in its block into a `StoreError`."""

    def __init__(self, path: Path, waited: float) -> None:
        self._path = path
        self._waited = waited

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, IntegrityError):
            return  # a broken rule of the tables is a bug of ours, and stays one
        if isinstance(error, DBAPIError):
            raise faults.store_error(self._path, error.orig, waited=self._waited) from error
        if isinstance(error, (sqlite3.Error, UnicodeDecodeError)):
            raise faults.store_error(self._path, error, waited=self._waited) from error


def _set_up(connection: Any, record: object) -> None:
    connection.isolation_level = None  # the driver's own idea of when a transaction begins is switched off
    cursor = connection.cursor()
    try:
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute("PRAGMA synchronous = FULL")
        cursor.execute("PRAGMA foreign_keys = ON")
    finally:
        cursor.close()


def _set_up_reader(connection: Any, record: object) -> None:
    connection.isolation_level = None


def _begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
