"""`kinfold ledger TASK`: every request to a model in two lanes, with what each context held."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from kinfold.cli.ending import one_line
from kinfold.cli.foreground import run_async
from kinfold.cli.run import load_settings

Row = Mapping[str, Any]


def ledger_command(wanted: str, *, as_json: bool) -> int:
    """Print a task's ledger, from the store; also of one that still runs, or was killed."""
    rows = _requests(wanted)
    if as_json:
        print(json.dumps({"requests": rows, **totals(rows)}, indent=2))
        return 0
    print(f"{'main':>10} {'subagent':>10} {'reply':>8} {'cost':>10}  who")
    for row in rows:
        main, lane = (_sent(row), "") if row["run_kind"] == "main" else ("", _sent(row))
        print(one_line(f"{main:>10} {lane:>10} {row['output_tokens']:>8,} {_money(row['cost_usd']):>10}  {_who(row)}"))
    for name, sums in totals(rows).items():
        told = f"{sums['requests']:,} requests, {sums['promptTokens']:,} tokens sent, {sums['outputTokens']:,} received"
        print(f"{name}: {told}, {_money(sums['cost'])}")
    return 0


def totals(rows: Sequence[Row]) -> dict[str, dict[str, Any]]:
    """Sums of the rows of `main`, of all `subagents`, and of the `task`; a cost with an unknown part is None."""
    lanes = {
        "main": [row for row in rows if row["run_kind"] == "main"],
        "subagents": [row for row in rows if row["run_kind"] != "main"],
        "task": list(rows),
    }
    return {name: _sums(lane) for name, lane in lanes.items()}


def _sums(rows: Sequence[Row]) -> dict[str, Any]:
    costs = [row["cost_usd"] for row in rows]
    return {
        "requests": len(rows),
        "promptTokens": sum(_prompt(row) for row in rows),
        "outputTokens": sum(row["output_tokens"] for row in rows),
        "cost": None if None in costs else sum(costs),
    }


def _requests(wanted: str) -> list[dict[str, Any]]:
    from kinfold.tasks.store.door import Store
    from kinfold.tasks.store.tasks import StoredTasks

    async def read() -> list[dict[str, Any]]:
        async with Store(load_settings({}).state_dir) as store:
            tasks = StoredTasks(store)
            return await tasks.requests((await tasks.get(wanted)).id)

    return run_async(read)


def _prompt(row: Row) -> int:
    return int(row["input_tokens"] + row["cache_creation_tokens"] + row["cache_read_tokens"])


def _sent(row: Row) -> str:
    """What the request held: the size of its agent's context at that step."""
    return f"{'~' if row['estimated'] else ''}{_prompt(row):,}"


def _money(cost: float | None) -> str:
    return "unknown" if cost is None else f"${cost:.4f}"


def _who(row: Row) -> str:
    who = f"{row['label'] or row['run_kind']}, step {row['step']}"
    purpose = "" if row["kind"] == "step" else f", {row['kind']}"
    fate = "" if row["ended"] == "ok" else f", {row['ended']}" + (f" ({row['error']})" if row["error"] else "")
    return f"{who}{purpose}{fate}"
