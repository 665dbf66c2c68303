"""Definitions in the store: rows are only ever added, so that a record of a run can always be read with its version."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from kinfold.definitions import SubagentDefinition
from kinfold.definitions.aliases import did_you_mean
from kinfold.errors import NotFound
from kinfold.tasks.store.door import Store

if TYPE_CHECKING:
    from sqlalchemy import RowMapping, Select
    from sqlalchemy.ext.asyncio import AsyncConnection

_NOT_COMPARED = {"version", "source", "ignored_fields"}


class StoredDefinitions:
    """The definitions of one store, a `DefinitionRecords`. Every method may raise `StoreError`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, definition: SubagentDefinition) -> SubagentDefinition:
        """Keep it as the newest version of its type; the newest itself where it says the same."""
        from kinfold.tasks.store.tables import definitions

        async with (await self._store.database()).writing() as connection:
            newest = await _newest(connection, definition.type)
            if newest is not None and newest["removed_at"] is None:
                kept = _definition(newest)
                if kept.model_dump(exclude=_NOT_COMPARED) == definition.model_dump(exclude=_NOT_COMPARED):
                    return kept
            version = 1 if newest is None else newest["version"] + 1
            added = definition.model_copy(update={"version": version})
            row = {
                "type": added.type,
                "version": version,
                "definition": added.model_dump_json(),
                "source": added.source or "",
                "created_at": time.time(),
            }
            await connection.execute(definitions.insert().values(row))
        return added

    async def current(self) -> tuple[SubagentDefinition, ...]:
        """The newest version of each type that is in use, by type."""
        from kinfold.tasks.store.tables import definitions

        query = definitions.select().order_by(definitions.c.type, definitions.c.version)
        async with (await self._store.database()).reading() as connection:
            rows = (await connection.execute(query)).mappings().all()
        newest = {row["type"]: row for row in rows}
        return tuple(_definition(row) for row in newest.values() if row["removed_at"] is None)

    async def get(self, type: str, version: int | None = None) -> SubagentDefinition:
        """One version, also of a removed type; None: the newest in use. Raises `NotFound`."""
        async with (await self._store.database()).reading() as connection:
            rows = (await connection.execute(_versions(type))).mappings().all()
        if version is None:
            rows = [row for row in rows[:1] if row["removed_at"] is None]
        else:
            rows = [row for row in rows if row["version"] == version]
        if not rows:
            raise await self._missing(type, version)
        return _definition(rows[0])

    async def remove(self, type: str) -> None:
        """Take a type out of use; its versions stay readable. Raises `NotFound`."""
        from kinfold.tasks.store.tables import definitions

        async with (await self._store.database()).writing() as connection:
            newest = await _newest(connection, type)
            if newest is not None and newest["removed_at"] is None:
                columns = definitions.c
                this = (columns.type == type, columns.version == newest["version"])
                await connection.execute(definitions.update().where(*this).values(removed_at=time.time()))
                return
        raise await self._missing(type, None)

    async def _missing(self, type: str, version: int | None) -> NotFound:
        known = [definition.type for definition in await self.current()]
        which = "" if version is None else f" in version {version}"
        return NotFound(
            f"no definition {type!r}{which} is kept{did_you_mean(type, known)}", hint="`kinfold agents list` shows them"
        )


def _versions(type: str) -> Select[Any]:
    """The newest first."""
    from kinfold.tasks.store.tables import definitions

    return definitions.select().where(definitions.c.type == type).order_by(definitions.c.version.desc())


async def _newest(connection: AsyncConnection, type: str) -> RowMapping | None:
    row: RowMapping | None = (await connection.execute(_versions(type).limit(1))).mappings().first()
    return row


def _definition(row: RowMapping) -> SubagentDefinition:
    return SubagentDefinition.model_validate_json(row["definition"])
