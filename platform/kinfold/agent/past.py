"""What is kept of a task that another process began: each run's steps, how it ended, and what it cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kinfold.agent.kept import StepRecord
from kinfold.agent.run import RunResult
from kinfold.events import EventBase, ModelRequested, RunEnded, RunStarted
from kinfold.messages import DefinitionRef, SubagentRecord, Usage


@dataclass(slots=True, kw_only=True)
class PastRun:
    """One run, as far as it came."""

    started: RunStarted
    steps: list[StepRecord] = field(default_factory=list)
    """In order; none where it was cut before its first request."""
    ended: RunEnded | None = None
    usage: Usage = field(default_factory=Usage)
    """Tokens of its own requests, each attempt counted."""
    cost: float = 0.0
    """US dollars of its own requests, as far as prices are known."""
    unpriced: set[str] = field(default_factory=set)
    """Models that answered it and whose price is not known."""

    @property
    def run_id(self) -> str:
        """Its id, which it keeps."""
        return self.started.run_id

    @property
    def last(self) -> StepRecord | None:
        """The newest that is kept of it."""
        return self.steps[-1] if self.steps else None

    @property
    def record(self) -> SubagentRecord:
        """Of a subagent that has ended: what its parent would have noted."""
        ended = self._end
        return SubagentRecord(
            definition=DefinitionRef(type=self.started.definition or "", version=self.started.definition_version or 1),
            tool_call_id=self.started.tool_call_id or "",
            description=self.started.label or "",
            steps=ended.steps,
            usage=ended.usage,
            status=ended.status,
            started_at=self.started.at,
            completed_at=ended.at,
            ended_by=ended.ended_by,
            cost_usd=self._cost,
        )

    @property
    def result(self) -> RunResult:
        """Of one that has ended: as its event tells it."""
        ended = self._end
        return RunResult(
            run_id=ended.run_id,
            status=ended.status,
            ended_by=ended.ended_by,
            steps=ended.steps,
            summary=ended.summary,
            artifacts=ended.artifacts,
            skipped=ended.skipped or (),
            salvage=ended.salvage,
            error=ended.error,
            usage=ended.usage,
            cost=self._cost,
            warnings=ended.warnings,
            unattributed=ended.unattributed,
        )

    @property
    def _end(self) -> RunEnded:
        if self.ended is None:
            raise ValueError(f"{self.run_id} has not ended")
        return self.ended

    @property
    def _cost(self) -> float | None:
        return None if self.unpriced else self.cost


class Past:
    """All runs of one task so far. A task that begins has an empty one."""

    def __init__(self, events: Iterable[EventBase] = (), steps: Iterable[tuple[str, StepRecord]] = ()) -> None:
        self._runs: dict[str, PastRun] = {}
        for event in events:
            self._take(event)
        for run_id, record in steps:
            if run_id in self._runs:
                self._runs[run_id].steps.append(record)

    def _take(self, event: EventBase) -> None:
        if isinstance(event, RunStarted):
            self._runs[event.run_id] = PastRun(started=event)
        elif (run := self._runs.get(event.run_id)) is not None:
            match event:
                case RunEnded():
                    run.ended = event
                case ModelRequested(estimated=False):
                    run.usage = run.usage + event.usage
                    run.cost += event.cost or 0.0
                    if event.cost is None:
                        run.unpriced.add(event.model)

    @property
    def main(self) -> PastRun | None:
        """The main agent's; None: it had not begun."""
        return next((run for run in self._runs.values() if run.started.kind == "main"), None)

    @property
    def runs(self) -> Sequence[PastRun]:
        """All, in the order of their beginning."""
        return tuple(self._runs.values())

    @property
    def subagents(self) -> Sequence[PastRun]:
        """Those that the main agent started, in the order of their beginning."""
        return tuple(run for run in self._runs.values() if run.started.kind == "subagent")

    def of_call(self, tool_call_id: str) -> PastRun | None:
        """The subagent that this call started; None: it never began."""
        return next((run for run in reversed(self.subagents) if run.started.tool_call_id == tool_call_id), None)
