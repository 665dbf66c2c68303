"""Effort and thinking by families of models: what is asked for reaches the service, or is refused before."""

from __future__ import annotations

import itertools
from typing import Any, get_args

import pytest
from tests.unit.models.asking import Ask, MakeModel, question, reply_in

from kinfold.models.base import Effort, Thinking
from kinfold.models.families import FAMILIES, why_refused
from kinfold.models.pricing import PRICES
from kinfold.testing.messages_api import Answer, MessagesApi

pytestmark = pytest.mark.anyio
EFFORTS: tuple[Effort | None, ...] = (None, *get_args(Effort))
THINKING: tuple[Thinking | None, ...] = (None, "adaptive", "off", 2_000, 100_000)


def test_every_model_with_a_price_has_a_family() -> None:
    assert {*FAMILIES, "scripted"} == {*PRICES}


@pytest.mark.filterwarnings("ignore:.*deprecated")  # by the SDK: of old models, and of budgets where both forms go
@pytest.mark.parametrize("model", sorted(FAMILIES))
async def test_a_strict_service_takes_whatever_is_not_refused_here(model: str, model_of: MakeModel, ask: Ask) -> None:
    wanted = [
        (effort, thinking)
        for effort, thinking in itertools.product(EFFORTS, THINKING)
        if why_refused(model, effort, thinking) is None
    ]
    async with MessagesApi(lambda body: Answer.text("yes")) as api:
        asked = model_of(api, model)
        for effort, thinking in wanted:
            reply_in(await ask(asked, question(effort=effort, thinking=thinking)))
    assert (None, None) in wanted
    assert len(api.requests) == len(wanted)  # none was refused, for a refusal is not sent again


@pytest.mark.parametrize(
    ("model", "effort", "thinking", "field", "words"),
    [
        ("claude-haiku-4-5-20251001", "high", None, "effort", "it takes none"),
        ("claude-opus-4-6", "xhigh", None, "effort", "it takes low, medium, high, max"),
        ("claude-opus-4-5", "max", None, "effort", "it takes low, medium, high"),
        ("claude-sonnet-4-5", None, "adaptive", "thinking", "it takes 'off' or a budget of at most 47,616 tokens"),
        ("claude-sonnet-4-5", None, 48_000, "thinking", "a budget of 48,000 tokens"),
        ("anthropic:claude-opus-4-7", None, 2_000, "thinking", "it takes 'adaptive' or 'off'"),
        ("claude-opus-5-5", None, "off", "thinking", "always reasons"),
        ("cassette:claude-haiku-5-5", "max", "off", "thinking", "at effort 'max'"),
    ],
)
def test_a_refusal_names_the_field_and_what_the_model_takes(
    model: str, effort: Effort | None, thinking: Thinking | None, field: str, words: str
) -> None:
    refused = why_refused(model, effort, thinking)
    assert refused is not None
    assert refused[0] == field
    assert words in refused[1]


@pytest.mark.parametrize("model", ["scripted", "somebodys-own", "claude-opus-99"])
def test_an_unknown_model_is_sent_what_is_asked_for(model: str) -> None:
    assert all(why_refused(model, *each) is None for each in itertools.product(EFFORTS, THINKING))


@pytest.mark.parametrize(
    ("model", "thinking", "sent", "max_tokens"),
    [
        ("claude-opus-5-5", None, None, 16_384),
        ("claude-opus-5-5", "adaptive", {"type": "adaptive"}, 16_384),
        ("claude-opus-5", "off", {"type": "disabled"}, 16_384),
        ("claude-sonnet-5-5", "off", {"type": "between_tools"}, 16_384),
        ("claude-opus-4-7", "off", None, 16_384),
        ("claude-of-somebody", "off", {"type": "disabled"}, 16_384),
        ("claude-sonnet-4-5", 2_000, {"type": "enabled", "budget_tokens": 2_000}, 18_384),
    ],
)
async def test_thinking_reaches_the_service_as_its_model_takes_it(
    model: str, thinking: Any, sent: Any, max_tokens: int, model_of: MakeModel, ask: Ask
) -> None:
    async with MessagesApi([Answer.text("yes")]) as api:
        await ask(model_of(api, model), question(thinking=thinking))
    (body,) = api.requests
    assert (body.get("thinking"), body["max_tokens"]) == (sent, max_tokens)


@pytest.mark.parametrize(("model", "thinking"), [("claude-sonnet-4-5", 2_000), ("claude-opus-5-5", None)])
async def test_a_tool_is_asked_for_in_words_where_it_cannot_be_forced(
    model: str, thinking: Thinking | None, model_of: MakeModel, ask: Ask
) -> None:
    async with MessagesApi([Answer.call("complete", {})]) as api:
        await ask(model_of(api, model), question(thinking=thinking, tool_choice="complete"))
    (body,) = api.requests
    assert "tool_choice" not in body
    assert "complete" in body["messages"][-1]["content"][-1]["text"]
