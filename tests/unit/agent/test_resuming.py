"""A run that is cut at any moment and taken up elsewhere: no call runs twice, each is answered once."""

from __future__ import annotations

from collections import Counter
from copy import deepcopy
from typing import Any

import anyio
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.unit.agent.stage import MemorySandbox, Stage, calls, complete, tool
from tests.unit.agent.test_calls import check_history, reply
from tests.unit.agent.test_keeping import MemoryJournal

from kinfold.agent.kept import StepRecord
from kinfold.agent.past import Past, PastRun
from kinfold.agent.run import RunResult
from kinfold.events import EventBase, ModelRequested, RunEnded, RunStarted, ToolEnded, Warned
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.tools.base import Tool, ToolContext, ToolOutcome


class Cut(MemoryJournal):
    """Notes, at each keeping, all that a process would leave that died just then."""

    def __init__(self, stage: Stage) -> None:
        super().__init__()
        self._stage = stage
        self.moments: list[tuple[list[EventBase], dict[tuple[str, int], str], MemorySandbox, Counter[str]]] = []
        self.ran: Counter[str] = Counter()

    async def keep(self, run_id: str, record: StepRecord) -> bool:
        kept = await super().keep(run_id, record)
        files = deepcopy(self._stage.sandbox)
        self.moments.append((list(self._stage.events), dict(self.rows), files, Counter(self.ran)))
        return kept


def tools_of(ran: Counter[str], *, recover: bool) -> tuple[Tool, ...]:
    """Tools that count their calls."""

    async def act(context: ToolContext, arguments: Any) -> ToolOutcome:
        ran[context.call_id] += 1
        return ToolOutcome.of(f"answer of {context.call_id}")

    made = [tool(key, act, parallel=key == "slow") for key in ("quick", "slow", "fails")]
    return tuple(
        Tool(
            key=t.key,
            words=t.words,
            arguments=t.arguments,
            call=act,
            parallel=t.parallel,
            recover=act if recover else None,
        )
        for t in made
    )


def past_of(events: list[EventBase], rows: dict[tuple[str, int], str]) -> PastRun:
    """What the dead process left of its one run."""
    steps = [(run_id, StepRecord.model_validate_json(row)) for (run_id, _), row in sorted(rows.items())]
    main = Past(events, steps).main
    assert main is not None
    return main


class Scripted:
    """A script that is a function of the request, so that both processes have the same."""

    def __init__(self, script: list[ScriptedReply], stage: Stage) -> None:
        self._script, self._stage = script, stage

    def __call__(self, request: ModelRequest) -> ScriptedReply:
        self._stage.requests.append(request)
        return self._script[request.step - 1] if request.step <= len(self._script) else complete("the end")


@given(script=st.lists(reply, max_size=5), at=st.floats(0, 1, exclude_max=True), recover=st.booleans())
@settings(max_examples=40, deadline=None)
def test_a_run_cut_at_any_moment_ends_as_it_would_have_ended(
    script: list[ScriptedReply], at: float, recover: bool
) -> None:
    async def first() -> tuple[Cut, RunResult]:
        stage = Stage()
        journal = Cut(stage)
        tools = tools_of(journal.ran, recover=recover)
        whole = await stage.run(model=ScriptedModel(Scripted(script, stage)), tools=tools, journal=journal, max_steps=9)
        return journal, whole

    async def second(journal: Cut) -> tuple[Stage, Counter[str], RunResult]:
        events, rows, files, ran = journal.moments[int(at * len(journal.moments))]
        past = past_of(events, rows)
        stage = Stage(sandbox=files)
        model = ScriptedModel(Scripted(script, stage))
        result = await stage.run(
            model=model,
            tools=tools_of(ran, recover=recover),
            journal=MemoryJournal(),
            max_steps=9,
            context=stage.context(run_id=past.run_id),
            past=past,
        )
        return stage, ran, result

    journal, whole = anyio.run(first)
    stage, ran, result = anyio.run(second, journal)
    assert (result.ended_by, result.steps, result.run_id) == (whole.ended_by, whole.steps, whole.run_id)
    for request in stage.requests:
        check_history(request.messages)
    unknown = [e for e in stage.of(Warned) if e.code == "interrupted_call"]
    assert not (recover and unknown)
    assert recover or all(count == 1 for count in ran.values()), "a call that was answered or told as unknown ran again"
    assert set(ran) | {e.message.split("(")[1].split(")")[0] for e in unknown} == set(journal.ran)
    if not unknown:
        assert result.usage == whole.usage
    assert not stage.of(RunStarted)
    assert len(stage.of(RunEnded)) == 1
    event(f"unknown: {len(unknown)}")


