"""What delegating cost and what it kept out of the main context, reckoned from the events of a task.

Two counters for each request, by the one estimator: *as sent*, everything that it holds, and *card text*, what was
said, asked of tools and answered. What main carries it pays again with each later request: that is its rent.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from kinfold.events import EventBase, ModelRequested, RunStarted
from kinfold.messages import Usage

Verdict = Literal["worth_it", "trivial"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationCost:
    """One delegation, in estimated tokens. It was worth it where it kept out more than it added, else trivial."""

    run_id: str
    label: str
    requests: int
    added: int
    """What the call and its result brought into the main context; 0 while no request of main carried them."""
    inline: int
    """What the same work would have brought there: all that the subagent's own context grew by."""
    rent: int
    """`added`, once for each request of main that carried it so far."""
    cost: float | None
    """US dollars of the subagent's requests; None: a price is not known."""

    @property
    def kept_out(self) -> int:
        """Of the main context; below 0 where inline would have been smaller."""
        return self.inline - self.added

    @property
    def verdict(self) -> Verdict:
        """Journeys are worth a delegation, errands are not."""
        return "worth_it" if self.kept_out > self.added else "trivial"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """All requests of a task, in order, and its delegations."""

    requests: tuple[ModelRequested, ...]
    delegations: tuple[DelegationCost, ...]

    @property
    def usage(self) -> Usage:
        """What services reported, retries and failures included; estimates are not."""
        return sum((request.usage for request in self.requests if not request.estimated), Usage())

    @property
    def cost(self) -> float | None:
        """US dollars of the same; None: a price is not known."""
        return _cost(self.requests)


def ledger_of(events: Iterable[EventBase]) -> Ledger:
    """The ledger of one task. Events of other kinds are passed over."""
    requests: list[ModelRequested] = []
    subagents: list[RunStarted] = []
    for event in events:
        if isinstance(event, ModelRequested):
            requests.append(event)
        elif isinstance(event, RunStarted) and event.kind == "subagent":
            subagents.append(event)
    main = [request for request in requests if request.parent_run_id is None and _carries(request)]
    folded = [request.seq for request in requests if request.parent_run_id is None and request.purpose == "compaction"]
    delegations = [_delegation(run, requests, main, folded) for run in subagents]
    return Ledger(requests=tuple(requests), delegations=tuple(delegations))


def _delegation(
    run: RunStarted, requests: Sequence[ModelRequested], main: Sequence[ModelRequested], folded: Sequence[int]
) -> DelegationCost:
    own = [request for request in requests if request.run_id == run.run_id]
    call = run.tool_call_id or ""
    merged = next((place for place, request in enumerate(main) if call in request.results), len(main))
    added = main[merged].results[call] if merged < len(main) else 0
    until = next((seq for seq in folded if merged < len(main) and seq > main[merged].seq), None)  # no more of it then
    carried = sum(until is None or request.seq < until for request in main[merged:])
    return DelegationCost(
        run_id=run.run_id,
        label=run.label or "",
        requests=len(own),
        added=added,
        inline=_growth([request for request in own if _carries(request)]),
        rent=added * carried,
        cost=_cost(own),
    )


def _carries(request: ModelRequested) -> bool:
    """Whether it is one of those that make up a conversation: answered, and no summary of it."""
    return request.ended == "ok" and request.purpose != "compaction"


def _growth(own: Sequence[ModelRequested]) -> int:
    """What a lane grew by, compactions of it not taken off, and its last reply."""
    if not own:
        return 0
    steps = (max(0, after.sent_tokens - before.sent_tokens) for before, after in pairwise(own))
    return sum(steps) + own[-1].usage.output_tokens


def _cost(requests: Iterable[ModelRequested]) -> float | None:
    total = 0.0
    for request in requests:
        if request.estimated:
            continue
        if request.cost is None:
            return None
        total += request.cost
    return total
