"""Removing on behalf of an agent whose files the host's user may not touch.

Where kinfold does not run as root, what another uid made in a sandbox's directories can only be removed as that uid: by
the supervisor, in one more short container that sees nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from kinfold.errors import PathError
from kinfold.sandbox.base import SCRATCH, SandboxSpec
from kinfold.sandbox.docker.admission import fit_limits, parse_user
from kinfold.sandbox.docker.create import Plan
from kinfold.sandbox.docker.pull import find_image
from kinfold.sandbox.docker.workspaces import DEFAULT_AGENT, UNUSABLE_UIDS, Layout
from kinfold.sandbox.records import SandboxRecord
from kinfold.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from kinfold.sandbox.docker.provider import DockerProvider


async def sweep(provider: DockerProvider, record: SandboxRecord, *, workspace: bool) -> None:
    """Empty the home, and with `workspace` the made workspace, of a sandbox whose container is gone.

    Raises `SandboxError` where the image or the engine is gone too; nothing is lost by that, only left.
    """
    facts = await provider.engine.facts()
    home = provider.workspaces.layout(record.id)
    for target in (home.home, home.workspace) if workspace else (home.home,):
        uid = _whose(record, target, rootless=facts.rootless)
        if uid is None:
            continue
        spec = SandboxSpec(image=record.image, pull="never", user=str(uid), detached=True, keep=0.0)
        dial = provider.workspaces.make_dial(record.id)
        plan = Plan(
            spec=spec,
            limits=fit_limits(spec.limits, facts.cpus),
            image_id=await find_image(provider.engine, spec),
            layout=Layout(root=home.root, workspace=target, home=target, dial=dial, made=True),
            volume=provider.containers.volume().name,
            volume_labels=provider.containers.volume().labels,
            labels=provider.containers.labels_of(record),
        )
        await _empty(provider, plan, record)


async def _empty(provider: DockerProvider, plan: Plan, record: SandboxRecord) -> None:
    try:
        handle = await provider.containers.run(plan, record)
        ref = provider.ref(record.model_copy(update={"handle": handle}), "running")
        sandbox = Sandbox(provider=provider, ref=ref, spec=plan.spec)
        await sandbox.open()
        try:
            names = [entry.path for entry in (await sandbox.list(".", max_entries=1_000_000)).entries]
            for name in [*names, SCRATCH]:
                await _remove(sandbox, name)
        finally:
            await sandbox.aclose()
    finally:
        await provider.containers.remove(record.id)
        provider.forget_channel(record.id)


async def _remove(sandbox: Sandbox, name: str) -> None:
    """What is not the agent's own stays; the caller finds it and says so."""
    try:
        await sandbox.remove(name, recursive=True)
    except PathError as error:
        if error.reason not in ("not_found", "permission_denied"):
            raise


def _whose(record: SandboxRecord, target: Path, *, rootless: bool) -> int | None:
    """The uid inside that owns what is left in `target`; None where nothing of another's is."""
    user = parse_user(str(record.spec["user"])) if record.spec.get("user") else None
    owners = {uid for uid in _owners(target) if uid != os.geteuid()}
    if not owners:
        return None
    if user is not None:
        return user[0]
    return DEFAULT_AGENT if rootless or owners & UNUSABLE_UIDS else min(owners)


def _owners(target: Path) -> Iterator[int]:
    """Of the entries that the host's user can still see."""
    try:
        with os.scandir(target) as entries:
            for entry in entries:
                yield entry.stat(follow_symlinks=False).st_uid
    except (FileNotFoundError, NotADirectoryError):
        return
