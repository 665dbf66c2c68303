"""The store's place on disk, opened when it is first needed; this module costs nothing to import."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

if TYPE_CHECKING:
    from kinfold.tasks.store.database import Database

FILE_NAME = "kinfold.db"
BUSY_TIMEOUT = 10.0
"""Seconds that a writer waits for another process's write."""


class Store:
    """One store of one event loop; `async with`, or `aclose`. Nothing is opened or made before it is needed."""

    def __init__(self, state_dir: Path, *, busy_timeout: float = BUSY_TIMEOUT) -> None:
        self.path = state_dir / FILE_NAME
        self._busy_timeout = busy_timeout
        self._opening = anyio.Lock()
        self._database: Database | None = None

    async def database(self) -> Database:
        """The open database. Raises `StoreError`; the next call tries again."""
        async with self._opening:
            if self._database is not None and self._database.refusal is not None:
                await self._close()  # perhaps there is space by now
            if self._database is None:
                # In a thread: it takes hundreds of milliseconds, in which others may go on.
                name = "kinfold.tasks.store.database"
                module = await anyio.to_thread.run_sync(importlib.import_module, name)
                self._database = await module.Database.open(self.path, busy_timeout=self._busy_timeout)
            return self._database

    async def aclose(self) -> None:
        """Close what was opened."""
        with anyio.CancelScope(shield=True):
            await self._close()

    async def _close(self) -> None:
        database, self._database = self._database, None
        if database is not None:
            await database.aclose()

    async def __aenter__(self) -> Store:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
