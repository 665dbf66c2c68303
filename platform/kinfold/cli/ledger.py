"""`kinfold ledger TASK`: every request of a task, lane by lane and step by step, and what each delegation paid."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kinfold.agent.ledger import Ledger, ledger_of
from kinfold.cli.closing import delegation_lines
from kinfold.cli.columns import show_rows
from kinfold.cli.ending import one_line
from kinfold.cli.tasks import read_tasks
from kinfold.events import EVENT, ModelRequested

if TYPE_CHECKING:
    from kinfold.tasks.store.tasks import StoredTasks

HEADINGS = ("lane", ">step", "what", "ended", "model", ">card text", ">as sent", ">in", ">out", ">cost")


def ledger_command(wanted: str, *, as_json: bool) -> int:
    """Print it; also of a task that still runs, as far as it has come."""

    async def found(tasks: StoredTasks) -> list[dict[str, Any]]:
        return await tasks.events((await tasks.get(wanted)).id)

    ledger = ledger_of([EVENT.validate_python(event) for event in read_tasks(found)])
    if as_json:
        print(json.dumps(_dumped(ledger), indent=2))
        return 0
    show_rows(HEADINGS, [_row(request) for request in ledger.requests])
    for line in delegation_lines(ledger):
        print(one_line(line))
    usage = ledger.usage
    sent = f"in all {usage.prompt_tokens:,} tok sent ({usage.cache_hit_rate:.0%} of it from the cache)"
    print(f"{sent}, {usage.output_tokens:,} received, {_money(ledger.cost)}")
    return 0


def _row(request: ModelRequested) -> tuple[str, ...]:
    ended = request.ended if request.error is None else f"{request.ended} ({request.error})"
    about = "~" if request.estimated else ""
    return (
        request.label or ("main" if request.parent_run_id is None else request.run_id),
        str(request.step),
        request.purpose,
        ended,
        request.model,
        f"{request.card_tokens:,}",
        f"{request.sent_tokens:,}",
        f"{about}{request.usage.prompt_tokens:,}",
        f"{about}{request.usage.output_tokens:,}",
        _money(request.cost),
    )


def _money(cost: float | None) -> str:
    return "cost unknown" if cost is None else f"${cost:.4f}"


def _dumped(ledger: Ledger) -> dict[str, Any]:
    delegations = [{**asdict(cost), "kept_out": cost.kept_out, "verdict": cost.verdict} for cost in ledger.delegations]
    return {
        "requests": [request.dump() for request in ledger.requests],
        "delegations": delegations,
        "usage": {**ledger.usage.dump(), "cacheHitRate": ledger.usage.cache_hit_rate},
        "cost": ledger.cost,
    }
