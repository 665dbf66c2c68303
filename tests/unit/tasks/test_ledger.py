"""The ledger of a task: its rows in the store, its sums, and what each delegation paid."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.agent.stage import calls, complete
from tests.unit.tasks.house import MemoryProvider

from kinfold.agent.ledger import Ledger, ledger_of
from kinfold.cli.ledger import ledger_command
from kinfold.definitions import SubagentDefinition
from kinfold.events import ModelRequested, RunStarted
from kinfold.messages import Usage
from kinfold.models.anthropic import AnthropicModel
from kinfold.models.base import ModelRequest
from kinfold.models.retry import RetryPolicy
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.tasks.result import TaskResult
from kinfold.tasks.store.door import Store
from kinfold.tasks.store.tasks import StoredTasks
from kinfold.tasks.task import ParentTask
from kinfold.testing.messages_api import Answer, MessagesApi, overloaded

GENERAL = SubagentDefinition(type="general", description="Does it.", tool_keys=("write_file", "read_file"))
PAGE = "a long page of the archive, read and then forgotten. " * 60


def spawn(label: str, prompt: str) -> tuple[str, dict[str, Any]]:
    """A call that delegates."""
    return ("task", {"subagent_type": "general", "description": label, "prompt": prompt})


def travels(request: ModelRequest) -> ScriptedReply:
    """Main delegates a journey and an errand, then goes on for two steps."""
    if request.run_kind == "main":
        steps = {
            1: calls(spawn("journey", "go far"), spawn("errand", "go near")),
            2: calls(("todo_write", {"todos": []})),
        }
        return steps.get(request.step) or complete("both are back")
    if request.label == "errand" or request.step == 5:
        return complete("the year was 1987")
    name = f"page{request.step}.txt"
    return calls(("write_file", {"path": name, "content": PAGE}), ("read_file", {"path": name}))


async def made(state: Path, reply: Any = travels) -> tuple[TaskResult, Ledger, list[dict[str, Any]]]:
    """The result of a whole task, its ledger, and its rows in the store."""
    task = ParentTask(
        "go", model=ScriptedModel(reply), provider=MemoryProvider(), definitions=(GENERAL,), state_dir=state
    )
    async with task:
        await task.start()
        events = [event async for event in task.follow()]
        result = await task.wait()
    async with Store(state) as store:
        rows = (await StoredTasks(store).export(task.id))["modelRequests"]
    return result, ledger_of(events), rows


@pytest.mark.anyio
async def test_every_request_is_a_row_and_the_sums_are_the_results(own_state: Path) -> None:
    result, ledger, rows = await made(own_state)
    assert len(rows) == len(ledger.requests) == 3 + 5 + 1
    assert ledger.usage == result.usage
    assert ledger.cost == result.cost == 0.0
    assert sum(row["input_tokens"] for row in rows) == result.usage.input_tokens
    assert {(row["ended"], row["kind"], row["estimated"]) for row in rows} == {("ok", "step", 0)}
    assert all(row["started_at"] <= row["ended_at"] for row in rows)


@pytest.mark.anyio
async def test_a_row_holds_all_that_the_service_told_of_its_attempt(own_state: Path) -> None:
    told = {
        "cache_creation_input_tokens": 900,
        "cache_creation": {"ephemeral_5m_input_tokens": 600, "ephemeral_1h_input_tokens": 300},
        "service_tier": "standard",
        "server_tool_use": {"web_search_requests": 1},
    }
    async with MessagesApi([overloaded(), Answer.text("done", usage=told)]) as api:
        retry = RetryPolicy(first=0.0)
        model = AnthropicModel("claude-sonnet-4-6", api_key=api.api_key, base_url=api.base_url, retry=retry)
        task = ParentTask("go", model=model, provider=MemoryProvider(), definitions=(), state_dir=own_state)
        async with task:
            await task.start()
            result = await task.wait()
    async with Store(own_state) as store:
        rows = (await StoredTasks(store).export(task.id))["modelRequests"]
    told_of = [(row["attempt"], row["ended"], row["stop_reason"], row["request_id"]) for row in rows]
    assert told_of == [(1, "retried", None, "req_loopback_1"), (2, "ok", "end_turn", "req_loopback_2")]
    assert (rows[1]["cache_creation_tokens"], rows[1]["cache_creation_hour_tokens"]) == (900, 300)
    assert json.loads(rows[1]["detail"]) == {
        "service_tier": "standard", "server_tool_use": {"web_search_requests": 1},
    }  # fmt: skip
    assert rows[0]["detail"] is None
    assert rows[1]["cost_usd"] == pytest.approx(result.cost)


@pytest.mark.anyio
async def test_a_journey_is_worth_its_delegation_and_an_errand_is_not(own_state: Path) -> None:
    _, ledger, _ = await made(own_state)
    journey, errand = ledger.delegations
    assert (journey.label, journey.verdict) == ("journey", "worth_it")
    assert (errand.label, errand.verdict) == ("errand", "trivial")
    main = [request for request in ledger.requests if request.label is None]
    carried = sum(main[1].results.values())
    assert journey.added + errand.added == carried == pytest.approx(main[1].sent_tokens - main[0].sent_tokens, abs=30)
    assert journey.rent == 2 * journey.added  # the merge, and the step after it
    assert journey.inline > 4 * len(PAGE) / 4  # four of them written, and of each something read
    assert journey.kept_out == journey.inline - journey.added
    assert errand.kept_out < errand.added
    assert (journey.requests, errand.requests) == (5, 1)


@pytest.mark.anyio
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.integers(1, 4), max_size=3), st.integers(0, 2))
async def test_the_lanes_add_up_to_the_task_whatever_was_delegated(
    own_state: Path, journeys: list[int], tail: int
) -> None:
    def main(step: int) -> ScriptedReply:
        if journeys and step == 1:
            return calls(*(spawn(f"d{place}", str(steps)) for place, steps in enumerate(journeys)))
        return calls(("todo_write", {"todos": []})) if step <= 1 + tail else complete("over")

    def reply(request: ModelRequest) -> ScriptedReply:
        if request.run_kind == "main":
            return main(request.step)
        writes = calls(("write_file", {"path": f"{request.label}", "content": "x"}))
        return writes if request.step <= int(request.messages[0].text.split()[0]) else complete("back")

    result, ledger, rows = await made(own_state, reply)
    lanes = {request.run_id for request in ledger.requests}
    assert len(lanes) == 1 + len(journeys)
    of_lanes = [
        sum((request.usage for request in ledger.requests if request.run_id == lane), Usage()) for lane in lanes
    ]
    assert sum(of_lanes, Usage()) == ledger.usage == result.usage
    assert len(rows) == len(ledger.requests)
    assert [cost.requests for cost in ledger.delegations] == [
        sum(request.run_id == cost.run_id for request in ledger.requests) for cost in ledger.delegations
    ]


def test_another_process_prints_the_lanes_and_the_same_as_json(
    own_state: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    result, ledger, _ = anyio.run(made, own_state)
    monkeypatch.setenv("KINFOLD_STATE", str(own_state))
    for as_json in (False, True):
        assert ledger_command(result.task_id[:14], as_json=as_json) == 0
    lines, _, document = capsys.readouterr().out.partition("{")
    rows = [line.split("\t") for line in lines.splitlines() if "\t" in line]
    assert [(row[0], row[1]) for row in rows if row[0] == "main"] == [("main", str(step)) for step in (1, 2, 3)]
    assert sum(row[0] == "journey" for row in rows) == 5
    assert any(line.startswith("journey added ") and line.endswith(": worth_it") for line in lines.splitlines())
    found = json.loads("{" + document)
    assert [cost["verdict"] for cost in found["delegations"]] == ["worth_it", "trivial"]
    assert found["usage"]["inputTokens"] == ledger.usage.input_tokens
    assert found["usage"]["cacheHitRate"] == 0.0


def test_the_cache_hit_rate_is_the_share_of_what_was_sent() -> None:
    usage = Usage(input_tokens=10, cache_creation_tokens=20, cache_read_tokens=70, output_tokens=500)
    assert usage.cache_hit_rate == 0.7
    assert Usage(output_tokens=5).cache_hit_rate == 0.0


def test_what_a_summary_replaced_is_carried_no_longer() -> None:
    main: dict[str, Any] = {"task_id": "task_1", "run_id": "run_main", "model": "m", "ended": "ok"}
    delegated = RunStarted(
        task_id="task_1", run_id="run_1", parent_run_id="run_main", tool_call_id="call_1", kind="subagent", model="m",
        max_steps=5, label="dig",
    )  # fmt: skip
    ledger = ledger_of(
        [
            ModelRequested(seq=1, step=1, **main),
            delegated,
            ModelRequested(seq=5, step=2, results={"call_1": 100}, **main),
            ModelRequested(seq=6, step=3, **main),
            ModelRequested(seq=7, step=4, purpose="compaction", **main),
            ModelRequested(seq=8, step=4, **main),
        ]
    )
    (cost,) = ledger.delegations
    assert (cost.added, cost.rent) == (100, 200)
