"""Removing what is left over: only what a record and the labels both call ours, and what is provably dead or expired.

Anything else is reported and left: a container or a directory without a record, a record that cannot be read, an owner
on another machine. Every entry says why. What an engine was still busy with when its caller died can appear after the
sandbox was removed; the record, which stays when nothing else does, says that it is over.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import anyio.to_thread
from pydantic import ValidationError

from kinfold.errors import KinfoldError, LeaseLost, NotFound
from kinfold.sandbox.docker import ending, labels, volume
from kinfold.sandbox.docker.client import EngineRefused
from kinfold.sandbox.owner import Owner
from kinfold.sandbox.record import RecordList, SandboxRecord

if TYPE_CHECKING:
    from kinfold.sandbox.docker.provider import DockerProvider

logger = logging.getLogger(__name__)

FILLER_AGE = 600.0
"""Seconds after which a container that only fills a volume, and was never started, was surely forgotten."""

Kind = Literal["sandbox", "workspace", "container", "directory", "volume", "record"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reaped:
    """One thing that was found."""

    kind: Kind
    name: str
    reason: str
    removed: bool
    """False in a dry run, where it was left on purpose, and where it would not go."""
    kept: bool = False
    """It is left on purpose, in a dry run or not; the reason says why."""


async def reap(
    provider: DockerProvider,
    dry_run: bool = False,
    *,
    by_labels: bool = False,
    workspaces: bool = True,
    resumable: Callable[[SandboxRecord], bool] = lambda record: True,
) -> list[Reaped]:
    """Remove what is dead or expired of this instance on this engine; with `dry_run` only say so.

    `by_labels`: where the records are lost or cannot be read, its labels may prove that a container's maker is dead or
    its time is over, and then it goes too. They do not know who took it over since: do not ask for it otherwise.
    `resumable`: of one that waits for another process to take it over (`SandboxSpec.resume_ttl`): whether one may come.
    Without `workspaces` those that were kept stay, though their time is over.
    Safe beside other reapers and beside processes that create sandboxes. Raises `EngineUnavailable`.
    """
    found = await provider.records.list()
    if not workspaces:
        found = replace(found, records=tuple(record for record in found.records if record.state != "released"))
    reaped = [item async for item in _records(provider, found, dry_run, resumable)]
    reaped += [item async for item in _containers(provider, found, dry_run=dry_run, by_labels=by_labels)]
    reaped += [item async for item in _directories(provider, found, dry_run)]
    reaped += [item async for item in _volumes(provider, dry_run)]
    reaped += [
        Reaped(kind="record", name=broken.source, reason=f"cannot be read: {broken.reason}", removed=False, kept=True)
        for broken in found.broken
    ]
    return reaped


async def reap_dead(provider: DockerProvider) -> None:
    """What whoever makes a sandbox does first: if one of a dead owner, or of a lease that is over, is here, reap.

    Kept workspaces wait for the next `reap`: to remove one may take long. What cannot be done is no error of a create.
    """
    try:
        records = (await provider.records.list()).records
        if any(record.state != "released" and (why_dead(record) or _is_news(record)) for record in records):
            for item in await reap(provider, workspaces=False):
                logger.log(
                    logging.INFO if item.removed or item.kept else logging.WARNING,
                    "%s %s %s: %s", "removed" if item.removed else "left", item.kind, item.name, item.reason,
                )  # fmt: skip
    except KinfoldError as error:
        logger.warning("what others left could not be removed: %s; `kinfold reap` will", error)


async def _records(
    provider: DockerProvider, found: RecordList, dry_run: bool, resumable: Callable[[SandboxRecord], bool]
) -> AsyncIterator[Reaped]:
    engine_id = (await provider.engine.facts()).id
    there = await provider.containers.listed()  # asked for after the records: what these call adopted was there once
    for record in found.records:
        ours = (record.provider, record.instance) == (provider.name, provider.instance)
        here = ours and record.engine == engine_id
        reason = why_dead(record, abandon=not resumable(record)) if here else None
        if reason is None and here and record.state == "adopted":
            reason = None if record.id in there else "its container is gone"
        if reason is not None:
            kind: Kind = "workspace" if record.keep_until is not None else "sandbox"
            item = await _drop(
                provider, record, Reaped(kind=kind, name=record.id, reason=reason, removed=False), dry_run
            )
            if item is not None:
                yield item
        elif here and record.abandoned:
            yield await _leave(provider, record, dry_run)
        elif ours and record.state == "released" and record.made and not dry_run:
            await _show_again(provider, record)


async def _leave(provider: DockerProvider, record: SandboxRecord, dry_run: bool) -> Reaped:
    """Of an abandoned one that waits for another process: from when it is first seen its time runs."""
    if record.abandoned_at is None:
        record = record.model_copy(update={"abandoned_at": time.time()})
        if not dry_run:
            with contextlib.suppress(LeaseLost, NotFound):  # somebody has taken it over, or ended it
                await provider.records.adopt(record)
    until = _moment(record.resumable_until or 0.0)
    task = record.labels.get("task")
    way = f"`kinfold resume {task}`" if task else "another process"
    reason = f"its owner, {record.owner.describe()}, has ended; it waits for {way} until {until}"
    return Reaped(kind="sandbox", name=record.id, reason=reason, removed=False, kept=True)


async def _show_again(provider: DockerProvider, record: SandboxRecord) -> None:
    """A kept workspace that is a mount goes with a restart of the machine; its files are still there."""
    try:
        await anyio.to_thread.run_sync(provider.workspaces.reattach, record.id)
    except (KinfoldError, OSError) as error:
        logger.warning("sandbox %s: its kept files are not mounted: %s", record.id, error)


def _is_news(record: SandboxRecord) -> bool:
    """Whether it is seen to be abandoned for the first time."""
    return record.abandoned and record.abandoned_at is None


def why_dead(record: SandboxRecord, now: float | None = None, *, abandon: bool = False) -> str | None:
    """Why this sandbox, or the workspace that it left, may go; None where it may not.

    With `abandon` none waits for a process that takes it over.
    """
    now = time.time() if now is None else now
    if record.state == "released":
        over = record.keep_until is not None and record.keep_until <= now
        return f"kept until {_moment(record.keep_until or 0.0)}" if over else None
    if record.state == "ending":
        return _why_still_ending(record)
    fate = record.owner.fate()
    if record.state == "intended" and fate == "dead":
        return f"its owner, {record.owner.describe()}, ended while creating it"
    if not record.detached and fate == "dead":
        if record.waits(now) and not abandon:
            return None
        return f"its owner, {record.owner.describe()}, has ended"
    # An owner that runs ends its own sandbox in time; the lease decides where nobody is known to.
    lapsed = record.expired(now) and (record.detached or fate != "alive")
    return f"its lease ended at {_moment(record.expires_at or 0.0)}" if lapsed else None


def _why_still_ending(record: SandboxRecord) -> str | None:
    if ending.is_claimed(record):
        return None
    by = record.claimed_by
    who = f"{by.describe()}, which was removing it, did not finish" if by else "its removal did not finish"
    return f"{record.reason}; {who}"


async def _drop(provider: DockerProvider, record: SandboxRecord, item: Reaped, dry_run: bool) -> Reaped | None:
    """Claim it and remove it; None where another process came first, or it was renewed meanwhile."""
    if dry_run:
        return item
    try:
        left = await ending.claim_and_remove(provider, record, item.reason)
    except (LeaseLost, NotFound):
        return None
    except KinfoldError as error:
        return replace(item, reason=f"{item.reason}; not removed: {error}")
    if left and item.kind == "workspace":
        return replace(item, reason=f"{item.reason}; would not go: {'; '.join(left[:3])}")
    return replace(item, removed=True)


async def _containers(
    provider: DockerProvider, found: RecordList, *, dry_run: bool, by_labels: bool
) -> AsyncIterator[Reaped]:
    """Containers with this instance's label that no record of something alive speaks of."""
    alive = {record.id for record in found.records if record.live}
    filters = {"label": [f"{labels.INSTANCE}={provider.instance}"]}
    listed = await provider.engine.call("list containers", lambda api: api.containers(all=True, filters=filters))
    for item in listed:
        own: dict[str, str] = item.get("Labels") or {}
        ident = own.get(labels.SANDBOX, "")
        name = str((item.get("Names") or [item["Id"][:12]])[0]).lstrip("/")
        if own.get(labels.ROLE) == labels.ROLE_FILLER:
            reason = _why_forgotten(item)
            if reason is not None:
                yield await _drop_filler(provider, item, _seen("container", name, reason), dry_run)
        elif ident not in alive:
            record = await _record_of(provider, ident)
            if record is not None and record.state in ("released", "gone"):
                late = _seen("container", name, f"came up after its sandbox had ended: {record.reason}")
                yield await _drop_container(provider, ident, late, item["Id"], dry_run)
            elif record is None:
                lacks = "its record cannot be read" if any(broken.whole for broken in found.broken) else "no record"
                dead = _why_dead_by_labels(own) if by_labels and labels.SANDBOX_ID.match(ident) else None
                if dead is not None:
                    unrecorded = _seen("container", ident, f"{lacks}, and by its labels {dead}")
                    yield await _drop_unrecorded(provider, unrecorded, item["Id"], dry_run)
                else:
                    reason = f"has our label but {lacks}, left: `docker rm -f {item['Id'][:12]}` removes it"
                    yield replace(_seen("container", name, reason), kept=True)


