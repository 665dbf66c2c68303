"""What the live view knows: a fold of the event log into a line per run. Pure; the drawing is in `live.py`."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from kinfold.events import (
    EventBase,
    Heartbeat,
    ModelRequested,
    Retrying,
    RunEnded,
    RunStarted,
    SandboxChanged,
    StepStarted,
    TaskStarted,
    ToolEnded,
    ToolStarted,
    Waiting,
)
from kinfold.messages import Artifact, EndedBy, SkippedPath, Status, Usage


@dataclass(slots=True, kw_only=True)
class RunLine:
    """One run as the tree shows it."""

    run_id: str
    label: str
    """The subagent's description; `main` for the main agent."""
    definition: str = ""
    step: int = 0
    max_steps: int = 0
    last_tool: str = ""
    usage: Usage = field(default_factory=Usage)
    started: datetime | None = None
    ended: datetime | None = None
    status: Status | None = None
    ended_by: EndedBy | None = None
    note: str = ""
    """Why nothing moves: waiting for a slot, retrying."""

    def seconds(self, now: datetime) -> float:
        """Seconds from start to end, or to `now` while it runs."""
        if self.started is None:
            return 0.0
        return max(0.0, ((self.ended or now) - self.started).total_seconds())


@dataclass(slots=True, kw_only=True)
class TreeState:
    """The whole task as seen so far."""

    sandbox: str = ""
    main: RunLine | None = None
    subagents: dict[str, RunLine] = field(default_factory=dict)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    """By path; a later run's claim replaces an earlier one's."""
    owners: dict[str, str] = field(default_factory=dict)
    """Which run delivered a path first, by label."""
    skipped: list[tuple[str, SkippedPath]] = field(default_factory=list)
    ledger: list[EventBase] = field(default_factory=list)
    """The events that the ledger is made of."""

    def line_of(self, event: EventBase) -> RunLine | None:
        """The line an event belongs to."""
        if self.main is not None and event.run_id == self.main.run_id:
            return self.main
        return self.subagents.get(event.run_id)

    def apply(self, event: EventBase) -> None:
        """Fold one event in."""
        match event:
            case TaskStarted(sandbox_id=sandbox):
                self.sandbox = sandbox or self.sandbox
            case SandboxChanged(sandbox_id=sandbox, state=state):
                self.sandbox = sandbox
                if self.main is not None:
                    self.main.note = "" if state == "ready" else f"sandbox {state}"
            case RunStarted():
                self._begin(event)
            case RunEnded():
                self._end(event)
            case Waiting(limit=limit):
                note = f"waits for one of {limit} slots"
                self.subagents[event.run_id] = RunLine(run_id=event.run_id, label=event.label or "", note=note)
            case ModelRequested():
                self.ledger.append(event)
            case _:
                _advance(self.line_of(event), event)

    def _begin(self, event: RunStarted) -> None:
        self.ledger.append(event)
        line = RunLine(
            run_id=event.run_id,
            label=event.label or "main",
            definition=event.definition or "",
            max_steps=event.max_steps,
            started=_when(event.at),
        )
        if event.kind == "main":
            self.main = line
        else:
            self.subagents[event.run_id] = line

    def _end(self, event: RunEnded) -> None:
        line = self.line_of(event)
        if line is None:
            return
        line.status, line.ended_by, line.ended = event.status, event.ended_by, _when(event.at)
        line.step, line.usage, line.note = event.steps, event.usage, ""
        for artifact in event.artifacts:
            self.artifacts[artifact.path] = artifact
            self.owners.setdefault(artifact.path, line.label)
        self.skipped += [(line.label, skipped) for skipped in event.skipped or ()]


def _advance(line: RunLine | None, event: EventBase) -> None:
    if line is None:
        return
    match event:
        case StepStarted(step=step, usage=usage):
            line.step, line.usage, line.note = step, usage, ""
        case ToolStarted(tool=tool):
            line.last_tool, line.note = tool, ""
        case ToolEnded(is_error=True, tool=tool):
            line.last_tool = f"{tool} (failed)"
        case Retrying(attempt=attempt, delay=delay):
            line.note = f"retry {attempt} in {delay:.0f} s"
        case Heartbeat(since_progress=quiet) if quiet >= 30:
            line.note = f"quiet for {quiet:.0f} s"
        case _:
            pass


def _when(at: str) -> datetime | None:
    return datetime.fromisoformat(at) if at else None
