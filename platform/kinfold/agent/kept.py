"""What is kept of a run after each of its steps: all that another process needs to go on with it, and no more.

Read back from a store, so unknown fields are ignored and new ones have defaults: tasks of older versions always open.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from pydantic import BaseModel, ConfigDict

from kinfold.messages import Message, ToolResult, Usage
from kinfold.sandbox.base import WORKSPACE, FileStat, FileType, Snapshot

SNAPSHOT_KEPT = 20_000
"""Entries of the workspace at a run's start that are kept; of a larger one a resumed run says `change: unknown`."""

Entry = tuple[str, FileType, int, int, int, int]
"""Of one path relative to the workspace: type, size, mtime_ns, ctime_ns, inode."""


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class KeptTodo(_Kept):
    """One item of the agent's own list."""

    content: str
    status: str = "pending"


class Memory(_Kept):
    """What a run knows beside its conversation; the fields are those of `Run`, `RunState` and `RuntimeContext`."""

    env: dict[str, str] = {}
    elapsed: float = 0.0
    """Seconds of its wall clock that are used up."""
    warnings: tuple[str, ...] = ()
    reminders: tuple[str, ...] = ()
    carried: str = ""
    last_reply: str = ""
    nudged: bool = False
    pauses: int = 0
    kept: dict[str, str] = {}
    carried_over: tuple[str, ...] = ()
    scale: float = 1.0
    window_said: bool = False
    compacted_to: int = 0
    todos: tuple[KeptTodo, ...] = ()
    read_versions: dict[str, str] = {}
    writes: dict[str, str] = {}
    """Absolute container path → sha256 as this run's tools left it."""
    ran_programs: bool = False
    complete_refused: bool = False
    outputs_refused: bool = False
    last_tool_error: str | None = None
    spills: int = 0
    exec_offsets: dict[str, tuple[int, int]] = {}


class OpenStep(_Kept):
    """A reply that is not settled yet: which of its calls were answered so far."""

    message: Message
    stop_reason: str
    incomplete: bool = False
    answers: tuple[ToolResult, ...] = ()


class StepRecord(_Kept):
    """One step, or the beginning of one. Step 0 is what the run began with."""

    step: int
    base: int
    """So many messages of the conversation before this step still stand; `messages` follow them."""
    messages: tuple[Message, ...]
    usage: Usage
    """The run's own, after it."""
    memory: Memory
    open: OpenStep | None = None
    """The step's reply, while its calls are not all answered, or while it is the run's last."""
    snapshot: tuple[Entry, ...] | None = None
    """Of step 0: the workspace at the run's start; None: not taken, or too large to keep."""


class Journal(Protocol):
    """Where the steps of a task's runs are kept."""

    async def keep(self, run_id: str, record: StepRecord) -> bool:
        """Keep it in place of an earlier record of the same step, durable when this returns; False: it is not kept.

        Never raises for a store that fails: a run goes on without being resumable.
        """
        ...


def snapshot_entries(snapshot: Snapshot | None) -> tuple[Entry, ...] | None:
    """What is kept of a snapshot."""
    if snapshot is None or snapshot.truncated or len(snapshot.entries) > SNAPSHOT_KEPT:
        return None
    return tuple(
        (path, stat.type, stat.size, stat.mtime_ns, stat.ctime_ns, stat.inode)
        for path, stat in snapshot.entries.items()
    )


def snapshot_of(entries: tuple[Entry, ...] | None) -> Snapshot | None:
    """The snapshot again, as far as comparisons need it."""
    if entries is None:
        return None
    return Snapshot(
        entries={
            path: FileStat(
                path=f"{WORKSPACE}/{path}", type=kind, size=size, mode=0, mtime_ns=mtime, ctime_ns=ctime, inode=inode
            )
            for path, kind, size, mtime, ctime, inode in entries
        }
    )


def conversation(records: Sequence[StepRecord]) -> tuple[Message, ...]:
    """The messages that a run's steps come to, in their order. Raises `ValueError` where they do not fit together."""
    messages: list[Message] = []
    for record in records:
        if record.base > len(messages):
            raise ValueError(f"step {record.step} follows {record.base} messages, and {len(messages)} are kept")
        messages[record.base :] = record.messages
    return tuple(messages)