def _seen(kind: Kind, name: str, reason: str) -> Reaped:
    return Reaped(kind=kind, name=name, reason=reason, removed=False)


async def _record_of(provider: DockerProvider, ident: str) -> SandboxRecord | None:
    """This instance's record of it, also where it is over; None where nothing that can be read speaks of it."""
    if not labels.SANDBOX_ID.match(ident):
        return None
    records = (await provider.records.list(id=ident, gone=True)).records
    ours = (record for record in records if (record.provider, record.instance) == (provider.name, provider.instance))
    return next(ours, None)


async def _drop_unrecorded(provider: DockerProvider, item: Reaped, container: str, dry_run: bool) -> Reaped:
    if dry_run:
        return item
    try:
        await ending.end_unrecorded(provider, item.name, container)
    except KinfoldError as error:
        return replace(item, reason=f"{item.reason}; not removed: {error}")
    return replace(item, removed=True)


async def _drop_container(provider: DockerProvider, ident: str, item: Reaped, container: str, dry_run: bool) -> Reaped:
    if dry_run:
        return item
    try:
        await provider.containers.remove(ident, container)
    except KinfoldError as error:
        return replace(item, reason=f"{item.reason}; not removed: {error}")
    return replace(item, removed=True)


async def _directories(provider: DockerProvider, found: RecordList, dry_run: bool) -> AsyncIterator[Reaped]:
    """Directories of sandboxes that are over, or of which no record speaks."""
    known = {record.id for record in found.records}
    for ident in provider.workspaces.ids():
        record = None if ident in known else await _record_of(provider, ident)
        if record is not None and record.state == "gone":
            left = () if dry_run else await ending.remove_directories(provider, record, workspace=True)
            why = "; ".join((f"was left when its sandbox had ended: {record.reason}", *left[:3]))
            yield replace(_seen("directory", ident, why), removed=not dry_run and not left)
        elif record is None and ident not in known:
            where = provider.workspaces.layout(ident).root
            yield replace(_seen("directory", ident, f"has no record that can be read, left: {where}"), kept=True)


