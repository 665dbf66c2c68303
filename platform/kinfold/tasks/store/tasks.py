"""Tasks, their runs and events in the store: written by the task that runs, read by anyone, also after a crash."""

from __future__ import annotations

import builtins
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from kinfold.errors import ConfigError, NotFound
from kinfold.events import Event, EventBase, ModelRequested, RunEnded, RunStarted
from kinfold.sandbox.owner import Owner
from kinfold.tasks.store.door import Store

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection

Standing = Literal["running", "interrupted", "completed", "aborted", "error"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTask:
    """One task as it is kept. Times are seconds since the epoch."""

    id: str
    user_id: str
    prompt: str
    model: str
    workspace: str
    sandbox_id: str
    status: str
    ended_by: str | None
    owner: Owner
    result: dict[str, Any] | None
    """A `TaskResult` as on the wire; as data, so that one of an older version can always be read."""
    created_at: float
    ended_at: float | None

    @property
    def standing(self) -> Standing:
        """The status; of one that runs, `interrupted` where its process is provably dead: it never ended."""
        if self.status == "running":
            return "interrupted" if self.owner.fate() == "dead" else "running"
        return self.status  # type: ignore[return-value]  # written from `Status` alone


class StoredTasks:
    """The tasks of one store. Every method may raise `StoreError`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def begin(self, task_id: str, *, user_id: str, prompt: str, model: str, setup: str | None = None) -> None:
        """Before anything of the task exists. `setup`: JSON of what a resume needs."""
        from kinfold.tasks.store.tables import tasks

        row = {
            "id": task_id,
            "user_id": user_id,
            "prompt": prompt,
            "model": model,
            "workspace": "",
            "sandbox_id": "",
            "status": "running",
            "owner": Owner.current().model_dump_json(),
            "setup": setup,
            "created_at": time.time(),
        }
        async with (await self._store.database()).writing() as connection:
            await connection.execute(tasks.insert().values(_safe(row)))

    async def opened(self, task_id: str, *, sandbox_id: str, workspace: str) -> None:
        """Its sandbox is there."""
        await self._update(task_id, sandbox_id=sandbox_id, workspace=workspace)

    async def take(self, task: StoredTask) -> None:
        """This process runs it from now on, in place of the dead one. Raises `ConfigError` where another was faster."""
        from kinfold.tasks.store.tables import tasks

        mine = tasks.c.id == task.id, tasks.c.status == "running", tasks.c.owner == task.owner.model_dump_json()
        async with (await self._store.database()).writing() as connection:
            owner = Owner.current().model_dump_json()
            changed = await connection.execute(tasks.update().where(*mine).values(owner=owner))
        if changed.rowcount != 1:
            raise ConfigError(
                f"{task.id} was taken up by another process just now", hint=f"`kinfold tasks show {task.id}`"
            )

    async def open_ids(self) -> frozenset[str]:
        """Those that have not ended: they run, or their process died."""
        from kinfold.tasks.store.tables import tasks

        query = tasks.select().with_only_columns(tasks.c.id).where(tasks.c.status == "running")
        async with (await self._store.database()).reading() as connection:
            return frozenset((await connection.execute(query)).scalars())

    async def setup(self, task_id: str) -> str | None:
        """JSON of what it was asked; None where that was not kept."""
        from kinfold.tasks.store.tables import tasks

        query = tasks.select().with_only_columns(tasks.c.setup).where(tasks.c.id == task_id)
        async with (await self._store.database()).reading() as connection:
            setup: str | None = (await connection.execute(query)).scalar_one_or_none()
        return setup

    async def spent(self, user_id: str, since: float) -> tuple[float, int]:
        """What a user's requests cost since the beginning of that day (UTC), in US dollars; how many have no price."""
        from sqlalchemy import func

        from kinfold.tasks.store.tables import user_usage

        row, day = user_usage.c, datetime.fromtimestamp(since, UTC).date().isoformat()
        sums = func.coalesce(func.sum(row.cost_usd), 0.0), func.coalesce(func.sum(row.unpriced_requests), 0)
        query = user_usage.select().with_only_columns(*sums).where(row.user_id == user_id, row.day >= day)
        async with (await self._store.database()).reading() as connection:
            cost, unpriced = (await connection.execute(query)).one()
        return float(cost), int(unpriced)

    async def discard(self, task_id: str) -> None:
        """It never began."""
        from kinfold.tasks.store.tables import tasks

        async with (await self._store.database()).writing() as connection:
            await connection.execute(tasks.delete().where(tasks.c.id == task_id))

    async def append(
        self, task_id: str, events: Sequence[Event], step: tuple[str, dict[str, Any]] | None = None
    ) -> None:
        """The next events of its log, all or none, and what they say of its runs. What is there already is left.

        `step`: a run's id and a step of it, JSON data, in place of what was kept of the same step; kept with them.
        """
        from kinfold.tasks.store import tables

        rows = [
            {"task_id": task_id, "seq": event.seq, "event": json.dumps(event.dump(), separators=(",", ":"))}
            for event in events
        ]
        async with (await self._store.database()).writing() as connection:
            if rows:
                await connection.execute(tables.events.insert().prefix_with("OR IGNORE"), rows)
            for event in events:
                if isinstance(event, (RunStarted, RunEnded)):
                    await _note_run(connection, event)
                elif isinstance(event, ModelRequested):
                    await _note_request(connection, event)
            if step is not None:  # last: it is of a run that may begin with these events
                row = _step_row(*step)
                await connection.execute(tables.steps.insert().prefix_with("OR REPLACE").values(row))

    async def end(self, task_id: str, *, status: str, ended_by: str, result: dict[str, Any]) -> None:
        """Its result. Nobody resumes it any more: its steps go."""
        from kinfold.tasks.store.tables import runs, steps, tasks

        values = {"status": status, "ended_by": ended_by, "result": json.dumps(result), "ended_at": time.time()}
        its_runs = runs.select().with_only_columns(runs.c.id).where(runs.c.task_id == task_id)
        async with (await self._store.database()).writing() as connection:
            await connection.execute(tasks.update().where(tasks.c.id == task_id).values(_safe(values)))
            await connection.execute(steps.delete().where(steps.c.run_id.in_(its_runs)))

    async def list(self, *, user_id: str | None = None, limit: int = 50) -> builtins.list[StoredTask]:
        """The newest first."""
        from kinfold.tasks.store.tables import tasks

        query = tasks.select().order_by(tasks.c.created_at.desc()).limit(limit)
        if user_id is not None:
            query = query.where(tasks.c.user_id == user_id)
        async with (await self._store.database()).reading() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return [_task(dict(row)) for row in rows]

    async def get(self, wanted: str) -> StoredTask:
        """The task with this id, or whose id begins so. Raises `NotFound`, also where several do."""
        from kinfold.tasks.store.tables import tasks

        begins = wanted if wanted.startswith("task_") else f"task_{wanted}"
        query = tasks.select().where(tasks.c.id.startswith(begins, autoescape=True)).limit(2)
        async with (await self._store.database()).reading() as connection:
            rows = (await connection.execute(query)).mappings().all()
        if len(rows) != 1:
            words = f"no task {wanted!r}" if not rows else f"more than one task begins with {wanted!r}"
            raise NotFound(words, hint="`kinfold tasks list` shows them")
        return _task(dict(rows[0]))

    async def events(self, task_id: str, *, after: int = 0) -> builtins.list[dict[str, Any]]:
        """Its events numbered above `after`, as on the wire. `events.EVENT` makes objects of them."""
        from kinfold.tasks.store.tables import events

        columns = events.c
        query = events.select().where(columns.task_id == task_id, columns.seq > after).order_by(columns.seq)
        async with (await self._store.database()).reading() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return [json.loads(row["event"]) for row in rows]

    async def steps(self, task_id: str) -> builtins.list[tuple[str, dict[str, Any]]]:
        """What `append` kept of its runs' steps, each with its run's id; the oldest run first, each run's in order."""
        from kinfold.tasks.store.tables import runs, steps

        query = (
            steps.select()
            .join(runs, runs.c.id == steps.c.run_id)
            .where(runs.c.task_id == task_id)
            .order_by(runs.c.started_at, runs.c.id, steps.c.step)
        )
        async with (await self._store.database()).reading() as connection:
            rows = (await connection.execute(query)).mappings().all()
        return [(row["run_id"], _step(dict(row))) for row in rows]

    async def export(self, task_id: str) -> dict[str, Any]:
        """All that is kept of it, as one JSON document: `task`, `runs`, `events`, `modelRequests`."""
        from kinfold.tasks.store import tables

        found: dict[str, Any] = {}
        async with (await self._store.database()).reading() as connection:
            for key, table in (("task", tables.tasks), ("runs", tables.runs), ("modelRequests", tables.model_requests)):
                column = table.c.id if key == "task" else table.c.task_id
                rows = (await connection.execute(table.select().where(column == task_id))).mappings().all()
                found[key] = [dict(row) for row in rows]
        task = found["task"][0]
        for name in ("owner", "setup", "result"):
            task[name] = json.loads(task[name]) if task[name] else None
        return {**found, "task": task, "events": await self.events(task_id)}

    async def _update(self, task_id: str, **values: Any) -> None:
        from kinfold.tasks.store.tables import tasks

        async with (await self._store.database()).writing() as connection:
            await connection.execute(tasks.update().where(tasks.c.id == task_id).values(_safe(values)))


async def _note_run(connection: AsyncConnection, event: RunStarted | RunEnded) -> None:
    from kinfold.tasks.store.tables import runs

    if isinstance(event, RunStarted):
        row = {
            "id": event.run_id,
            "task_id": event.task_id,
            "parent_run_id": event.parent_run_id,
            "tool_call_id": event.tool_call_id,
            "kind": event.kind,
            "label": event.label,
            "definition": event.definition,
            "definition_version": event.definition_version,
            "model": event.model,
            "started_at": _moment(event),
        }
        await connection.execute(runs.insert().prefix_with("OR IGNORE").values(_safe(row)))
    else:
        ended = {"status": event.status, "ended_by": event.ended_by, "steps": event.steps, "ended_at": _moment(event)}
        await connection.execute(runs.update().where(runs.c.id == event.run_id).values(ended))


async def _note_request(connection: AsyncConnection, event: ModelRequested) -> None:
    from kinfold.tasks.store.tables import model_requests

    ended = _moment(event)
    row = {
        # A script gives the same ids in every task; an attempt that failed may have the id of the one that did not.
        "id": f"{event.message_id or event.seq}/{event.run_id}/{event.purpose}/{event.attempt}",
        "task_id": event.task_id,
        "run_id": event.run_id,
        "step": event.step,
        "attempt": event.attempt,
        "kind": event.purpose,
        "model": event.model,
        "ended": event.ended,
        "error": event.error,
        "stop_reason": event.stop_reason,
        "request_id": event.request_id,
        **event.usage.model_dump(exclude={"detail"}),
        "detail": event.usage.detail.model_dump_json(exclude_defaults=True) if event.usage.detail else None,
        "estimated": event.estimated,
        "cost_usd": event.cost,
        "started_at": ended - event.seconds,
        "ended_at": ended,
    }
    await connection.execute(model_requests.insert().prefix_with("OR IGNORE").values(_safe(row)))


def _step_row(run_id: str, record: dict[str, Any]) -> dict[str, Any]:
    rest = {name: value for name, value in record.items() if name not in ("step", "messages", "usage")}
    return {
        "run_id": run_id,
        "step": record["step"],
        "messages": json.dumps(record["messages"]),
        "usage": json.dumps(record["usage"]),
        "state": json.dumps(rest),
        "finished_at": time.time(),
    }


def _step(row: dict[str, Any]) -> dict[str, Any]:
    rest: dict[str, Any] = json.loads(row["state"] or "{}")
    return {
        **rest, "step": row["step"], "messages": json.loads(row["messages"]), "usage": json.loads(row["usage"]),
    }  # fmt: skip


def _moment(event: EventBase) -> float:
    return datetime.fromisoformat(event.at).timestamp()


def _safe(row: dict[str, Any]) -> dict[str, Any]:
    """Text that SQLite can hold: what is no UTF-8 (names of files, what a model wrote) is shown as an escape."""
    return {name: _utf8(value) if isinstance(value, str) else value for name, value in row.items()}


def _utf8(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _task(row: dict[str, Any]) -> StoredTask:
    names = StoredTask.__slots__
    values = {name: row[name] for name in names}
    owner = Owner.model_validate_json(row["owner"])
    result = json.loads(row["result"]) if row["result"] else None
    return StoredTask(**{**values, "owner": owner, "result": result})
