"""What is known of a delivered path: its metadata as an artifact, and whether this run changed it.

The snapshot that it compares with is metadata alone, so `unchanged` is claimed only where that proves it: for a regular
file whose inode, size, modification and change times are the same. What lies behind a link or deep in a directory may
have been rewritten in place; there the answer is `modified` where it shows, else `unknown`.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from kinfold.messages import Artifact, Change, FsType
from kinfold.sandbox.base import WORKSPACE, FileStat, Snapshot
from kinfold.tools.base import RunState

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TYPES: dict[str, FsType] = {"file": "file", "directory": "directory", "symlink": "symlink"}


def artifact(path: str, found: FileStat, state: RunState) -> Artifact | None:
    """The artifact at the absolute `path`, of a stat with `claim=True`; None for what cannot be delivered."""
    fs_type = _TYPES.get(found.type)
    if fs_type is None or (fs_type == "symlink" and found.target_type not in ("file", "directory")):
        return None
    return Artifact(
        path=path,
        size=found.size,
        fs_type=fs_type,
        modified_at=modified_at(found.mtime_ns),
        sha256=found.sha256,
        change=change(path, found, state),
        entries=found.entries,
        target=None if found.target is None else _sayable(found.target),
    )


def change(path: str, found: FileStat, state: RunState) -> Change:
    """How the path differs from the run's start."""
    snapshot = state.snapshot
    if snapshot is None or snapshot.truncated:
        return "unknown"
    relative = path[len(WORKSPACE) + 1 :]
    before = snapshot.entries.get(relative)
    if before is None and relative:
        return "created"
    if before is not None and not _same(before, found, sizes=found.type == "file"):
        return "modified"
    if found.type == "file":
        return "unchanged"
    if found.type == "directory" and _content_differs(relative, found, snapshot):
        return "modified"
    return "modified" if any(written.startswith(f"{path}/") for written in state.written) else "unknown"


def modified_at(mtime_ns: int) -> str | None:
    """RFC 3339 in UTC with milliseconds; None for a time that no calendar holds (a file may claim any)."""
    try:
        moment = _EPOCH + timedelta(milliseconds=mtime_ns // 1_000_000)
    except OverflowError:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _same(before: FileStat, now: FileStat, *, sizes: bool) -> bool:
    """Whether the metadata agrees. A claim's size of a link or directory is that of what it holds, not its own."""
    same = (before.type, before.inode, before.mtime_ns, before.ctime_ns) == (
        now.type, now.inode, now.mtime_ns, now.ctime_ns,
    )  # fmt: skip
    return same and (not sizes or before.size == now.size)


def _content_differs(relative: str, found: FileStat, snapshot: Snapshot) -> bool:
    """Whether number or total size of the regular files beneath a directory changed."""
    prefix = f"{relative}/" if relative else ""
    beneath = [
        entry.size for name, entry in snapshot.entries.items() if entry.type == "file" and name.startswith(prefix)
    ]
    return (len(beneath), sum(beneath)) != (found.entries, found.size)


def _sayable(target: str) -> str:
    """A link's target as valid text: links are hostile bytes, and an artifact crosses to JSON."""
    return target.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
