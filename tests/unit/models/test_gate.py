"""Who shares a key shares its limits: nobody storms a service that has just refused one of them."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from typing import Any

import anyio
import pytest
from tests.unit.models.asking import Ask, Clock, question, reply_in

from kinfold.errors import ModelError
from kinfold.models.anthropic import AnthropicModel
from kinfold.models.base import RetryNotice
from kinfold.models.gate import WIDEST, Gate, gate_of
from kinfold.models.retry import RetryPolicy
from kinfold.testing.api_outcomes import Answer, Outcome, Refusal
from kinfold.testing.messages_api import MessagesApi

pytestmark = pytest.mark.anyio

STORM, WINDOW, PER_WINDOW = 20, 0.5, 4
EMPTY = {"anthropic-ratelimit-requests-remaining": "0"}


class LimitedService:
    """Takes so many requests in each window of time, and tells the others when the next one begins."""

    def __init__(self) -> None:
        self.refused = 0
        self._window = 0
        self._taken = 0

    def __call__(self, body: Mapping[str, Any]) -> Outcome:
        now = time.monotonic()
        if int(now / WINDOW) != self._window:
            self._window, self._taken = int(now / WINDOW), 0
        self._taken += 1
        if self._taken <= PER_WINDOW:
            return Answer.text("at last")
        self.refused += 1
        left = int(1000 * ((self._window + 1) * WINDOW - now)) + 1
        headers = {"retry-after-ms": str(left)}
        return Refusal(status=429, type="rate_limit_error", message="slow down", headers=headers)


async def test_a_storm_of_one_key_ends_well_and_is_refused_about_once_each(ask: Ask) -> None:
    service = LimitedService()
    policy = RetryPolicy(first=0.1)
    async with MessagesApi(service) as api:
        models = [
            AnthropicModel("claude-opus-5", api_key=api.api_key, base_url=api.base_url, retry=policy) for _ in range(2)
        ]
        replies: list[str] = []

        async def one(model: AnthropicModel) -> None:
            replies.append(reply_in(await ask(model, question())).message.text)

        async with anyio.create_task_group() as group:
            for number in range(STORM):
                group.start_soon(one, models[number % 2])
    assert replies == ["at last"] * STORM
    assert service.refused < 2 * STORM  # measured: 29 to 35; 40 where each waits for itself alone


async def test_what_one_is_refused_its_siblings_wait_out_and_only_once() -> None:
    gate, clock = Gate(), Clock()
    until = gate.refused(30.0)
    async with gate.turn(clock.sleep, waited_until=until):
        assert clock.waits == []  # who was refused has waited by itself
    async with gate.turn(clock.sleep, waited_until=0.0):
        (wait,) = clock.waits
        assert 29 < wait <= 30


async def test_whoever_is_refused_with_a_short_wait_sits_out_the_longer_one_of_a_sibling_too() -> None:
    gate, clock = Gate(), Clock()
    gate.refused(30.0)
    until = gate.refused(0.5)
    async with gate.turn(clock.sleep, waited_until=until):
        (wait,) = clock.waits
        assert 29 < wait <= 30


async def test_a_refusal_halves_how_many_go_at_once_and_answers_widen_it_again() -> None:
    gate = Gate()
    assert gate.width == WIDEST
    async with AsyncExitStack() as inside:
        for _ in range(8):
            await inside.enter_async_context(gate.turn(anyio.sleep, waited_until=0.0))
        gate.refused(0.0)
        gate.refused(0.0)  # of the same wave
        assert gate.width == 4
        with anyio.move_on_after(0.05) as scope:
            async with gate.turn(anyio.sleep, waited_until=0.0):
                pytest.fail("eight are inside, and four may be")
        assert scope.cancelled_caught
    for _ in range(40):
        gate.answered({})
    assert 8 <= gate.width < 12
    async with gate.turn(anyio.sleep, waited_until=0.0):
        assert gate.width >= 8


@pytest.mark.parametrize(
    ("headers", "least", "most"),
    [
        ({**EMPTY, "anthropic-ratelimit-requests-reset": "in 20 s"}, 15, 20),
        ({**EMPTY, "anthropic-ratelimit-requests-reset": "in 900 s"}, 55, 60),
        ({**EMPTY, "anthropic-ratelimit-requests-reset": "soon"}, None, None),
        (EMPTY, None, None),
        ({"anthropic-ratelimit-requests-remaining": "7", "anthropic-ratelimit-requests-reset": "in 20 s"}, None, None),
        ({"anthropic-ratelimit-input-tokens-remaining": "0", "anthropic-ratelimit-input-tokens-reset": "in 9 s"}, 5, 9),
    ],
)
async def test_a_service_that_says_that_nothing_is_left_is_left_alone_until_it_has_more(
    headers: dict[str, str], least: float | None, most: float | None
) -> None:
    def dated(value: str) -> str:
        seconds = value.removeprefix("in ").removesuffix(" s")
        return (datetime.now(UTC) + timedelta(seconds=float(seconds))).isoformat() if seconds != value else value

    gate, clock = Gate(), Clock()
    gate.answered({name: dated(value) for name, value in headers.items()})
    async with gate.turn(clock.sleep, waited_until=0.0):
        if least is None or most is None:
            assert clock.waits == []
        else:
            (wait,) = clock.waits
            assert least < wait <= most


async def test_another_key_and_another_service_have_gates_of_their_own() -> None:
    mine = gate_of("http://a", "key")
    assert gate_of("http://a", "key") is mine
    assert gate_of("http://a", "another") is not mine
    assert gate_of("http://b", "key") is not mine


async def test_whoever_is_refused_still_tells_of_it(ask: Ask) -> None:
    async with MessagesApi([Refusal(status=529, type="overloaded_error", message="busy"), Answer.text("ok")]) as api:
        model = AnthropicModel(
            "claude-opus-5", api_key=api.api_key, base_url=api.base_url, retry=RetryPolicy(first=0.01)
        )
        events = await ask(model, question())
    assert [event.attempt for event in events if isinstance(event, RetryNotice)] == [1]


async def test_a_refusal_that_ends_its_request_is_news_for_the_siblings_too(ask: Ask) -> None:
    refusal = Refusal(status=429, type="rate_limit_error", message="later", headers={"retry-after": "61"})
    async with MessagesApi([refusal]) as api:
        model = AnthropicModel("claude-opus-5", api_key=api.api_key, base_url=api.base_url)
        with pytest.raises(ModelError):
            await ask(model, question())
        clock = Clock()
        async with gate_of(api.base_url, api.api_key).turn(clock.sleep, waited_until=0.0):
            (wait,) = clock.waits
    assert 50 < wait <= 60
