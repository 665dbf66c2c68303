"""`kinfold tasks …`: what became of each task, read from the store; also of one that still runs, or was killed."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from kinfold.cli.ending import one_line, printable
from kinfold.cli.foreground import run_async
from kinfold.cli.run import load_settings

if TYPE_CHECKING:
    from kinfold.tasks.store.tasks import StoredTask, StoredTasks

T = TypeVar("T")
PROMPT_SHOWN = 60


def list_command(*, user: str | None, limit: int) -> int:
    """One line a task, the newest first: id, how it stands, how it ended, begin, seconds, user, prompt."""

    async def listed(tasks: StoredTasks) -> list[StoredTask]:
        return await tasks.list(user_id=user, limit=limit)

    for task in read_tasks(listed):
        fields = (task.id, task.standing, task.ended_by or "-", _moment(task.created_at), _lasted(task), task.user_id)
        print(one_line("\t".join((*fields, _short(task.prompt)))))
    return 0


def show_command(wanted: str, *, as_json: bool) -> int:
    """Everything of one task that a person asks for; or its result as JSON."""

    async def found(tasks: StoredTasks) -> StoredTask:
        return await tasks.get(wanted)

    task = read_tasks(found)
    if as_json:
        print(json.dumps({"taskId": task.id, "standing": task.standing, "result": task.result}, indent=2))
        return 0
    _show_head(task)
    _show_result(task.result or {})
    return 0


def _show_head(task: StoredTask) -> None:
    lines = {
        "task": task.id,
        "stands": task.standing + (f" (ended by {task.ended_by})" if task.ended_by else ""),
        "began": f"{_moment(task.created_at)}, lasted {_lasted(task)} s",
        "user": task.user_id,
        "model": task.model,
        "sandbox": task.sandbox_id or "-",
        "files": task.workspace or "-",
        "owner": task.owner.describe(),
    }
    for name, value in lines.items():
        print(one_line(f"{name + ':':9}{value}"))
    print(printable(f"prompt:  {task.prompt}"))
    if task.standing == "interrupted":
        print(
            "its process is gone, and it never ended: what its agents wrote is in its files, nothing of it was checked"
        )
        print(f"`kinfold resume {task.id}` goes on with it while its sandbox is there")


def _show_result(result: dict[str, Any]) -> None:
    if result.get("summary"):
        print(printable(f"summary: {result['summary']}"))
    if result.get("error"):
        print(printable(f"error:   {result['error'].get('message')}"))
    for artifact in result.get("artifacts", ()):
        print(one_line(f"artifact: {_artifact_line(artifact)}"))
    for warning in result.get("warnings", ()):
        print(one_line(f"warning: {warning}"))


def events_command(wanted: str, *, after: int, types: list[str]) -> int:
    """The log, one JSON object a line."""

    async def found(tasks: StoredTasks) -> list[dict[str, Any]]:
        return await tasks.events((await tasks.get(wanted)).id, after=after)

    for event in read_tasks(found):
        if not types or event.get("type") in types:
            print(json.dumps(event))
    return 0


def artifacts_command(wanted: str) -> int:
    """What was delivered, by whom: path, kind, size, sha256; that of subagents, too."""

    async def found(tasks: StoredTasks) -> list[dict[str, Any]]:
        return await tasks.events((await tasks.get(wanted)).id)

    for event in read_tasks(found):
        if event.get("type") == "run_ended":
            for artifact in event.get("artifacts", ()):
                print(one_line(f"{event.get('label') or 'main'}\t{_artifact_line(artifact)}"))
    return 0


def export_command(wanted: str) -> int:
    """All that is kept of a task, as one JSON document."""

    async def found(tasks: StoredTasks) -> dict[str, Any]:
        return await tasks.export((await tasks.get(wanted)).id)

    print(json.dumps(read_tasks(found), indent=2))
    return 0


def read_tasks(work: Callable[[StoredTasks], Awaitable[T]]) -> T:
    """What `work` finds in the store of this state directory."""
    from kinfold.tasks.store.door import Store
    from kinfold.tasks.store.tasks import StoredTasks

    async def opened() -> T:
        async with Store(load_settings({}).state_dir) as store:
            return await work(StoredTasks(store))

    return run_async(opened)


def _artifact_line(artifact: dict[str, Any]) -> str:
    digest = artifact.get("sha256") or "-"
    return f"{artifact['path']}\t{artifact['fsType']}\t{artifact['size']:,} bytes\t{artifact['change']}\t{digest}"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def _lasted(task: StoredTask) -> str:
    if task.ended_at is None and task.standing != "running":
        return "-"
    return f"{(task.ended_at or time.time()) - task.created_at:.1f}"


def _short(prompt: str) -> str:
    line = " ".join(prompt.split())
    return line if len(line) <= PROMPT_SHOWN else line[: PROMPT_SHOWN - 1] + "…"
