"""When a run must stop, and why: its clocks (Lifeline) and its money (Purse)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf
from types import TracebackType

import anyio

from kinfold.messages import EndedBy

_CLAUSES: dict[EndedBy | None, str] = {
    "cancelled": "its run was cancelled",
    "interrupted": "its run was interrupted",
    "timeout": "its run was out of time",
    "no_progress": "its run had made no progress for too long",
}


class Lifeline:
    """One run's clocks and its off switch.

    Three things end the work inside `alive()`: `stop(reason)`, the run's wall clock, and too long without a sign of
    life (`rearm`). A cancellation from outside is none of these: it passes through.
    """

    def __init__(self, *, above: Lifeline | None = None) -> None:
        self._above = above
        self._scope: anyio.CancelScope | None = None
        self._wall = inf
        self._patience = inf
        self._stopped: EndedBy | None = None
        self._persons = 0
        self._person_since = 0.0
        self.started = 0.0
        self.last_progress = 0.0
        """When a block was last completed or a tool last answered."""

    def start(self, *, timeout: float | None, spent: float = 0.0) -> None:
        """Start the wall clock: it ends after `timeout` seconds, None: never; `spent` of them are over already."""
        self.last_progress = anyio.current_time()
        self.started = self.last_progress - spent
        self._wall = inf if timeout is None else self.started + timeout

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return anyio.current_time() - self.started

    @property
    def since_progress(self) -> float:
        """Seconds since the last completed block or tool result."""
        return anyio.current_time() - self.last_progress

    @property
    def stopped(self) -> EndedBy | None:
        """Why somebody stopped this run; None: nobody did."""
        return self._stopped

    def stop(self, reason: EndedBy) -> None:
        """End the work now; the first reason stands."""
        if self._stopped is None:
            self._stopped = reason
        if self._scope is not None:
            self._scope.cancel()

    def reason_from_outside(self) -> EndedBy:
        """Why a cancellation came that this run did not order: the parent's interruption, else a cancel."""
        if self._stopped is not None:
            return self._stopped
        if self._above is not None and self._above.stopped == "interrupted":
            return "interrupted"
        return "cancelled"

    def why_cut(self) -> str:
        """Why what is being cancelled now does not go on, as a clause for its event."""
        return _CLAUSES.get(self._cutting(), "its task was cancelled, or what ran beside it failed")

    def _cutting(self) -> EndedBy | None:
        """Whose end it is: this run's own, else that of the run above it."""
        now = anyio.current_time()
        if self._stopped is not None:
            return self._stopped
        if self._scope is not None and now >= self._scope.deadline:
            return "timeout" if now >= self._wall else "no_progress"
        return None if self._above is None else self._above._cutting()

    def patience(self, seconds: float) -> None:
        """From now on so many seconds may pass without a sign of life."""
        self._patience = seconds
        self.rearm()

    def rearm(self) -> None:
        """A sign of life: a chunk of the model, a heartbeat of a running subagent."""
        if self._scope is not None:
            now = anyio.current_time()
            self._scope.deadline = inf if self._persons else min(self._wall, now + self._patience)

    def progress(self) -> None:
        """A block was completed, or a tool answered."""
        self.last_progress = anyio.current_time()
        self.rearm()

    @contextmanager
    def waiting_for_person(self) -> Iterator[None]:
        """A `with` block in which no clock runs: somebody is waited for. `stop` still ends the work."""
        if not self._persons:
            self._person_since = anyio.current_time()
        self._persons += 1
        self.rearm()
        try:
            yield
        finally:
            self._persons -= 1
            if not self._persons:
                self._wall += anyio.current_time() - self._person_since
            self.rearm()

    def enter(self, scope: anyio.CancelScope, at_most: float | None) -> None:
        """From now on this scope is what ends."""
        self._scope = scope
        if at_most is not None:
            self._wall = anyio.current_time() + at_most
        self.rearm()
        if self._stopped is not None:
            scope.cancel()

    def leave(self) -> None:
        """No work is under way: clocks and `stop` end nothing now."""
        self._scope = None

    def verdict(self) -> EndedBy:
        """Why the work was just ended."""
        return self._stopped or ("timeout" if anyio.current_time() >= self._wall else "no_progress")

    def alive(self, *, at_most: float | None = None) -> Alive:
        """A `with` block for the work: it ends when the work does, or when one of the clocks ends it.

        `at_most` replaces the wall clock: the finalisation step has its own.
        """
        return Alive(self, at_most)


class Alive:
    """One stretch of work under a lifeline; afterwards `ended_by` says why it was ended, None: it ended by itself."""

    def __init__(self, lifeline: Lifeline, at_most: float | None) -> None:
        self._lifeline = lifeline
        self._at_most = at_most
        self._scope = anyio.CancelScope()
        self.ended_by: EndedBy | None = None

    def __enter__(self) -> Alive:
        self._scope.__enter__()
        self._lifeline.enter(self._scope, self._at_most)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> bool:
        self._lifeline.leave()
        swallowed = bool(self._scope.__exit__(exc_type, exc, traceback))
        if self._scope.cancelled_caught:
            self.ended_by = self._lifeline.verdict()
        return swallowed


@dataclass(slots=True, kw_only=True)
class Purse:
    """What a run and all that it started have spent, against its limit and the limits above it. US dollars."""

    limit: float | None = None
    above: Purse | None = None
    spent: float = 0.0
    unpriced: set[str] = field(default_factory=set)
    """Models whose price is not known: with any of them the true cost is unknown, and a budget does not hold."""

    def charge(self, cost: float | None, model: str) -> None:
        """Book one request, here and in every purse above."""
        if cost is None:
            self.unpriced.add(model)
        else:
            self.spent += cost
        if self.above is not None:
            self.above.charge(cost, model)

    @property
    def cost(self) -> float | None:
        """What was spent; None when any of it is not known."""
        return None if self.unpriced else self.spent

    @property
    def exhausted(self) -> bool:
        """Whether this purse or one above is empty."""
        own = self.limit is not None and self.spent >= self.limit
        return own or (self.above is not None and self.above.exhausted)

    @property
    def limited(self) -> bool:
        """Whether any budget holds for this run."""
        return self.limit is not None or (self.above is not None and self.above.limited)
