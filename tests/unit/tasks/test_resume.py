"""Which tasks can be resumed, and what must be given again; a refusal changes nothing."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.unit.agent.stage import MemorySandbox, calls, complete, tool
from tests.unit.tasks.house import MemoryProvider

from kinfold import ParentTask, ResumedTask, SandboxSpec
from kinfold.errors import ConfigError, KinfoldError, NotFound, SandboxLost, StoreError
from kinfold.events import Event, EventBase, RunEnded, TaskEnded
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.sandbox.allowlist import allowlist
from kinfold.sandbox.base import SandboxRef
from kinfold.sandbox.owner import Owner
from kinfold.tasks.store.door import FILE_NAME
from kinfold.tasks.store.tasks import StoredTasks
from kinfold.tools.base import ToolContext, ToolOutcome
from kinfold.tools.people import People

pytestmark = pytest.mark.anyio
DEAD = Owner.current().model_copy(update={"pid": 2**22 + 1, "started": 1})


class KeptProvider(MemoryProvider):
    """Has the sandbox of the process that died; `create` gives it out by its name, as a real one does."""

    def __init__(self, left: MemorySandbox | None) -> None:
        super().__init__()
        self._left = left

    async def connect(self, ref: SandboxRef) -> MemorySandbox:
        if self._left is None or ref.id != self._left.id:
            raise SandboxLost(f"sandbox {ref.id} has ended: removed by a test")
        return MemorySandbox()

    async def create(self, spec: Any) -> MemorySandbox:
        assert self._left is not None
        assert self._left.spec_given.name == spec.name
        self.made.append(self._left)
        self._left.spec_given = spec
        return self._left


class Killed:
    """A task cut while its first call ran: its store as it was then, with an owner that is dead."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.provider = MemoryProvider()
        self.id = ""
        self.copied = False

    async def begin(self, **arguments: Any) -> None:
        """Run it until its first call, and take the store as it is."""

        async def cut(context: ToolContext, given: Any) -> ToolOutcome:
            self.copy()
            return ToolOutcome.of("too late")

        settings = {"model": ScriptedModel(_reply), "tools": (tool("cut", cut),), "state_dir": self.state / "first"}
        async with ParentTask("do it", provider=self.provider, **{**settings, **arguments}) as task:
            self.id = task.id
            await task.start()
            await task.wait()

    def copy(self) -> None:
        """Keep the store as it is now: it died just then."""
        self.copied = True
        with (
            sqlite3.connect(self.state / "first" / FILE_NAME) as old,
            sqlite3.connect(self.state / FILE_NAME) as new,
        ):
            old.backup(new)
        self.sql("UPDATE tasks SET owner = ?", DEAD.model_dump_json())

    def sql(self, statement: str, *values: Any) -> list[Any]:
        """Change the store behind its back."""
        with sqlite3.connect(self.state / FILE_NAME) as connection:
            return connection.execute(statement, values).fetchall()

    def resumed(self, **arguments: Any) -> ResumedTask:
        """The same again, with all that must be given."""
        (sandbox,) = self.provider.made
        settings = {"model": ScriptedModel(_reply), "tools": (tool("cut", _again),), "state_dir": self.state}
        return ResumedTask(self.id, **{"provider": KeptProvider(sandbox), **settings, **arguments})

    async def refused(self, **arguments: Any) -> KinfoldError:
        """Why it cannot be resumed; nothing has changed then."""
        before = self.sql("SELECT owner, status, sandbox_id FROM tasks")
        task = self.resumed(**arguments)
        with pytest.raises(KinfoldError) as caught:
            async with task:
                await task.start()
        assert self.sql("SELECT owner, status, sandbox_id FROM tasks") == before
        return caught.value


async def _again(context: ToolContext, given: Any) -> ToolOutcome:
    raise AssertionError("told as unknown, never run again")


def _reply(request: ModelRequest) -> ScriptedReply:
    return calls(("cut", {})) if request.step == 1 else complete(f"step {request.step}")


@pytest.fixture
def killed(tmp_path: Path) -> Killed:
    made = Killed(tmp_path)
    (tmp_path / "first").mkdir(mode=0o700)
    return made