@pytest.mark.anyio
async def test_what_a_run_knew_beside_its_conversation_goes_on() -> None:
    stage = Stage()
    journal = Cut(stage)
    script = [
        calls(("todo_write", {"todos": [{"content": "later", "status": "pending"}]})),
        calls(("write_file", {"path": "a.txt", "content": "one"})),
        calls(("write_file", {"path": "a.txt", "content": "two"})),
        complete("it", "a.txt"),
    ]
    keys = ("todo_write", "write_file")
    await stage.run(model=ScriptedModel(Scripted(script, stage)), journal=journal, tool_keys=keys)
    at = next(n for n, (_, rows, *_) in enumerate(journal.moments) if max(step for _, step in rows) == 3)
    events, rows, files, _ = journal.moments[at]
    assert files.files["/workspace/a.txt"] == b"one", "cut before the second write"
    past = past_of(events, rows)
    after = Stage(sandbox=files)
    context = after.context(run_id=past.run_id)
    result = await after.run(
        model=ScriptedModel(Scripted(script, after)),
        journal=MemoryJournal(),
        tool_keys=keys,
        context=context,
        past=past,
    )
    assert result.ended_by == "complete"
    assert files.files["/workspace/a.txt"] == b"two", "the agent had seen the file: its version is remembered"
    assert [todo.content for todo in context.todos] == ["later"]
    assert [artifact.change for artifact in result.artifacts] == ["created"], "compared with the first start"
    assert [warning for warning in result.warnings if "resumed after step 3" in warning]


@pytest.mark.anyio
async def test_time_and_money_that_were_spent_are_spent() -> None:
    stage = Stage()
    past = PastRun(
        started=RunStarted(task_id="task_1", run_id="run_1", kind="main", model="scripted", max_steps=9),
        cost=1.5,
    )
    spent = Past(
        [
            past.started,
            ModelRequested(task_id="task_1", run_id="run_1", step=1, model="x", ended="ok", cost=1.5),
            ModelRequested(
                task_id="task_1", run_id="run_1", step=1, model="x", ended="cancelled", estimated=True, cost=7
            ),
            ModelRequested(task_id="task_1", run_id="run_1", step=2, model="y", ended="retried", cost=None),
        ]
    ).main
    assert spent is not None
    assert (spent.cost, spent.unpriced) == (1.5, {"y"})
    context = stage.context(run_id="run_1")
    context.lifeline.start(timeout=10, spent=9)
    assert 9 <= context.lifeline.elapsed < 10
    with context.lifeline.alive() as verdict:
        await anyio.sleep(5)
    assert verdict.ended_by == "timeout"


@pytest.mark.anyio
async def test_a_write_that_had_happened_is_found_and_one_that_had_not_is_made() -> None:
    stage = Stage()
    journal = Cut(stage)
    script = [calls(("write_file", {"path": "a.txt", "content": "one"})), complete("it", "a.txt")]
    await stage.run(model=ScriptedModel(Scripted(script, stage)), journal=journal)
    at = next(n for n, (_, rows, *_) in enumerate(journal.moments) if max(step for _, step in rows) == 1)
    events, rows, files, _ = journal.moments[at]
    for happened in (False, True):
        after = Stage(sandbox=deepcopy(files))
        if happened:
            await after.sandbox.write("a.txt", b"one")
        past = past_of(events, rows)
        result = await after.run(
            model=ScriptedModel(Scripted(script, after)), context=after.context(run_id=past.run_id), past=past
        )
        (ended, _) = after.of(ToolEnded)
        assert (ended.is_error, result.ended_by) == (False, "complete")
        assert after.sandbox.files["/workspace/a.txt"] == b"one"


@pytest.mark.anyio
async def test_an_edit_is_made_where_the_file_is_as_it_was_seen_and_else_told_as_unknown() -> None:
    stage = Stage()
    journal = Cut(stage)
    await stage.sandbox.write("a.txt", b"one two")
    edit = {"path": "a.txt", "old_string": "two", "new_string": "2"}
    script = [calls(("read_file", {"path": "a.txt"})), calls(("edit_file", edit)), complete("it", "a.txt")]
    keys = ("read_file", "edit_file")
    await stage.run(model=ScriptedModel(Scripted(script, stage)), journal=journal, tool_keys=keys)
    at = next(n for n, (_, rows, *_) in enumerate(journal.moments) if max(step for _, step in rows) == 2)
    events, rows, files, _ = journal.moments[at]
    for found, unknown in ((b"one two", 0), (b"one 2", 1)):
        after = Stage(sandbox=deepcopy(files))
        await after.sandbox.write("a.txt", found)
        past = past_of(events, rows)
        await after.run(
            model=ScriptedModel(Scripted(script, after)), context=after.context(run_id=past.run_id), past=past,
            tool_keys=keys,
        )  # fmt: skip
        assert len([e for e in after.of(Warned) if e.code == "interrupted_call"]) == unknown
        assert after.sandbox.files["/workspace/a.txt"] == b"one 2"
