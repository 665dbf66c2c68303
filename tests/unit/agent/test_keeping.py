"""What is kept of a run's steps is what happened, and is there before the next thing happens."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st
from tests.unit.agent.stage import Stage, calls, complete, tool
from tests.unit.agent.test_calls import reply

from kinfold.agent import compaction
from kinfold.agent.kept import StepRecord, conversation
from kinfold.agent.run import Run
from kinfold.events import Compacted
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.tools.base import ToolContext, ToolOutcome


class MemoryJournal:
    """Keeps steps as the store does: as JSON, the later record of a step in place of the earlier one."""

    def __init__(self) -> None:
        self.rows: dict[tuple[str, int], str] = {}
        self.full = False

    async def keep(self, run_id: str, record: StepRecord) -> bool:
        if not self.full:
            self.rows[run_id, record.step] = json.dumps(record.model_dump(mode="json"))
        return not self.full

    def of(self, run_id: str) -> list[StepRecord]:
        """One run's steps, in order."""
        rows = sorted((step, row) for (run, step), row in self.rows.items() if run == run_id)
        return [StepRecord.model_validate(json.loads(row)) for _, row in rows]


async def flood(context: ToolContext, arguments: Any) -> ToolOutcome:
    return ToolOutcome.of("x" * 9_000)


@given(script=st.lists(reply, max_size=7), small=st.booleans(), full=st.integers(0, 9))
@settings(max_examples=80, deadline=None)
def test_the_steps_come_to_the_conversation_also_when_it_was_compacted_and_when_some_could_not_be_kept(
    script: list[ScriptedReply], small: bool, full: int
) -> None:
    queue, stage, runs = list(script), Stage(), list[Run]()

    class Compared(MemoryJournal):
        compared = 0

        async def keep(self, run_id: str, record: StepRecord) -> bool:
            self.full = record.step == full
            kept = await super().keep(run_id, record)
            if kept:
                assert conversation(self.of(run_id)) == runs[0].history.messages
                self.compared += 1
            return kept

    def answer(request: ModelRequest) -> ScriptedReply:
        if request.purpose == "compaction":
            return ScriptedReply(text="the gist")
        return queue.pop(0) if queue else complete()

    begin, journal = Run.begin, Compared()

    def noted(*arguments: Any) -> Run:
        runs.append(begin(*arguments))
        return runs[-1]

    async def play() -> None:
        tools = tuple(tool(key, flood, parallel=key == "slow") for key in ("quick", "slow", "fails"))
        await stage.run(model=ScriptedModel(answer), tools=tools, journal=journal, max_steps=9)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "begin", noted)
        patch.setattr(compaction, "window_of", lambda model: 5_000 if small else 200_000)
        anyio.run(play)
    assert journal.compared
    event(f"compacted: {bool(stage.of(Compacted))}")


@pytest.mark.anyio
async def test_a_reply_is_kept_before_its_calls_run_and_each_answer_before_the_next_call() -> None:
    stage, journal, seen = Stage(), MemoryJournal(), list[tuple[str, list[str], list[str]]]()

    async def look(context: ToolContext, arguments: Any) -> ToolOutcome:
        last = journal.of(context.run_id)[-1]
        assert last.open is not None
        asked = [call.id for call in last.open.message.tool_calls]
        seen.append((context.call_id, asked, [answer.tool_use_id for answer in last.open.answers]))
        return ToolOutcome.of("seen")

    step = calls(("look", {}), ("todo_write", {"todos": [{"content": "later"}]}), ("look", {}), ("look", {}))
    await stage.run(
        step, complete(), tools=(tool("look", look),), journal=journal,
        tool_keys=("look", "todo_write"),
    )  # fmt: skip
    (run_id,) = {run_id for run_id, _ in journal.rows}
    ids = [call.id for call in stage.requests[1].messages[-2].tool_calls]
    assert seen == [(ids[0], ids, []), (ids[2], ids, ids[:2]), (ids[3], ids, ids[:3])]
    begun, first, last = journal.of(run_id)
    assert (begun.step, begun.snapshot, begun.open) == (0, (), None)
    assert (first.open, [todo.content for todo in first.memory.todos]) == (None, ["later"])
    assert last.open is not None, "the last step stays open: whoever goes on from it comes to the same ending"
