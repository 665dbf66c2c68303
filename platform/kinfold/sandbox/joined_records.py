"""Several places of records as one: what any of them knows is known, new records go into the first.

The command line keeps its records in the store; those that a library's own provider wrote as files are seen too. A
place that cannot be read is reported as broken, and the others serve on.
"""

from __future__ import annotations

from dataclasses import replace

from kinfold.errors import StoreError
from kinfold.sandbox.owner import Owner
from kinfold.sandbox.record import BrokenRecord, RecordList, SandboxRecord
from kinfold.sandbox.records import Records


class JoinedRecords:
    """`Records` over others; see there for what each method promises."""

    def __init__(self, first: Records, *others: Records) -> None:
        self._first = first
        self._all = (first, *others)

    async def intend(self, record: SandboxRecord) -> SandboxRecord:
        """See `Records.intend`. A name is looked for in every place."""
        if record.name:
            for place in self._all[1:]:
                for held in (await place.list()).records:
                    if held.live and (held.name, held.instance) == (record.name, record.instance):
                        return held
        return await self._first.intend(record)

    async def adopt(self, record: SandboxRecord) -> SandboxRecord:
        """See `Records.adopt`."""
        return await (await self._place_of(record.id)).adopt(record)

    async def renew(self, held: SandboxRecord, expires_at: float | None) -> SandboxRecord:
        """See `Records.renew`."""
        return await (await self._place_of(held.id)).renew(held, expires_at)

    async def claim(self, seen: SandboxRecord, by: Owner, reason: str) -> SandboxRecord:
        """See `Records.claim`."""
        return await (await self._place_of(seen.id)).claim(seen, by, reason)

    async def release(self, held: SandboxRecord, *, keep_until: float | None = None) -> None:
        """See `Records.release`."""
        await (await self._place_of(held.id)).release(held, keep_until=keep_until)

    async def list(self, *, id: str | None = None, gone: bool = False) -> RecordList:
        """See `Records.list`. Raises nothing of a place that cannot be read: that is one of `broken`."""
        found = RecordList(records=())
        for place in self._all:
            try:
                more = await place.list(id=id, gone=gone)
            except StoreError as error:
                more = RecordList(records=(), broken=(BrokenRecord(source="records", reason=_both(error), whole=True),))
            records = sorted((*found.records, *more.records), key=lambda record: record.created_at)
            found = replace(found, records=tuple(records), broken=found.broken + more.broken)
        return found

    async def _place_of(self, id: str) -> Records:
        """The place that has this record; the first one where none of the others has."""
        for place in self._all[1:]:
            found = await place.list(id=id, gone=True)
            if found.records or found.broken:
                return place
        return self._first


def _both(error: StoreError) -> str:
    return f"{error.message}; {error.hint}"
