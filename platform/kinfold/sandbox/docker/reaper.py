"""Removing what is left over: only what a record and the labels both call ours, and what is provably dead or expired.

Anything else is reported and left: a container without a record, a record that cannot be read, an owner on another
machine. Every entry says why.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from kinfold.errors import KinfoldError
from kinfold.sandbox.base import SandboxRef
from kinfold.sandbox.docker import labels, volume
from kinfold.sandbox.docker.client import EngineRefused
from kinfold.sandbox.records import RecordList, SandboxRecord

if TYPE_CHECKING:
    from kinfold.sandbox.docker.provider import DockerProvider

FILLER_AGE = 600.0
"""Seconds after which a container that only fills a volume, and was never started, was surely forgotten."""

Kind = Literal["sandbox", "workspace", "container", "volume", "record"]


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


async def reap(provider: DockerProvider, dry_run: bool = False) -> list[Reaped]:
    """Remove what is dead or expired of this instance on this engine; with `dry_run` only say so.

    Safe beside other reapers and beside processes that create sandboxes. Raises `EngineUnavailable`.
    """
    found = await provider.records.list()
    reaped = [item async for item in _records(provider, found, dry_run)]
    reaped += [item async for item in _containers(provider, found, dry_run)]
    reaped += [item async for item in _volumes(provider, dry_run)]
    reaped += [
        Reaped(kind="record", name=broken.source, reason=f"cannot be read: {broken.reason}", removed=False, kept=True)
        for broken in found.broken
    ]
    return reaped


async def _records(provider: DockerProvider, found: RecordList, dry_run: bool) -> AsyncIterator[Reaped]:
    engine_id = (await provider.engine.facts()).id
    for record in found.records:
        ours = (record.provider, record.instance) == (provider.name, provider.instance)
        if not ours or record.engine != engine_id:
            continue
        if record.state == "released":
            if record.keep_until is not None and record.keep_until <= time.time():
                yield await _drop_workspace(provider, record, dry_run)
            continue
        reason = _why_dead(record)
        if reason is not None:
            yield await _drop_sandbox(provider, record, reason, dry_run)


def _why_dead(record: SandboxRecord) -> str | None:
    """Why this sandbox may go; None where it may not."""
    if record.detached:
        expired = record.expires_at is not None and record.expires_at <= time.time()
        if expired:
            return f"its lease ended at {_moment(record.expires_at or 0.0)}"
        unborn = record.state == "intended" and record.owner.fate() == "dead"
        return f"{record.owner.describe()} ended while creating it" if unborn else None
    if record.owner.fate() != "dead":
        return None
    act = "ended while creating it" if record.state == "intended" else "has ended"
    return f"its owner, {record.owner.describe()}, {act}"


async def _drop_sandbox(provider: DockerProvider, record: SandboxRecord, reason: str, dry_run: bool) -> Reaped:
    if not dry_run:
        try:
            await provider.destroy(SandboxRef(id=record.id, provider=provider.name, handle=record.handle))
        except KinfoldError as error:
            return Reaped(kind="sandbox", name=record.id, reason=f"{reason}; not removed: {error}", removed=False)
    return Reaped(kind="sandbox", name=record.id, reason=reason, removed=not dry_run)


async def _drop_workspace(provider: DockerProvider, record: SandboxRecord, dry_run: bool) -> Reaped:
    reason = f"kept until {_moment(record.keep_until or 0.0)}"
    if not dry_run:
        left = await provider.remove_directories(record, workspace=True)
        if left:
            return Reaped(
                kind="workspace", name=record.id, reason=f"{reason}; would not go: {'; '.join(left[:3])}", removed=False
            )
        await provider.records.release(record.id)
    return Reaped(kind="workspace", name=record.id, reason=reason, removed=not dry_run)


async def _containers(provider: DockerProvider, found: RecordList, dry_run: bool) -> AsyncIterator[Reaped]:
    """Containers with this instance's label that no record speaks of."""
    known = {record.id for record in found.records}
    filters = {"label": [f"{labels.INSTANCE}={provider.instance}"]}
    listed = await provider.engine.call("list containers", lambda api: api.containers(all=True, filters=filters))
    for item in listed:
        own: dict[str, str] = item.get("Labels") or {}
        name = str((item.get("Names") or [item["Id"][:12]])[0]).lstrip("/")
        if own.get(labels.ROLE) == labels.ROLE_FILLER:
            if _forgotten_filler(item):
                yield await _drop_filler(provider, item, name, dry_run)
        elif own.get(labels.SANDBOX) not in known:
            reason = f"has our label but no record, left: `docker rm -f {item['Id'][:12]}` removes it"
            yield Reaped(kind="container", name=name, reason=reason, removed=False, kept=True)


async def _volumes(provider: DockerProvider, dry_run: bool) -> AsyncIterator[Reaped]:
    """Supervisors of other versions that this installation brought here and that nothing uses any more."""
    for name in await volume.outdated(provider.engine, provider.instance, provider.containers.volume().name):
        reason = "holds another version's supervisor"
        if dry_run:
            yield Reaped(kind="volume", name=name, reason=reason, removed=False)
        elif await volume.remove_unused(provider.engine, name):
            yield Reaped(kind="volume", name=name, reason=reason, removed=True)


def _forgotten_filler(item: dict[str, Any]) -> bool:
    created = str((item.get("Labels") or {}).get(labels.CREATED, ""))
    return item.get("State") == "created" and created.isdigit() and time.time() - int(created) > FILLER_AGE


async def _drop_filler(provider: DockerProvider, item: dict[str, Any], name: str, dry_run: bool) -> Reaped:
    reason = "filled a volume, was never started, and was forgotten"
    if not dry_run:
        try:
            await provider.engine.call("remove a helper", lambda api: api.remove_container(item["Id"], v=True))
        except EngineRefused as error:
            if error.status not in (404, 409):
                raise
    return Reaped(kind="container", name=name, reason=reason, removed=not dry_run)


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))
