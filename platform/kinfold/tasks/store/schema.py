"""Which version a store's file has: an older one is brought up, under a lock and in one step; a newer one is refused.

SQLite's driver begins no transaction before DDL; here it is told to, so that a crash in an upgrade changes nothing.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from kinfold.errors import StoreError
from kinfold.sandbox.state_files import private_dir
from kinfold.tasks.store import faults

HEAD = "0003"
"""The version that this kinfold writes; the newest migration's, as a test says."""
_POLL = 0.05


def prepare(path: Path, busy_timeout: float) -> None:
    """Make the file where it is missing and give it the current version. Blocks; raises `StoreError`, `ConfigError`."""
    private_dir(path.parent)
    try:
        if _version(path, busy_timeout) == HEAD:
            return
        with _locked(path, busy_timeout):
            _make_private(path)
            found = _version(path, busy_timeout)
            if found != HEAD:
                _upgrade(path, busy_timeout)
    except (sqlite3.Error, UnicodeDecodeError, OSError) as error:
        raise faults.store_error(path, error, waited=busy_timeout) from error


def is_readable(path: Path) -> bool:
    """Whether a file that cannot be opened for want of space can be read as it lies there.

    SQLite needs room for an index before it reads a WAL; a store that was closed has none, and is whole in one file.
    """
    wal = path.with_name(f"{path.name}-wal")
    if wal.exists() and wal.stat().st_size > 0:
        return False
    try:
        with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro&immutable=1", uri=True)) as connection:
            return connection.execute("SELECT version_num FROM alembic_version").fetchall() == [(HEAD,)]
    except sqlite3.Error:
        return False


def _version(path: Path, busy_timeout: float) -> str | None:
    """None where the file is missing or empty. Raises `StoreError` for a newer one."""
    if not path.exists() or path.stat().st_size == 0:
        return None
    with closing(sqlite3.connect(path, timeout=busy_timeout)) as connection:
        names = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        if "alembic_version" not in names:
            if names:
                raise faults.corrupt(path, f"it holds tables ({', '.join(sorted(names)[:3])}) but no version")
            return None
        found = [str(row[0]) for row in connection.execute("SELECT version_num FROM alembic_version")]
    if len(found) != 1:
        raise faults.corrupt(path, f"it names {len(found)} versions")
    if found[0] > HEAD:
        raise faults.newer(path, found[0], HEAD)
    return found[0]


def _upgrade(path: Path, busy_timeout: float) -> None:
    import sqlalchemy
    from alembic import command
    from alembic.config import Config

    with closing(sqlite3.connect(path, timeout=busy_timeout)) as connection:
        connection.execute("PRAGMA journal_mode = WAL")
    engine = sqlalchemy.create_engine(
        sqlalchemy.URL.create("sqlite", database=str(path)), connect_args={"timeout": busy_timeout}
    )

    @sqlalchemy.event.listens_for(engine, "connect")
    def _ours(dbapi_connection: sqlite3.Connection, record: object) -> None:
        dbapi_connection.isolation_level = None

    @sqlalchemy.event.listens_for(engine, "begin")
    def _begin(connection: sqlalchemy.Connection) -> None:
        connection.exec_driver_sql("BEGIN IMMEDIATE")

    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")))
    try:
        with engine.connect() as connected:
            config.attributes["connection"] = connected
            command.upgrade(config, "head")
    except sqlalchemy.exc.DBAPIError as error:
        raise faults.store_error(path, error.orig, waited=busy_timeout) from error
    finally:
        engine.dispose()


def _make_private(path: Path) -> None:
    """SQLite gives the files that it makes beside this one the same mode."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    os.close(descriptor)


@contextmanager
def _locked(path: Path, timeout: float) -> Iterator[None]:
    """One process at a time makes or upgrades the file; the lock goes with its holder."""
    descriptor = os.open(path.with_name(f".{path.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + max(timeout, 30.0)
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise StoreError(
                        f"the store {path} is being upgraded by another process, for more than {timeout:g} s",
                        hint="wait for it, or end it",
                        code="store_locked",
                    ) from None
                time.sleep(_POLL)
        yield
    finally:
        os.close(descriptor)
