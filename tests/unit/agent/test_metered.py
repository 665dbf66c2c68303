"""Every attempt at a request is one event, paid once, whatever came of it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from tests.unit.agent.stage import Stage

from kinfold.agent.limits import Purse
from kinfold.agent.loop import run_agent_loop
from kinfold.agent.run import LoopConfig, LoopInput, RunResult
from kinfold.errors import ModelError
from kinfold.events import ModelRequested, RunEnded
from kinfold.messages import Message, TextBlock, Usage
from kinfold.models.base import ModelEvent, ModelRequest, Reply, RetryNotice, TextChunk
from kinfold.models.pricing import cost_usd

pytestmark = pytest.mark.anyio

MODEL = "claude-sonnet-5-5"
SPOILED, SAID = Usage(input_tokens=1_000), Usage(input_tokens=2_000, output_tokens=50)


class Service:
    """A model that goes through these, an exception raised and a number waited for; its last step is a reply."""

    name = MODEL

    def __init__(self, *said: Any) -> None:
        self._said = said

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        for event in (reply(),) if request.purpose == "finalisation" else self._said:
            if isinstance(event, Exception):
                raise event
            if isinstance(event, float):
                await anyio.sleep(event)
            else:
                yield event


def reply(**more: Any) -> Reply:
    message = Message(role="assistant", content=(TextBlock(text="done"),))
    fields = {"message": message, "stop_reason": "end_turn", "usage": SAID, "message_id": "msg_1", "model": MODEL}
    return Reply(**{**fields, **more})


async def ran(*said: Any, purse: Purse | None = None, timeout: float | None = None) -> tuple[RunResult, Stage]:
    stage = Stage()
    config = LoopConfig(model=Service(*said), max_steps=3, tool_keys=(), purse=purse or Purse(), timeout=timeout)
    result = await run_agent_loop(stage.context(), config, LoopInput(kind="main", messages=(Message.user("go"),)))
    return result, stage


async def test_an_attempt_that_is_made_again_is_a_row_and_is_paid() -> None:
    purse = Purse()
    notice = RetryNotice(attempt=1, delay=0.0, reason="overloaded", usage=SPOILED, message_id="msg_0")
    result, stage = await ran(notice, TextChunk(text="done"), reply(), purse=purse)
    first, second = stage.of(ModelRequested)
    assert (first.ended, first.attempt, first.message_id, first.usage, first.error) == (
        "retried", 1, "msg_0", SPOILED, "overloaded",
    )  # fmt: skip
    assert (second.ended, second.attempt, second.message_id, second.usage) == ("ok", 2, "msg_1", SAID)
    assert result.usage == SPOILED + SAID
    paid = [cost_usd(MODEL, usage) or 0.0 for usage in (SPOILED, SAID)]
    assert [first.cost, second.cost] == paid
    assert purse.spent == pytest.approx(sum(paid))
    assert second.sent_tokens > second.card_tokens > 0


async def test_a_failed_request_is_a_row_with_what_it_is_billed_for() -> None:
    result, stage = await ran(ModelError("no", kind="authentication", usage=SPOILED, message_id="msg_0"))
    (row,) = stage.of(ModelRequested)
    assert (row.ended, row.error, row.usage, row.estimated) == ("failed", "authentication", SPOILED, False)
    assert (result.ended_by, result.usage) == ("model_error", SPOILED)


async def test_a_request_that_is_left_is_an_estimate_which_nobody_pays() -> None:
    purse = Purse()
    result, stage = await ran(TextChunk(text="half a"), 60.0, purse=purse, timeout=0.05)
    row = stage.of(ModelRequested)[0]
    assert (row.ended, row.estimated, row.usage.output_tokens) == ("cancelled", True, 2)
    assert row.usage.input_tokens == row.sent_tokens
    assert row.cost
    assert (purse.spent, result.usage) == (cost_usd(MODEL, SAID), SAID)  # of the finalisation alone
    assert isinstance(stage.events[-1], RunEnded)


async def test_a_model_without_a_price_costs_what_is_not_known_and_never_nothing() -> None:
    result, stage = await ran(reply(model="somebody-elses"))
    (row,) = stage.of(ModelRequested)
    assert (row.model, row.cost, result.cost) == ("somebody-elses", None, None)


async def test_a_run_that_is_ended_between_two_attempts_asked_once() -> None:
    notice = RetryNotice(attempt=1, delay=60.0, reason="overloaded", usage=SPOILED)
    _, stage = await ran(notice, 60.0, timeout=0.05)
    rows = stage.of(ModelRequested)
    assert [(row.purpose, row.ended) for row in rows] == [("step", "retried"), ("finalisation", "ok")]


async def test_a_stream_without_a_reply_and_a_bug_are_failures() -> None:
    result, stage = await ran(TextChunk(text="half"))
    (row,) = stage.of(ModelRequested)
    assert (row.ended, row.error, result.ended_by) == ("failed", "stream", "model_error")
    result, stage = await ran(ZeroDivisionError("mine"))
    (row,) = stage.of(ModelRequested)
    assert (row.ended, row.error, result.ended_by) == ("failed", "ZeroDivisionError", "internal_error")
