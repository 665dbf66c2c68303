"""What every keeper of sandbox records promises: files, the store, and both joined pass the same tests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest

from kinfold.errors import ConfigError, LeaseLost, NotFound
from kinfold.sandbox import record as transitions
from kinfold.sandbox.joined_records import JoinedRecords
from kinfold.sandbox.owner import Owner
from kinfold.sandbox.record import SandboxRecord
from kinfold.sandbox.records import FileRecords, Records
from kinfold.tasks.store.door import Store
from kinfold.tasks.store.sandboxes import StoreRecords

pytestmark = pytest.mark.anyio
ID = "sbx_00000000000000a1"
OTHER = "sbx_00000000000000a2"
ME = Owner.current()
STRANGER = ME.model_copy(update={"pid": 1, "started": 1})


def record(ident: str = ID, **fields: Any) -> SandboxRecord:
    """A record as `create` writes it."""
    base: dict[str, Any] = {"id": ident, "provider": "docker", "instance": "one", "owner": ME, "created_at": 1.0}
    return SandboxRecord(**(base | fields))


@pytest.fixture(params=["files", "store", "files_behind_the_store"])
async def two(request: pytest.FixtureRequest, own_state: Path) -> AsyncIterator[tuple[Records, Records]]:
    """The same records as two processes see them."""
    files = own_state / "records"
    if request.param == "files":
        yield FileRecords(files), FileRecords(files)
        return
    async with Store(own_state) as one, Store(own_state) as other:
        if request.param == "store":
            yield StoreRecords(one), StoreRecords(other)
        else:
            yield JoinedRecords(StoreRecords(one), FileRecords(files)), StoreRecords(other)


@pytest.fixture
def records(two: tuple[Records, Records]) -> Records:
    return two[0]


async def adopted(records: Records, ident: str = ID, **fields: Any) -> SandboxRecord:
    """A record with its container."""
    held = await records.intend(record(ident, **fields))
    return await records.adopt(held.model_copy(update={"handle": "abc"}))


async def only(records: Records, ident: str = ID) -> SandboxRecord:
    """The one record of this id, gone or not."""
    (found,) = (await records.list(id=ident, gone=True)).records
    return found


async def test_a_record_goes_from_intended_to_adopted_to_gone_and_says_why(records: Records) -> None:
    assert await records.intend(record()) == record()
    held = await records.adopt(record(handle="abc"))
    held = await records.renew(held, 99.0)
    assert (await only(records)) == held
    assert (held.state, held.handle, held.expires_at, held.generation) == ("adopted", "abc", 99.0, 1)
    claim = await records.claim(held, ME, "its ttl of 5 s was over")
    assert (claim.state, claim.claimed_by, claim.generation) == ("ending", ME, 2)
    await records.release(claim)
    assert (await records.list()).records == ()
    assert (await records.list(id=ID)).records == ()
    gone = await only(records)
    assert (gone.state, gone.reason, gone.claimed_by) == ("gone", "its ttl of 5 s was over", None)
    assert gone.ended_at is not None


async def test_a_kept_workspace_keeps_its_record_but_not_its_name(records: Records) -> None:
    held = await adopted(records, name="a")
    await records.release(await records.claim(held, ME, "done"), keep_until=5.0)
    kept = (await records.list(id=ID)).records[0]
    assert (kept.state, kept.keep_until, kept.reason) == ("released", 5.0, "done")
    other = record(OTHER, name="a")
    assert await records.intend(other) == other
    await records.release(await records.claim(kept, ME, "kept long enough"))
    assert ((await only(records)).state, (await only(records)).reason) == ("gone", "done")


async def test_a_name_belongs_to_one_live_sandbox_of_an_instance(records: Records) -> None:
    first = await records.intend(record(name="a"))
    assert await records.intend(record(OTHER, name="a")) == first
    foreign = record("sbx_00000000000000a3", name="a", instance="two")
    assert await records.intend(foreign) == foreign
    second = await records.intend(record(OTHER))
    second = await records.adopt(second)
    with pytest.raises(ConfigError, match="'a' exists"):
        await records.adopt(second.model_copy(update={"name": "a"}))
    await records.claim(first, ME, "over")
    assert (await records.adopt(second.model_copy(update={"name": "a"}))).name == "a"


async def test_a_holder_whose_sandbox_another_took_over_can_change_nothing(two: tuple[Records, Records]) -> None:
    mine, theirs = two
    held = await adopted(mine)
    taken = await theirs.adopt(held.model_copy(update={"owner": STRANGER}))
    assert taken.generation == held.generation + 1
    with pytest.raises(LeaseLost, match="process 1 on"):
        await mine.renew(held, 99.0)
    with pytest.raises(LeaseLost):
        await mine.adopt(held)
    with pytest.raises(LeaseLost):
        await mine.release(held)
    assert await only(mine) == taken


async def test_renewal_that_comes_after_the_claim_fails_and_before_it_saves(two: tuple[Records, Records]) -> None:
    mine, theirs = two
    held = await adopted(mine, expires_at=5.0)
    (seen,) = (await theirs.list()).records
    await mine.renew(held, 99.0)
    with pytest.raises(LeaseLost, match="changed meanwhile"):
        await theirs.claim(seen, STRANGER, "its lease ended")
    (seen,) = (await theirs.list()).records
    await theirs.claim(seen, STRANGER, "its lease ended")
    with pytest.raises(LeaseLost, match="its lease ended"):
        await mine.renew(held, 999.0)


async def test_of_many_who_claim_at_once_one_wins(two: tuple[Records, Records]) -> None:
    mine, theirs = two
    held = await adopted(mine)
    won: list[int] = []

    async def claim(who: int) -> None:
        try:
            await two[who % 2].claim(held, ME.model_copy(update={"pid": who + 1}), f"by {who}")
        except LeaseLost:
            return
        won.append(who)

    async with anyio.create_task_group() as group:
        for who in range(8):
            group.start_soon(claim, who)
    assert len(won) == 1
    assert (await only(theirs)).reason == f"by {won[0]}"


async def test_a_claim_can_be_taken_from_a_dead_claimer_and_keeps_the_first_reason(records: Records) -> None:
    held = await adopted(records)
    first = await records.claim(held, STRANGER, "first")
    second = await records.claim(first, ME, "second")
    assert (second.claimed_by, second.reason, second.ended_at) == (ME, "first", first.ended_at)
    with pytest.raises(LeaseLost):
        await records.release(first)
    await records.release(second)
    with pytest.raises(LeaseLost):
        await records.claim(second, ME, "third")


async def test_what_is_not_there_is_not_found_and_its_release_is_no_error(records: Records) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: records.adopt(record()),
        lambda: records.renew(record(), 1.0),
        lambda: records.claim(record(), ME, "x"),
    ]
    for call in calls:
        with pytest.raises(NotFound):
            await call()
    await records.release(record())
    assert (await records.list(id=ID, gone=True)).records == ()


@pytest.mark.parametrize("ident", ["../../etc/passwd", "sbx_", "sbx_00000000000000A1", f"{ID}\n"])
async def test_what_is_no_id_never_becomes_a_path_or_a_query(records: Records, ident: str) -> None:
    with pytest.raises(NotFound, match="not a sandbox id"):
        await records.list(id=ident)


async def test_records_of_what_is_gone_do_not_grow_for_ever(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("kinfold.sandbox.records", "kinfold.tasks.store.sandboxes"):
        monkeypatch.setattr(f"{module}.KEPT_GONE", 10)
    assert transitions.KEPT_GONE == 1000
    for number in range(14):
        held = await records.intend(record(f"sbx_{number:016x}", created_at=float(number)))
        await records.release(await records.claim(held, ME, "x"))
    left = [item.id for item in (await records.list(gone=True)).records]
    assert 10 <= len(left) <= 11
    assert left[-1] == f"sbx_{13:016x}"
