"""Who wrote what in the workspace that all runs of one task share, and who else could have.

A tool that names its file is on record here. A program is not: what a command changes shows in a snapshot only, so it
is known which runs had one running, and no more than that is claimed.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from kinfold.tools.names import shown

MAX_LABEL = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Write:
    """One file as a tool left it."""

    run_id: str
    sha256: str
    at: int
    """A tick of the record's own count; later writes have higher ones."""


@dataclass(slots=True)
class _Presence:
    """A run from its beginning to its end, and when it had programs running."""

    label: str
    began: int
    ended: int | None = None
    spans: list[list[int | None]] = field(default_factory=list)

    def could_change(self, since: int) -> bool:
        """Whether a program of it ran at `since` or later."""
        return any(end is None or end >= since for _, end in self.spans)


class Writers:
    """The record of one task; every run of the task has the same one."""

    def __init__(self) -> None:
        self._ticks = itertools.count(1)
        self._runs: dict[str, _Presence] = {}
        self._writes: dict[str, dict[str, Write]] = {}

    def begin(self, run_id: str, label: str | None) -> None:
        """A run is live from now on; without a label it is the main agent."""
        name = f"'{shown(label)[:MAX_LABEL]}'" if label else "the main agent"
        self._runs.setdefault(run_id, _Presence(f"{name} ({run_id})", next(self._ticks)))

    def restore(self, run_id: str, label: str | None, writes: Mapping[str, str], *, ran_programs: bool) -> None:
        """A run that another process began: live again, with what its tools wrote by then, each file's sha256."""
        self.begin(run_id, label)
        for path, sha256 in writes.items():
            self.wrote(path, run_id, sha256)
        if ran_programs:
            self._runs[run_id].spans.append([self._runs[run_id].began, next(self._ticks)])

    def end(self, run_id: str) -> None:
        """A run is over, and every program of it."""
        run = self._runs[run_id]
        run.ended = next(self._ticks)
        for span in run.spans:
            span[1] = run.ended if span[1] is None else span[1]

    @contextmanager
    def program(self, run_id: str) -> Iterator[list[bool]]:
        """While a call runs that may change files without naming them; set the yielded `[False]` when some go on."""
        span: list[int | None] = [next(self._ticks), None]
        self._runs.setdefault(run_id, _Presence(run_id, 0)).spans.append(span)
        goes_on = [False]
        try:
            yield goes_on
        finally:
            if not goes_on[0]:
                span[1] = next(self._ticks)

    def wrote(self, path: str, run_id: str, sha256: str) -> None:
        """A tool of this run left the file at the absolute `path` with that content."""
        self._writes.setdefault(path, {})[run_id] = Write(run_id=run_id, sha256=sha256, at=next(self._ticks))

    def written_by(self, run_id: str) -> dict[str, str]:
        """Every file that this run's tools wrote, with the sha256 of what they left."""
        return {path: writes[run_id].sha256 for path, writes in self._writes.items() if run_id in writes}

    def last(self, path: str, *, but: str) -> str | None:
        """The label of the run whose tool wrote the file last; None where that is `but`, or nobody."""
        writes = self._writes.get(path)
        if not writes:
            return None
        latest = max(writes.values(), key=lambda write: write.at)
        return None if latest.run_id == but else self.label(latest.run_id)

    def label(self, run_id: str) -> str:
        """How a run is named to others."""
        run = self._runs.get(run_id)
        return run_id if run is None else run.label

    def shared(self, run_id: str) -> dict[str, list[str]]:
        """The files that this run's tools wrote and another's too, with the others' labels."""
        found = {}
        for path, writes in self._writes.items():
            if run_id in writes and len(writes) > 1:
                found[path] = [self.label(other) for other in writes if other != run_id]
        return found

    def others_ran_programs(self, run_id: str) -> bool:
        """Whether another run had a program running since this run began: else every change is this run's."""
        since = self._runs[run_id].began
        return any(run.could_change(since) for other, run in self._runs.items() if other != run_id)

    def live_beside(self, run_id: str) -> tuple[str, ...]:
        """The labels of all runs, this one among them, that had a program running since this one began."""
        since = self._runs[run_id].began
        return tuple(run.label for run in self._runs.values() if run.could_change(since))

    def owner(self, path: str, run_id: str) -> str | None:
        """Whose tool wrote the file since this run began: `run_id` before all others; None: no tool did."""
        since = self._runs[run_id].began
        writes = [write for write in self._writes.get(path, {}).values() if write.at >= since]
        if any(write.run_id == run_id for write in writes):
            return run_id
        return max(writes, key=lambda write: write.at).run_id if writes else None

    def ran_programs(self, run_id: str) -> bool:
        """Whether this run ever had a program running."""
        return bool(self._runs[run_id].spans)