async def test_a_task_goes_on_in_its_sandbox_and_its_log_has_no_gap(killed: Killed) -> None:
    await killed.begin()
    async with killed.resumed() as task:
        await task.start()
        result = await task.wait()
        events = [event async for event in task.follow()]
    assert (result.ended_by, result.steps, result.task_id) == ("complete", 2, killed.id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert [event.type for event in events].count("run_started") == 1
    assert [event.type for event in events].count("task_ended") == 1
    assert 0 < task.earlier < len(events)
    kept = [json.loads(row) for (row,) in killed.sql("SELECT event FROM events ORDER BY seq")]
    assert kept == [event.dump() for event in events]
    assert killed.sql("SELECT status, ended_by FROM tasks") == [("completed", "complete")]
    assert any("cut" in warning and "not known" in warning for warning in result.warnings)


@pytest.mark.parametrize("last", [RunEnded, TaskEnded])
async def test_a_task_that_died_at_its_very_end_has_the_result_that_it_would_have_had(
    killed: Killed, last: type[EventBase], monkeypatch: pytest.MonkeyPatch
) -> None:
    append = StoredTasks.append

    async def copying(self: StoredTasks, task_id: str, events: Sequence[Event], *step: Any) -> None:
        before = [event for event in events if not isinstance(event, TaskEnded) or last is TaskEnded]
        if not killed.copied and any(isinstance(event, last) for event in before):
            await append(self, task_id, before, *step)
            killed.copy()
        await append(self, task_id, events, *step)

    async def act(context: ToolContext, given: Any) -> ToolOutcome:
        return ToolOutcome.of("run")

    monkeypatch.setattr(StoredTasks, "append", copying)
    await killed.begin(tools=(tool("cut", act),))
    async with killed.resumed() as task:
        await task.start()
        result = await task.wait()
        events = [event async for event in task.follow()]
    assert (result.ended_by, result.steps, result.summary) == ("complete", 2, "step 2")
    assert [event.type for event in events].count("run_ended") == 1
    assert [event.type for event in events].count("task_ended") == 1
    assert killed.sql("SELECT status, ended_by FROM tasks") == [("completed", "complete")]


async def test_a_task_of_which_no_event_was_kept_begins_in_its_sandbox(killed: Killed) -> None:
    await killed.begin()
    killed.sql("DELETE FROM steps")
    killed.sql("DELETE FROM model_requests")
    killed.sql("DELETE FROM runs")
    killed.sql("DELETE FROM events")

    async def act(context: ToolContext, given: Any) -> ToolOutcome:
        return ToolOutcome.of("run")

    async with killed.resumed(tools=(tool("cut", act),)) as task:
        await task.start()
        result = await task.wait()
        events = [event async for event in task.follow()]
    assert (result.ended_by, result.steps, events[0].type) == ("complete", 2, "task_started")


async def test_a_task_is_found_by_the_beginning_of_its_id(killed: Killed) -> None:
    await killed.begin()
    killed.id, whole = killed.id.removeprefix("task_")[:6], killed.id
    async with killed.resumed() as task:
        await task.start()
        assert task.id == whole
        await task.wait()


@pytest.mark.parametrize(
    ("statement", "kind", "words"),
    [
        ("UPDATE tasks SET status = 'completed', ended_by = 'complete'", ConfigError, "has ended (complete)"),
        ("UPDATE tasks SET owner = json_set(owner, '$.host', 'elsewhere')", ConfigError, "cannot be told here"),
        ("UPDATE tasks SET sandbox_id = ''", ConfigError, "no sandbox yet"),
        ("UPDATE tasks SET sandbox_id = 'sbx_00000000000000ff'", SandboxLost, "removed by a test"),
        ("UPDATE tasks SET setup = NULL", StoreError, "cannot be read"),
        ("UPDATE tasks SET setup = '{}'", ConfigError, "older kinfold"),
        ('UPDATE events SET event = \'{"type": "run_started"}\' WHERE seq = 3', StoreError, "cannot be read"),
        ("UPDATE steps SET state = '{\"base\": 7}' WHERE step = 1", StoreError, "cannot be read"),
        ("DELETE FROM tasks", NotFound, "no task"),
    ],
)
async def test_what_cannot_be_resumed_is_refused_with_the_reason(
    killed: Killed, statement: str, kind: type[KinfoldError], words: str
) -> None:
    await killed.begin()
    killed.sql(statement)
    error = await killed.refused()
    assert isinstance(error, kind)
    assert words in error.message
    assert error.hint


async def test_a_task_that_runs_is_left_alone(killed: Killed) -> None:
    await killed.begin()
    killed.sql("UPDATE tasks SET owner = ?", Owner.current().model_dump_json())
    assert "still runs" in (await killed.refused()).message


async def test_of_two_that_resume_a_task_one_does(killed: Killed) -> None:
    await killed.begin()
    outcomes: list[str] = []

    async def one() -> None:
        async with killed.resumed() as task:
            try:
                await task.start()
            except ConfigError as error:
                outcomes.append(error.message)
            else:
                outcomes.append((await task.wait()).ended_by)

    async with anyio.create_task_group() as group:
        group.start_soon(one)
        group.start_soon(one)
    refused = [words for words in outcomes if words != "complete"]
    assert len(refused) == 1
    assert any(words in refused[0] for words in ("another process", "still runs", "has ended"))


@pytest.mark.parametrize(
    ("began_with", "given", "words"),
    [
        ({}, {"tools": ()}, "tools lack: cut"),
        ({}, {"model": None}, "the model was an object"),
        ({"people": People(answer=None)}, {}, "somebody to ask"),  # type: ignore[arg-type]  # never asked
        ({"spec": SandboxSpec(secrets={"TOKEN": "s3cret-value"})}, {}, "secrets lack: TOKEN"),
        (
            {"spec": SandboxSpec(network=allowlist(["a.example"], inject={"a.example": {"X-Key": "k3y-value"}}))},
            {},
            "added credentials",
        ),
        ({}, {"inject": {"a.example": {"X-Key": "k3y-value"}}}, "has no allowlist that adds credentials"),
    ],
)
async def test_what_is_kept_nowhere_must_be_given_again(
    killed: Killed, began_with: dict[str, Any], given: dict[str, Any], words: str
) -> None:
    await killed.begin(**began_with)
    error = await killed.refused(**given)
    assert isinstance(error, ConfigError)
    assert words in error.message
    assert "s3cret" not in error.message


async def test_secrets_and_credentials_given_again_are_the_sandboxs(killed: Killed) -> None:
    inject = {"a.example": {"X-Key": "k3y-value"}}
    spec = SandboxSpec(secrets={"TOKEN": "s3cret-value"}, network=allowlist(["a.example"], inject=inject), image="own")
    await killed.begin(spec=spec)
    assert "s3cret" not in str(killed.sql("SELECT setup FROM tasks"))
    assert "k3y-value" not in str(killed.sql("SELECT setup FROM tasks"))
    async with killed.resumed(secrets={"TOKEN": "s3cret-value"}, inject=inject) as task:
        await task.start()
        await task.wait()
    given = killed.provider.made[0].spec_given
    assert (given.secrets, given.image, given.name) == ({"TOKEN": "s3cret-value"}, "own", killed.id)
    assert "k3y-value" in given.network.secrets  # type: ignore[union-attr]  # an allowlist
