"""How a sandbox ends: claimed first, so that one process does it; its container removed with proof; then its files.

The record keeps why. Where the records cannot be read or written, the container is removed all the same: what is left
is a record of a sandbox that is no more, and the reaper finishes it.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from typing import TYPE_CHECKING

import anyio
import anyio.to_thread

from kinfold.errors import KinfoldError, LeaseLost, SandboxError, StoreError
from kinfold.sandbox.base import SandboxRef, SandboxSpec
from kinfold.sandbox.docker import workspaces
from kinfold.sandbox.docker.intent import terms
from kinfold.sandbox.docker.sweep import sweep
from kinfold.sandbox.lifetime import Lifetime
from kinfold.sandbox.owner import Owner
from kinfold.sandbox.record import SandboxRecord

if TYPE_CHECKING:
    from kinfold.sandbox.docker.provider import DockerProvider

logger = logging.getLogger(__name__)
_CLAIMS = 20
"""How often a claim is tried on a record that keeps changing (its holder renews)."""


_under_way: Counter[str] = Counter()
"""What this process is removing now: a claim of its own that is not among these was left by a failed attempt."""


def is_claimed(record: SandboxRecord) -> bool:
    """Whether somebody who may still run is removing it."""
    by = record.claimed_by
    if by is None:
        return False
    return _under_way[record.id] > 0 if by == Owner.current() else by.fate() != "dead"


async def end(provider: DockerProvider, ref: SandboxRef, reason: str, *, keep: bool = True) -> None:
    """End this sandbox, whoever holds it; without `keep` its workspace goes too. Idempotent.

    Raises `EngineUnavailable`; the claimed record then stays for the reaper.
    """
    for _ in range(_CLAIMS):
        record = await _claimable(provider, ref.id)
        if record is None:
            await end_unrecorded(provider, ref.id, ref.handle)
            return
        if not record.live and (record.state == "released" or is_claimed(record)):
            await provider.containers.remove(ref.id, ref.handle)  # who has the claim does the rest
            provider.forget_channel(ref.id)
            return
        try:
            await claim_and_remove(provider, record, reason, keep=keep)
            return
        except LeaseLost:
            continue
        except StoreError as error:
            _warn_of_store(ref.id, error)
            await end_unrecorded(provider, ref.id, ref.handle or record.handle)
            return
    raise SandboxError(f"the record of sandbox {ref.id} never holds still", hint="end its holder, then try again")


def lifetime(provider: DockerProvider, record: SandboxRecord, spec: SandboxSpec, *, ends: bool) -> Lifetime:
    """The watch over a sandbox that this process has open; without `ends` it renews the lease and no more."""
    held = record

    async def renew(expires_at: float) -> None:
        nonlocal held
        held = await provider.records.renew(held, expires_at)

    async def expire(reason: str, by_idle: bool) -> bool:
        used = by_idle and await _is_renewed(provider, record.id)
        if used or not ends:
            return False
        await end(provider, provider.ref(record, "running"), reason)
        return True

    return Lifetime(terms(spec, record.created_at), expire=expire, renew=renew if spec.idle_ttl is not None else None)


async def _is_renewed(provider: DockerProvider, sandbox_id: str) -> bool:
    """Whether another process has just renewed the lease."""
    try:
        found = (await provider.records.list(id=sandbox_id)).records
    except StoreError:
        return False  # unknown: its end is what was asked for
    return bool(found) and found[0].live and not found[0].expired(time.time() + 1.0)


async def noted_reason(provider: DockerProvider, sandbox_id: str) -> str:
    """Why it was ended, as its record says; empty where it was not, or nobody knows."""
    try:
        found = (await provider.records.list(id=sandbox_id, gone=True)).records
    except StoreError:
        return ""
    return "" if not found or found[0].live else found[0].reason


async def end_unrecorded(provider: DockerProvider, sandbox_id: str, handle: str) -> None:
    """End one of whose record nothing can be had. Its workspace stays: whether it may go is what the record said."""
    await provider.containers.remove(sandbox_id, handle)
    provider.forget_channel(sandbox_id)
    left = await anyio.to_thread.run_sync(lambda: provider.workspaces.remove(sandbox_id, workspace=False))
    if left:
        logger.warning("sandbox %s: left on the host: %s", sandbox_id, "; ".join(left[:5]))


async def claim_and_remove(
    provider: DockerProvider, record: SandboxRecord, reason: str, *, keep: bool = True
) -> tuple[str, ...]:
    """Claim it as it was read, and remove it; gives back what of its files would not go.

    A workspace is kept once only. Raises `LeaseLost` where another came first, `NotFound`, `StoreError`.
    """
    _under_way[record.id] += 1  # before the claim: once it is there, others of this process can read it
    try:
        held = await provider.records.claim(record, Owner.current(), reason)
        return await _remove(provider, held, keep=keep and held.keep_until is None)
    finally:
        _under_way[record.id] -= 1


async def _remove(provider: DockerProvider, record: SandboxRecord, *, keep: bool) -> tuple[str, ...]:
    await provider.containers.remove(record.id, record.handle)
    provider.forget_channel(record.id)
    return await _finish(provider, record, keep=keep)


async def _finish(provider: DockerProvider, record: SandboxRecord, *, keep: bool) -> tuple[str, ...]:
    """The container is gone: remove what is ours on the host, release the record; gives back what would not go."""
    kept_for = float(record.spec.get("keep", 0.0)) if keep else 0.0
    keeps = record.made and kept_for > 0
    left = await remove_directories(provider, record, workspace=not keeps)
    if not record.made:
        left += tuple(await anyio.to_thread.run_sync(workspaces.remove_scratch, record.workspace))
    until = time.time() + kept_for if keeps else None
    if left:
        logger.warning("sandbox %s: left on the host: %s", record.id, "; ".join(left[:5]))
        until = until or time.time()
    try:
        await provider.records.release(record, keep_until=until)
    except LeaseLost as error:
        logger.info("sandbox %s: %s", record.id, error)  # another one finished it first
    except StoreError as error:
        logger.warning(
            "sandbox %s has ended, its record could not be closed: %s; `kinfold reap` will", record.id, error
        )
    return left


async def remove_directories(provider: DockerProvider, record: SandboxRecord, *, workspace: bool) -> tuple[str, ...]:
    """Remove what is ours on the host; gives back what would not go."""

    def remove() -> tuple[str, ...]:
        return tuple(provider.workspaces.remove(record.id, workspace=workspace))

    left = await anyio.to_thread.run_sync(remove)
    if left and os.geteuid() != 0:
        try:
            await sweep(provider, record, workspace=workspace)
        except KinfoldError as error:
            return (*left, f"removing as the agent failed: {error}")
        left = await anyio.to_thread.run_sync(remove)
    return left


async def _claimable(provider: DockerProvider, sandbox_id: str) -> SandboxRecord | None:
    """The record as it stands; None where there is none, or it cannot be had."""
    try:
        known = await provider.records.list(id=sandbox_id)
    except StoreError as error:
        _warn_of_store(sandbox_id, error)
        return None
    found = known.records
    for broken in known.broken:
        logger.warning("sandbox %s is ended without its record, which cannot be read: %s", sandbox_id, broken.reason)
    if not found:
        return None
    await _check_engine(provider, found[0])
    return found[0]


def _warn_of_store(sandbox_id: str, error: StoreError) -> None:
    logger.warning("sandbox %s is ended without its record: %s (%s)", sandbox_id, error, error.hint)


async def _check_engine(provider: DockerProvider, record: SandboxRecord) -> None:
    if record.engine not in ("", (await provider.engine.facts()).id):
        raise SandboxError(
            f"sandbox {record.id} lives on another engine than {provider.engine.endpoint}",
            hint="point DOCKER_HOST at the engine that it was created on",
        )
