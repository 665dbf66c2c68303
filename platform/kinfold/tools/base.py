"""What a tool is: a value, not a class hierarchy. The loop knows only the flags `parallel` and `final`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from kinfold.events import Emit
from kinfold.messages import Artifact, ImageBlock, SkippedPath, TaskOutput, TextBlock
from kinfold.sandbox.base import Snapshot
from kinfold.tools.writers import Writers

if TYPE_CHECKING:
    from kinfold.sandbox.sandbox import Sandbox
    from kinfold.tools.people import People


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolOutcome:
    """What a tool hands to the model: text and images, within the tool's byte budget."""

    content: tuple[TextBlock | ImageBlock, ...]
    is_error: bool = False
    data: Any = None
    """The typed value behind the text (a `TaskOutput`), for events and `compact`; never sent to a model."""

    @classmethod
    def of(cls, text: str, *, is_error: bool = False, data: Any = None) -> ToolOutcome:
        """An outcome of one text block."""
        return cls(content=(TextBlock(text=text),), is_error=is_error, data=data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What `complete` returns instead of an outcome: the run's delivery. Control flow is by this type."""

    summary: str
    artifacts: tuple[Artifact, ...] = ()
    skipped: tuple[SkippedPath, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """What the `task` tool asks of its one upward callable."""

    subagent_type: str
    description: str
    prompt: str
    tool_call_id: str
    expected_outputs: tuple[str, ...] = ()
    """Globs of files that must exist before the subagent's `complete` is accepted."""


Spawn = Callable[[SpawnRequest], Awaitable[TaskOutput]]


@dataclass(slots=True, kw_only=True)
class Todo:
    """One item of an agent's own list."""

    content: str
    status: str = "pending"


@dataclass(slots=True, kw_only=True)
class RunState:
    """What one run's tools share and mutate; fresh per run, never inherited."""

    todos: list[Todo] = field(default_factory=list)
    read_versions: dict[str, str] = field(default_factory=dict)
    """Absolute container path → sha256 as this agent last read or wrote it (for compare-and-swap)."""
    written: set[str] = field(default_factory=set)
    """Absolute container paths that this run's tools wrote."""
    snapshot: Snapshot | None = None
    """The workspace's metadata at the run's start; None: not taken, so `change` is `unknown`."""
    complete_refused: bool = False
    """`complete` was answered with an error once; the second time it is accepted with a warning."""
    outputs_refused: bool = False
    """The same for expected outputs that were absent."""
    last_tool_error: str | None = None
    spills: int = 0
    """Tool results that went to a file under `.kinfold/`."""
    exec_offsets: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Id of an exec with processes left → bytes of its stdout and stderr that this agent was shown already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolContext:
    """What a tool call may touch. The parent task owns the sandbox; a tool borrows it."""

    task_id: str
    run_id: str
    call_id: str
    sandbox: Sandbox
    state: RunState
    emit: Emit
    event_fields: dict[str, Any]
    """task_id, run_id, parent_run_id, label, tool_call_id: what every event of this run carries."""
    exec_id: str = ""
    """For the one exec that this call may have to find again after a crash; empty: any."""
    timezone: str = "UTC"
    env: dict[str, str] = field(default_factory=dict)
    """Per-run environment for execs (its own TMPDIR)."""
    spawn: Spawn | None = None
    """None in a subagent: depth is 1."""
    people: People | None = None
    """Who answers questions; None in a subagent, and where nobody does."""
    writers: Writers = field(default_factory=Writers)
    """Who wrote what in the shared workspace; one record for all runs of the task."""
    expected_outputs: tuple[str, ...] = ()
    failed_siblings: int = 0
    """How many other calls of this step failed; `complete` runs last and looks."""
    why_cut: Callable[[], str] = lambda: "it was cancelled"
    """Why a call that is just being cancelled does not go on, as a clause; asked at that moment."""


ToolCallable = Callable[[ToolContext, Any], Awaitable[ToolOutcome | Completion]]
Recover = Callable[[ToolContext, Any], Awaitable[ToolOutcome | Completion | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One entry of the dispatch map."""

    key: str
    words: str
    """What the model is told; comes from the `.md` beside the tool."""
    arguments: type[BaseModel]
    call: ToolCallable
    parallel: bool = False
    """May run together with other parallel calls of its step."""
    final: bool = False
    """Runs last and alone in its step."""
    recover: Recover | None = None
    """Answers a call during which the process died, in the one that resumes the run: by making it again where that
    does no harm, or by finding out what became of it. None, or what gives None: the model is told that nobody knows."""
    result_budget: int = 32_768
    """Bytes of text that go to the model; the rest goes to a file under `.kinfold/` with a pointer."""
    compact: Callable[[ToolOutcome], str] | None = None
    """What must stay of a result when the context is compacted."""
