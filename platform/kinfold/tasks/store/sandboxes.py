"""Sandbox records in the store: the same rules as everywhere (`sandbox/record.py`), each change one transaction."""

from __future__ import annotations

import builtins
import json
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from kinfold.errors import NotFound
from kinfold.sandbox import record as transitions
from kinfold.sandbox.joined_records import JoinedRecords
from kinfold.sandbox.owner import Owner
from kinfold.sandbox.record import KEPT_GONE, BrokenRecord, RecordList, SandboxRecord
from kinfold.sandbox.records import FileRecords, Records
from kinfold.tasks.store.door import Store

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection


def all_records(store: Store, state_dir: Path) -> Records:
    """The store's records, and those that a bare `DockerProvider` keeps as files in the same state directory."""
    return JoinedRecords(StoreRecords(store), FileRecords(state_dir / "records"))


Transition = Callable[[SandboxRecord], SandboxRecord]


class StoreRecords:
    """`Records` in the store; see there for what each method promises."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def intend(self, record: SandboxRecord) -> SandboxRecord:
        """See `Records.intend`."""
        from kinfold.tasks.store.tables import sandboxes

        async with (await self._store.database()).writing() as connection:
            held = await self._holder_of(connection, record)
            if held is not None:
                return held
            await connection.execute(sandboxes.insert().values(_row(record)))
        return record

    async def adopt(self, record: SandboxRecord) -> SandboxRecord:
        """See `Records.adopt`."""
        return await self._change(record.id, lambda current: transitions.adopted(current, record), name=record)

    async def renew(self, held: SandboxRecord, expires_at: float | None) -> SandboxRecord:
        """See `Records.renew`."""
        return await self._change(held.id, lambda current: transitions.renewed(current, held, expires_at))

    async def claim(self, seen: SandboxRecord, by: Owner, reason: str) -> SandboxRecord:
        """See `Records.claim`."""
        return await self._change(seen.id, lambda current: transitions.claimed(current, seen, by, reason))

    async def release(self, held: SandboxRecord, *, keep_until: float | None = None) -> None:
        """See `Records.release`."""
        with suppress(NotFound):
            await self._change(held.id, lambda current: transitions.released(current, held, keep_until))

    async def list(self, *, id: str | None = None, gone: bool = False) -> RecordList:
        """See `Records.list`."""
        from kinfold.tasks.store.tables import sandboxes

        query = sandboxes.select().order_by(sandboxes.c.created_at)
        if id is not None:
            query = query.where(sandboxes.c.id == transitions.checked_id(id))
        if not gone:
            query = query.where(sandboxes.c.state != "gone")
        async with (await self._store.database()).reading() as connection:
            rows = (await connection.execute(query)).mappings().all()
        found = [self._read(dict(row)) for row in rows]
        return RecordList(
            records=tuple(item for item in found if isinstance(item, SandboxRecord)),
            broken=tuple(item for item in found if isinstance(item, BrokenRecord)),
        )

    async def _change(self, id: str, change: Transition, *, name: SandboxRecord | None = None) -> SandboxRecord:
        from kinfold.tasks.store.tables import sandboxes

        this = sandboxes.c.id == transitions.checked_id(id)
        async with (await self._store.database()).writing() as connection:
            row = (await connection.execute(sandboxes.select().where(this))).mappings().first()
            current = None if row is None else self._read(dict(row))
            if not isinstance(current, SandboxRecord):
                raise transitions.unknown(id)
            if name is not None and name.name != current.name:
                held = await self._holder_of(connection, name)
                if held is not None:
                    raise transitions.name_taken(held)
            record = change(current)
            await connection.execute(sandboxes.update().where(this).values(_row(record)))
            if record.state == "gone":
                await self._forget_old(connection)
        return record

    async def _holder_of(self, connection: AsyncConnection, record: SandboxRecord) -> SandboxRecord | None:
        from kinfold.tasks.store.tables import sandboxes

        if not record.name:
            return None
        columns = sandboxes.c
        query = sandboxes.select().where(
            columns.name == record.name,
            columns.instance == record.instance,
            columns.id != record.id,
            columns.state.in_(("intended", "adopted")),
        )
        rows: Sequence[Any] = (await connection.execute(query)).mappings().all()
        found: builtins.list[SandboxRecord | BrokenRecord] = [self._read(dict(row)) for row in rows]
        return next((item for item in found if isinstance(item, SandboxRecord)), None)

    async def _forget_old(self, connection: AsyncConnection) -> None:
        from sqlalchemy import select

        from kinfold.tasks.store.tables import sandboxes

        columns = sandboxes.c
        of_gone = select(columns.ended_at).where(columns.state == "gone").order_by(columns.ended_at.desc())
        oldest_kept = of_gone.offset(KEPT_GONE - 1).limit(1).scalar_subquery()
        await connection.execute(sandboxes.delete().where(columns.state == "gone", columns.ended_at < oldest_kept))

    def _read(self, row: dict[str, Any]) -> SandboxRecord | BrokenRecord:
        """The row's record, if it is what was written and agrees with its columns."""
        source = f"{self._store.path}: sandbox {str(row['id'])[:40]}"
        text = str(row["record"])
        if zlib.crc32(text.encode()) != row["checksum"]:
            return BrokenRecord(source=source, reason="its checksum is wrong: the file is damaged")
        try:
            record = SandboxRecord.model_validate(json.loads(text))
        except (ValueError, ValidationError) as error:
            return BrokenRecord(source=source, reason=f"{type(error).__name__}: {str(error).splitlines()[0][:200]}")
        wrong = [name for name, value in _row(record).items() if row[name] != value and name != "record"]
        if wrong:
            return BrokenRecord(source=source, reason=f"its columns say another {', '.join(wrong)} than it does")
        return record


def _row(record: SandboxRecord) -> dict[str, Any]:
    text = json.dumps(record.model_dump(mode="json"), separators=(",", ":"))  # escapes what is no UTF-8
    return {
        "id": record.id,
        "instance": record.instance,
        "name": record.name,
        "state": record.state,
        "generation": record.generation,
        "revision": record.revision,
        "created_at": record.created_at,
        "ended_at": record.ended_at,
        "record": text,
        "checksum": zlib.crc32(text.encode()),
    }
