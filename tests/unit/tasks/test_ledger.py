"""The ledger in the store: every request one row, whoever made it and however it ended; sums agree with the result."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.agent.stage import calls, complete
from tests.unit.tasks.house import MemoryProvider

from kinfold import ParentTask, run
from kinfold.agent.ledger import Ledger, RequestRow
from kinfold.cli.ledger import ledger_command, totals
from kinfold.definitions import SubagentDefinition
from kinfold.errors import ModelError, StoreError
from kinfold.messages import Message, TextBlock, Usage
from kinfold.models.base import ModelEvent, ModelRequest, Reply, RetryNotice, TextChunk
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.tasks.result import TaskResult
from kinfold.tasks.store.door import Store
from kinfold.tasks.store.tasks import StoredTasks

GENERAL = SubagentDefinition(type="general", description="anything", tool_keys=("write_file",))
TOLD = Usage(input_tokens=1_000, output_tokens=10, cache_read_tokens=50)


class Rough:
    """A model of which a first attempt fails after it was billed; then it answers, fails for good, or says no more."""

    def __init__(self, name: str, end: str) -> None:
        self.name = name
        self.end = end
        self.speaking = anyio.Event()

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        yield RetryNotice(attempt=1, delay=0.0, reason="overloaded", usage=TOLD, message_id="msg_1")
        yield TextChunk(text="so far")
        self.speaking.set()
        if self.end == "failed":
            raise ModelError("no", kind="overloaded", attempts=2, usage=TOLD, message_id="msg_2")
        if self.end == "cancelled":
            await anyio.sleep_forever()
        said = Message(role="assistant", content=(TextBlock(text="done"),))
        yield Reply(message=said, stop_reason="end_turn", usage=TOLD, message_id="msg_2", model=self.name)


async def rows_of(result_id: str, state: Path) -> list[dict[str, Any]]:
    async with Store(state) as store:
        return await StoredTasks(store).requests(result_id)


async def rough(name: str, end: str, state: Path) -> tuple[TaskResult, list[dict[str, Any]]]:
    model = Rough(name, end)
    async with ParentTask("go", model=model, definitions=(), provider=MemoryProvider(), state_dir=state) as task:
        await task.start()
        if end == "cancelled":
            await model.speaking.wait()
            await task.cancel()
        result = await task.wait()
    return result, await rows_of(task.id, state)


@pytest.mark.anyio
@pytest.mark.parametrize("end", ["ok", "failed", "cancelled"])
async def test_an_attempt_that_failed_is_a_row_with_its_bill_beside_the_one_that_followed(
    end: str, tmp_path: Path
) -> None:
    result, rows = await rough("claude-sonnet-5", end, tmp_path)
    assert [(row["ended"], row["attempt"]) for row in rows] == [("retried", 1), (end, 2)]
    assert rows[0]["cost_usd"] == pytest.approx((1_000 * 2 + 50 * 0.2 + 10 * 10) / 1e6)
    assert result.cost == pytest.approx(sum(row["cost_usd"] for row in rows))
    assert result.usage == (TOLD if end == "cancelled" else TOLD + TOLD)
    assert rows[1]["estimated"] == (end == "cancelled")
    assert rows[1]["input_tokens"] > 0


@pytest.mark.anyio
async def test_the_cost_of_a_model_without_a_price_is_unknown_and_not_zero(tmp_path: Path) -> None:
    result, rows = await rough("some-model", "ok", tmp_path)
    assert result.cost is None
    assert [row["cost_usd"] for row in rows] == [None, None]


def delegating(replies: list[Usage]) -> ScriptedModel:
    """A main agent with a subagent; each reply reports the next usage."""
    left = iter(replies)

    def reply(request: ModelRequest) -> ScriptedReply:
        if request.run_kind == "main" and request.step == 1:
            task = {"description": "part", "prompt": "do", "subagent_type": "general"}
            said = calls(("task", task))
        elif request.run_kind == "subagent" and request.step == 1:
            said = calls(("write_file", {"path": "a.txt", "content": "A"}))
        else:
            said = complete("done")
        return replace(said, usage=next(left))

    return ScriptedModel(reply)


TOKENS = st.integers(0, 100_000)
USAGES = st.builds(
    Usage, input_tokens=TOKENS, output_tokens=TOKENS, cache_creation_tokens=TOKENS, cache_read_tokens=TOKENS
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(USAGES, min_size=4, max_size=4))
def test_the_sums_of_both_lanes_in_the_store_are_the_usage_of_the_result(usages: list[Usage]) -> None:
    async def main() -> None:
        with tempfile.TemporaryDirectory() as state:
            model = delegating(usages)
            async with ParentTask(
                "go", model=model, definitions=(GENERAL,), provider=MemoryProvider(), state_dir=state
            ) as task:
                await task.start()
                result = await task.wait()
            rows = await rows_of(result.task_id, Path(state))
            sums = totals(rows)
            assert [row["run_kind"] for row in rows] == ["main", "subagent", "subagent", "main"]
            assert sums["task"]["promptTokens"] == result.usage.prompt_tokens
            assert sums["task"]["outputTokens"] == result.usage.output_tokens
            assert sums["subagents"]["promptTokens"] == result.records[0].usage.prompt_tokens
            assert sums["task"]["cost"] == result.cost == 0

    anyio.run(main)


def test_the_ledger_of_an_ended_task_is_printed_from_the_store_in_two_lanes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KINFOLD_STATE", str(tmp_path))
    model = delegating([Usage(input_tokens=tokens) for tokens in (1_000, 2_000, 3_000, 4_000)])

    async def main() -> str:
        return (await run("go", model=model, definitions=(GENERAL,), provider=MemoryProvider())).task_id

    task_id = anyio.run(main)
    assert ledger_command(task_id, as_json=False) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["1,000", "2,000", "3,000", "4,000"]
    assert lines[1].index("1,000") < lines[2].index("2,000")
    assert "part, step 1" in lines[2]
    assert lines[-1].startswith("task: 4 requests, 10,000 tokens sent")
    assert ledger_command(task_id, as_json=True) == 0
    assert len(json.loads(capsys.readouterr().out)["requests"]) == 4


def row(id: str) -> RequestRow:
    return RequestRow(
        id=id, run_id="run_1", label=None, step=1, attempt=1, purpose="step", model="m", ended="ok", usage=Usage(),
        cost=None, started_at=0.0, ended_at=1.0,
    )  # fmt: skip


@pytest.mark.anyio
async def test_rows_that_the_store_did_not_take_are_given_to_it_again_and_an_id_told_twice_loses_none() -> None:
    given_rows: list[list[str]] = []
    failures: list[StoreError | None] = []

    async def keep(rows: Any) -> None:
        given_rows.append([row.id for row in rows])
        if len(given_rows) == 1:
            raise StoreError("the disk is full", code="store_full", hint="make room")

    ledger = Ledger(keep)
    ledger.note(row("msg_1"))
    await ledger.flush()
    failures.append(ledger.failure)
    ledger.note(row("msg_1"))
    await ledger.flush()
    failures.append(ledger.failure)
    assert [failure is None for failure in failures] == [False, True]
    assert given_rows[1][0] == "msg_1"
    assert given_rows[1][1].startswith("req_")
    await ledger.flush()
    assert len(given_rows) == 2
