"""What a run changed in a workspace that others work in too: by its snapshots, and by what tools say they wrote."""

from __future__ import annotations

from dataclasses import dataclass

from kinfold.agent.run import Run
from kinfold.errors import PathError
from kinfold.messages import Change, FileTouched, Unattributed
from kinfold.sandbox.base import WORKSPACE, FileStat, Snapshot

FILES_TOUCHED = 1_000
"""How many changed files are listed, by path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traces:
    """The changes that are this run's, and those that may be another's."""

    files: tuple[FileTouched, ...] = ()
    unattributed: Unattributed | None = None
    from_record: bool = False
    """Whether nobody could look: `files` are what this run's tools wrote, as they wrote it."""


def recorded(run: Run) -> Traces:
    """What is known when the sandbox cannot be asked: the files that this run's tools wrote, by their last digests."""
    written = sorted(run.config.writers.written_by(run.context.run_id).items())[:FILES_TOUCHED]
    files = tuple(FileTouched(path=path, sha256=sha256, change="unknown") for path, sha256 in written)
    return Traces(files=files, from_record=True)


async def find(run: Run, *, hashed: bool) -> Traces:
    """What differs from the snapshot at the run's start. Not `hashed`: only what no tool explains is looked for.

    A file that another run's tool wrote is that run's. What no tool wrote is this run's where it alone had programs
    running, nobody's claim where several had, and left out where this one had none. Raises `SandboxError`.
    """
    writers, before, me = run.config.writers, run.state.snapshot, run.context.run_id
    contested = run.input.kind == "subagent" and writers.others_ran_programs(me)
    if before is None or not (hashed or contested):
        return Traces()
    own: list[tuple[str, Change]] = []
    nobodys: list[tuple[str, Change]] = []
    try:
        for path, change in _changes(before, await run.context.sandbox.snapshot()):
            owner = writers.owner(f"{WORKSPACE}/{path}", me)
            if owner == me or (owner is None and not contested):
                own.append((path, change))
            elif owner is None:
                nobodys.append((path, change))
        files = await _hashed(run, own, "salvage") if hashed else ()
        unattributed = await _hashed(run, nobodys, "list of unattributed changes")
    except PathError as error:
        await run.warn("salvage_failed", f"the changed files could not be listed: {error.message}")
        return recorded(run)
    runs = writers.live_beside(me)
    return Traces(files=files, unattributed=Unattributed(files=unattributed, runs=runs) if unattributed else None)


async def _hashed(run: Run, changed: list[tuple[str, Change]], where: str) -> tuple[FileTouched, ...]:
    if len(changed) > FILES_TOUCHED:
        await run.warn("salvage_cut", f"{len(changed)} files changed; the {where} has {FILES_TOUCHED}")
        changed = changed[:FILES_TOUCHED]
    stats = await run.context.sandbox.stat([path for path, _ in changed], digest=True) if changed else []
    return tuple(
        FileTouched(path=stat.path, sha256=stat.sha256, change=change)
        for (_, change), stat in zip(changed, stats, strict=True)
        if isinstance(stat, FileStat)
    )


def _changes(before: Snapshot, after: Snapshot) -> list[tuple[str, Change]]:
    changed: list[tuple[str, Change]] = []
    for path, now in sorted(after.entries.items()):
        then = before.entries.get(path)
        if now.type not in ("file", "symlink") or (then is not None and _identity(then) == _identity(now)):
            continue
        if then is None:
            changed.append((path, "unknown" if before.truncated else "created"))
        else:
            changed.append((path, "modified"))
    return changed


def _identity(stat: FileStat) -> tuple[int, int, int, int]:
    return stat.inode, stat.size, stat.mtime_ns, stat.ctime_ns