def _why_dead_by_labels(own: dict[str, str]) -> str | None:
    """What a container's labels prove of its end; None: nothing."""
    until = own.get(labels.UNTIL, "")
    if until.isdigit() and int(until) <= time.time():
        return f"its time ended at {_moment(float(until))}"
    maker = _maker(own)
    return f"its maker, {maker.describe()}, has ended" if maker is not None and maker.fate() == "dead" else None


def _maker(own: dict[str, str]) -> Owner | None:
    """Who made it, by its labels; None where that is not said, or not in our words."""
    try:
        return Owner.model_validate_json(own.get(labels.OWNER) or "null")
    except ValidationError:
        return None


async def _volumes(provider: DockerProvider, dry_run: bool) -> AsyncIterator[Reaped]:
    """Supervisors of other versions that this installation brought here and that nothing uses any more."""
    for name in await volume.outdated(provider.engine, provider.instance, provider.containers.volume().name):
        reason = "holds another version's supervisor"
        if dry_run:
            yield Reaped(kind="volume", name=name, reason=reason, removed=False)
        elif await volume.remove_unused(provider.engine, name):
            yield Reaped(kind="volume", name=name, reason=reason, removed=True)


def _why_forgotten(item: dict[str, Any]) -> str | None:
    """Why a container that only fills a volume may go: its maker is dead, or it is too old to be anybody's."""
    own: dict[str, str] = item.get("Labels") or {}
    if item.get("State") != "created":
        return None
    maker = _maker(own)
    if maker is not None and maker.fate() == "dead":
        return f"{maker.describe()} ended while filling a volume"
    created = own.get(labels.CREATED, "")
    old = created.isdigit() and time.time() - int(created) > FILLER_AGE
    alive = maker is not None and maker.fate() == "alive"
    return "filled a volume, was never started, and was forgotten" if old and not alive else None


async def _drop_filler(provider: DockerProvider, item: dict[str, Any], found: Reaped, dry_run: bool) -> Reaped:
    if not dry_run:
        try:
            await provider.engine.call("remove a helper", lambda api: api.remove_container(item["Id"], v=True))
        except EngineRefused as error:
            if error.status not in (404, 409):
                raise
    return replace(found, removed=not dry_run)


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
