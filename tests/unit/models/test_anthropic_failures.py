"""Failing answers of the Messages API: what is tried again, after how long, and what is raised at last."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.unit.models.asking import Ask, Clock, MakeModel, question, reply_in

from kinfold.errors import ModelError
from kinfold.messages import TextBlock, ToolCall, Usage
from kinfold.models.base import ModelEvent, RetryNotice, TextChunk
from kinfold.testing.messages_api import (
    Answer,
    Hangup,
    Interruption,
    MessagesApi,
    Outcome,
    Refusal,
    Silence,
    internal,
    overloaded,
    rate_limited,
)

pytestmark = pytest.mark.anyio


FINE = Answer.text("At last.")
TEXT_THEN_CALL = (
    {"type": "text", "text": "I look first."},
    {"type": "tool_use", "id": "toolu_b", "name": "bash", "input": {"command": "cat a very long file name"}},
)


def notices(events: list[ModelEvent]) -> list[RetryNotice]:
    return [event for event in events if isinstance(event, RetryNotice)]


@pytest.mark.parametrize(
    "failure",
    [
        rate_limited(None),
        overloaded(),
        internal(),
        Refusal(status=503, type="", message="", body=b"<html>bad gateway</html>"),
        Refusal(status=408, type="timeout_error", message="Request timeout"),
        Refusal(status=504, type="timeout_error", message="Gateway timeout"),
        Refusal(status=409, type="conflict_error", message="Conflict"),
        Hangup(),
        Answer.text("half a te", interruption=Interruption(where="before_block")),
        Answer.text("half a te", interruption=Interruption(where="inside_block")),
        Answer.text("half a te", interruption=Interruption(where="inside_block", how="end")),
        Answer.text("half a te", interruption=Interruption(where="inside_block", how="error")),
        Answer.text("", interruption=Interruption(where="after_block", how="end")),
        Answer.call("bash", {"command": "ls"}, interruption=Interruption(where="inside_block")),
        Answer(
            blocks=({"type": "thinking", "thinking": "I wonder", "signature": "s"},),
            interruption=Interruption(where="after_block"),
        ),
    ],
    ids=[
        "429",
        "529",
        "500",
        "503 of a proxy",
        "408",
        "504",
        "409",
        "hangup",
        "cut before the block",
        "cut inside the block",
        "end inside the block",
        "error inside the block",
        "end after an empty block",
        "cut inside a call",
        "cut after reasoning",
    ],
)
async def test_a_passing_failure_is_announced_waited_out_and_tried_again(
    failure: Outcome, model_of: MakeModel, ask: Ask, clock: Clock
) -> None:
    async with MessagesApi([failure, FINE]) as api:
        events = await ask(model_of(api))
    (notice,) = notices(events)
    assert clock.waits == [notice.delay]
    assert notice.attempt == 1
    assert 0 <= notice.delay <= 1
    reply = reply_in(events)
    assert (reply.message.text, reply.incomplete) == ("At last.", False)


@pytest.mark.parametrize(
    ("refusal", "kind"),
    [
        (Refusal(status=400, type="invalid_request_error", message="max_tokens: too many"), "invalid_request"),
        (Refusal(status=400, type="invalid_request_error", message="prompt is too long: 9 tokens > 8"), "context"),
        (Refusal(status=400, type="invalid_request_error", message="Your credit balance is too low"), "billing"),
        (Refusal(status=402, type="billing_error", message="no credit"), "billing"),
        (Refusal(status=403, type="permission_error", message="not yours"), "permission"),
        (Refusal(status=404, type="not_found_error", message="model: claude-none"), "not_found"),
        (Refusal(status=413, type="request_too_large", message="too many bytes"), "too_large"),
        (Refusal(status=413, type="", message="", body=b"proxy says no"), "too_large"),
        (Refusal(status=422, type="", message="", body=b""), "invalid_request"),
        (
            Refusal(
                status=429,
                type="rate_limit_error",
                message="spent",
                details={"error_code": "enforced_spend_limit_reached"},
            ),
            "billing",
        ),
    ],
    ids=["400", "long prompt", "credit", "402", "403", "404", "413", "413 of a proxy", "422", "spend limit"],
)
async def test_a_lasting_failure_is_raised_at_once(
    refusal: Refusal, kind: str, model_of: MakeModel, ask: Ask, clock: Clock
) -> None:
    async with MessagesApi([refusal, FINE]) as api:
        with pytest.raises(ModelError) as caught:
            await ask(model_of(api))
    assert (caught.value.kind, caught.value.retryable, caught.value.attempts) == (kind, False, 1)
    assert caught.value.request_id == "req_loopback_1"
    assert clock.waits == []
    assert len(api.requests) == 1


async def test_a_wrong_key_is_not_tried_again_and_names_both_ways_out(
    model_of: MakeModel, ask: Ask, clock: Clock
) -> None:
    async with MessagesApi([FINE]) as api:
        with pytest.raises(ModelError) as caught:
            await ask(model_of(api, api_key="sk-wrong"))
    assert caught.value.kind == "authentication"
    assert "ANTHROPIC_API_KEY" in caught.value.hint
    assert "--model scripted:FILE" in caught.value.hint
    assert clock.waits == []


@pytest.mark.parametrize(
    ("error_type", "kind"),
    [
        ("overloaded_error", "overloaded"),
        ("api_error", "server"),
        ("rate_limit_error", "rate_limit"),
        ("timeout_error", "timeout"),
    ],
)
async def test_an_error_in_mid_stream_counts_by_its_type_though_the_status_is_200(
    error_type: str, kind: str, model_of: MakeModel, ask: Ask, clock: Clock
) -> None:
    broken = Answer.text("half", interruption=Interruption(where="before_block", how="error", error_type=error_type))
    async with MessagesApi([broken] * 6) as api:
        with pytest.raises(ModelError) as caught:
            await ask(model_of(api))
    assert (caught.value.kind, caught.value.retryable, caught.value.attempts) == (kind, True, 6)
    assert len(clock.waits) == 5


async def test_a_lasting_error_in_mid_stream_is_raised_at_once(model_of: MakeModel, ask: Ask) -> None:
    stop = Interruption(where="before_block", how="error", error_type="invalid_request_error", error_message="no")
    async with MessagesApi([Answer.text("half", interruption=stop), FINE]) as api:
        with pytest.raises(ModelError) as caught:
            await ask(model_of(api))
    assert (caught.value.kind, caught.value.attempts) == ("invalid_request", 1)


async def test_six_attempts_are_made_with_growing_full_jitter_and_then_the_error_is_raised(
    model_of: MakeModel, ask: Ask, clock: Clock
) -> None:
    async with MessagesApi([overloaded()] * 7) as api:
        with pytest.raises(ModelError) as caught:
            await ask(model_of(api))
    assert (caught.value.kind, caught.value.attempts, caught.value.retryable) == ("overloaded", 6, True)
    assert "6 attempts" in caught.value.message
    assert len(api.requests) == 6
    assert len(clock.waits) == 5
    assert all(0 <= wait <= most for wait, most in zip(clock.waits, (1, 2, 4, 8, 16), strict=True))


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({"retry-after": "7"}, 7, 7),
        ({"retry-after-ms": "2500", "retry-after": "9"}, 2.5, 2.5),
        ({"retry-after": "soon"}, 0, 1),
        ({"retry-after": "60"}, 60, 60),
        ({"retry-after": "Thu, 01 Jan 2015 00:00:00 GMT"}, 0, 1),
    ],
)
async def test_retry_after_is_the_floor_of_the_wait(
    headers: dict[str, str], least: float, most: float, model_of: MakeModel, ask: Ask, clock: Clock
) -> None:
    limited = Refusal(status=429, type="rate_limit_error", message="slow down", headers=headers)
    async with MessagesApi([limited, FINE]) as api:
        events = await ask(model_of(api))
    (wait,) = clock.waits
    assert least <= wait <= most
    assert reply_in(events).message.text == "At last."


async def test_a_wait_over_a_minute_is_not_sat_out(model_of: MakeModel, ask: Ask, clock: Clock) -> None:
    async with MessagesApi([rate_limited("61"), FINE]) as api:
        with pytest.raises(ModelError) as caught:
            await ask(model_of(api))
    assert (caught.value.kind, caught.value.attempts) == ("rate_limit", 1)
    assert "61 s" in caught.value.message
    assert "61 s" in caught.value.hint
    assert clock.waits == []


async def test_the_service_may_forbid_another_attempt(model_of: MakeModel, ask: Ask, clock: Clock) -> None:
    final = Refusal(status=500, type="api_error", message="no use", headers={"x-should-retry": "false"})
    async with MessagesApi([final, FINE]) as api:
        with pytest.raises(ModelError, match="no use"):
            await ask(model_of(api))
    assert clock.waits == []


@pytest.mark.parametrize("how", ["cut", "error", "end"])
async def test_completed_blocks_stand_when_the_stream_breaks_and_the_unfinished_call_is_gone(
    how: Any, model_of: MakeModel, ask: Ask, clock: Clock
) -> None:
    broken = Answer(blocks=TEXT_THEN_CALL, interruption=Interruption(where="inside_block", how=how))
    async with MessagesApi([broken, FINE]) as api:
        events = await ask(model_of(api))
    reply = reply_in(events)
    assert reply.message.content == (TextBlock(text="I look first."),)
    assert (reply.incomplete, reply.stop_reason) == (True, "incomplete")
    assert (notices(events), clock.waits, len(api.requests)) == ([], [], 1)


async def test_a_completed_call_is_not_asked_for_again(model_of: MakeModel, ask: Ask) -> None:
    broken = Answer(blocks=TEXT_THEN_CALL, interruption=Interruption(where="after_block"))
    async with MessagesApi([broken, FINE]) as api:
        reply = reply_in(await ask(model_of(api)))
    assert reply.incomplete
    assert reply.message.tool_calls == (
        ToolCall(id="toolu_b", name="bash", input={"command": "cat a very long file name"}),
    )
    assert len(api.requests) == 1


@pytest.mark.parametrize("kind", ["ping", "an_event_of_next_year"])
async def test_a_stream_that_makes_no_progress_is_dead_after_the_idle_timeout(
    kind: str, model_of: MakeModel, ask: Ask
) -> None:
    stop = Interruption(where="inside_block", how="stall", stall_event={"type": kind})
    async with MessagesApi([Answer.text("half a te", interruption=stop), FINE]) as api:
        with anyio.fail_after(20):
            events = await ask(model_of(api, idle_timeout=0.6))
    (notice,) = notices(events)
    assert "no progress for 0.6 s" in notice.reason
    assert isinstance(events[0], TextChunk)
    assert reply_in(events).message.text == "At last."


async def test_a_stall_after_a_completed_block_keeps_the_block(model_of: MakeModel, ask: Ask) -> None:
    stalled = Answer(blocks=TEXT_THEN_CALL, interruption=Interruption(where="inside_block", how="stall"))
    async with MessagesApi([stalled]) as api:
        reply = reply_in(await ask(model_of(api, idle_timeout=0.6)))
    assert reply.incomplete
    assert reply.message.content == (TextBlock(text="I look first."),)


async def test_a_service_that_never_answers_is_a_timeout(model_of: MakeModel, ask: Ask) -> None:
    async with MessagesApi([Silence()] * 6) as api:
        with pytest.raises(ModelError) as caught:
            await ask(model_of(api, idle_timeout=0.3))
    assert (caught.value.kind, caught.value.retryable, caught.value.attempts) == ("timeout", True, 6)


async def test_a_service_that_is_not_there_is_a_connection_error(model_of: MakeModel, ask: Ask, clock: Clock) -> None:
    async with MessagesApi([]) as api:
        model = model_of(api)
    with pytest.raises(ModelError) as caught:
        await ask(model)
    assert (caught.value.kind, caught.value.attempts) == ("connection", 6)
    assert "ANTHROPIC_BASE_URL" in caught.value.hint


async def test_a_page_instead_of_a_stream_is_raised_at_once(model_of: MakeModel, ask: Ask) -> None:
    page = Refusal(status=200, type="", message="", body=b"<html>welcome</html>")
    async with MessagesApi([page, FINE]) as api:
        with pytest.raises(ModelError) as caught:
            await ask(model_of(api))
    assert "text/html" in caught.value.message
    assert "ANTHROPIC_BASE_URL" in caught.value.hint
    assert len(api.requests) == 1


@pytest.mark.parametrize(
    "event",
    [
        {"type": "content_block_stop", "index": 9},
        {"type": "content_block_start", "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "id": 5}},
    ],
    ids=["stop of no block", "start without index", "delta of nothing", "call without name"],
)
async def test_an_event_that_makes_no_sense_is_a_broken_stream(
    event: dict[str, Any], model_of: MakeModel, ask: Ask
) -> None:
    closing = {"type": "content_block_stop", "index": 0}
    async with MessagesApi([Answer.text("x", extra_events=(event, closing)), FINE]) as api:
        events = await ask(model_of(api))
    (notice,) = notices(events)
    assert "makes no sense" in notice.reason
    assert reply_in(events).message.text == "At last."


async def test_a_model_that_refuses_to_be_forced_is_asked_in_words(model_of: MakeModel, ask: Ask, clock: Clock) -> None:
    done = Answer.call("complete", {"summary": "all"})
    async with MessagesApi([done, done], refuses_forced_tools=True) as api:
        model = model_of(api)
        first = await ask(model, question(tool_choice="complete"))
        await ask(model, question(tool_choice="complete"))
    assert reply_in(first).message.tool_calls[0].name == "complete"
    assert [("tool_choice" in body) for body in api.requests] == [True, False, False]
    assert "`complete`" in api.requests[1]["messages"][-1]["content"][-1]["text"]
    assert [body["tools"] for body in api.requests] == [api.requests[0]["tools"]] * 3
    assert (notices(first), clock.waits) == ([], [])


async def test_a_failed_attempt_tells_what_it_is_billed_for_and_whose_message_it_was(
    model_of: MakeModel, ask: Ask
) -> None:
    usage = {"input_tokens": 90, "cache_read_input_tokens": 7}
    broken = Answer.text("half a te", usage=usage, interruption=Interruption(where="inside_block"))
    refused = Refusal(status=400, type="invalid_request_error", message="no")
    billed = Usage(input_tokens=90, output_tokens=1, cache_read_tokens=7)
    async with MessagesApi([overloaded(), broken, FINE, *[broken] * 6, refused]) as api:
        model = model_of(api)
        unheard, heard = notices(await ask(model))
        with pytest.raises(ModelError) as cut:
            await ask(model)
        with pytest.raises(ModelError) as never_begun:
            await ask(model)
    assert (unheard.usage, unheard.message_id) == (None, None)
    assert (heard.usage, heard.message_id) == (billed, "msg_loopback_2")
    assert (cut.value.usage, cut.value.message_id, cut.value.request_id) == (billed, "msg_loopback_9", "req_loopback_9")
    assert (never_begun.value.usage, never_begun.value.message_id) == (None, None)
