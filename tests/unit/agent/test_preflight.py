"""A subagent whose first request outgrows its model's window is refused before it starts, by the parts' sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.agent.stage import calls, complete
from tests.unit.agent.test_delegation import GENERAL, House, work

from kinfold.agent.preflight import check_fits, first_request
from kinfold.errors import ModelError, ToolError
from kinfold.events import RunStarted, Warned
from kinfold.messages import Message
from kinfold.models.anthropic import AnthropicModel
from kinfold.models.base import ModelRequest
from kinfold.testing.messages_api import MessagesApi, Refusal, internal

pytestmark = pytest.mark.anyio
HUGE = "a word " * 130_000  # about 227,000 tokens by the estimate
LARGE = "a word " * 90_000  # about 157,000: it fits
VAST = GENERAL.model_copy(update={"type": "vast", "instructions": "Mind this. " * 9_000})


def starting(prompt: str) -> ModelRequest:
    return first_request(VAST, prompt, "UTC", ())


def model_of(api: MessagesApi) -> AnthropicModel:
    return AnthropicModel("claude-sonnet-4-5", api_key=api.api_key, base_url=api.base_url)


async def test_a_prompt_that_outgrows_the_window_is_refused_with_the_biggest_parts_and_starts_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kinfold.agent.preflight.window_of", lambda model: 60_000)
    long = ("task", {"subagent_type": "vast", "description": "dig", "prompt": "a word " * 20_000})
    script = [calls(long), calls(work("small")), complete()]
    house = House(script, lambda request: complete(), definitions=(VAST, GENERAL), total=1)
    await house.run()
    (answer,) = [b for b in house.requests[1].messages[-1].content if b.type == "tool_result"]
    assert answer.is_error
    assert "'vast' cannot start: its first request has 6" in answer.text
    assert "and its reply may have 16,384; the window of scripted holds 60,000. The biggest" in answer.text
    sizes = answer.text.partition("The biggest parts, estimated: ")[2]
    assert sizes.startswith("the prompt 35,0")
    assert sizes.index("the prompt") < sizes.index("the instructions of its definition 24,750") < sizes.index("every")
    assert "put long content into files" in answer.text
    assert [event.label for event in house.stage.of(RunStarted)] == [None, "small"]  # the refused one took no place


async def test_the_request_that_is_checked_is_the_one_that_is_sent() -> None:
    odd = GENERAL.model_copy(update={"effort": "low", "thinking": "adaptive", "instructions": " Be terse. \n"})
    house = House([calls(work("dig")), complete()], lambda request: complete(), definitions=(odd,))
    await house.run()
    sent = house.first_of("dig")
    checked = first_request(odd, "the whole of dig", house.context.timezone, ())
    assert replace(checked, label=sent.label, step=sent.step) == sent


async def test_far_from_the_window_nothing_is_asked_of_the_service() -> None:
    async with MessagesApi([], count=internal()) as api:
        assert await check_fits(model_of(api), starting("a small prompt")) is None
    assert api.counted == []


@pytest.mark.parametrize(
    ("prompt", "count", "fits"), [(LARGE, 183_617, False), (LARGE, 183_616, True), (HUGE, 9, True)]
)
async def test_near_the_window_the_services_count_decides(prompt: str, count: int, fits: bool) -> None:
    async with MessagesApi([], count=count) as api:
        if fits:
            assert await check_fits(model_of(api), starting(prompt)) is None
        else:
            with pytest.raises(ToolError, match=f"has {count:,} tokens"):
                await check_fits(model_of(api), starting(prompt))
        (body,) = api.counted
    assert body["messages"][0]["content"][0]["text"] == prompt
    assert {"system", "tools"} < set(body)


async def test_a_count_that_fails_leaves_the_estimate_and_a_warning() -> None:
    overfull = Refusal(status=529, type="overloaded_error", message="Overloaded")
    async with MessagesApi([], count=overfull) as api:
        said = await check_fits(model_of(api), starting(LARGE))
        with pytest.raises(ToolError):
            await check_fits(model_of(api), starting(HUGE))
        assert len(api.counted) == 2
    assert said is not None
    assert "could not be counted, only estimated: the model's service answered overloaded_error" in said


async def test_what_could_not_be_counted_starts_and_its_parent_reads_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(request: ModelRequest) -> int:
        raise ModelError("no count today", kind="server")

    monkeypatch.setattr("kinfold.agent.preflight.window_of", lambda model: 20_000)
    house = House([calls(work("dig")), complete()], lambda request: complete(), definitions=(GENERAL,))
    monkeypatch.setattr("kinfold.agent.preflight.NEAR", 0.0)
    monkeypatch.setattr(house.config.model, "count_tokens", fails, raising=False)
    await house.run()
    assert [(event.code, event.label) for event in house.stage.of(Warned)] == [("count_failed", "dig")]
    (read,) = house.read_by_parent()
    assert "could not be counted, only estimated: no count today" in read


async def test_reasoning_within_a_budget_needs_its_room_too() -> None:
    thinking = replace(starting(LARGE), thinking=30_000)
    async with MessagesApi([], count=160_000) as api:
        model = AnthropicModel("claude-sonnet-4-5", api_key=api.api_key, base_url=api.base_url)
        with pytest.raises(ToolError, match="its reply may have 46,384"):
            await check_fits(model, thinking)
    assert api.counted[0]["thinking"] == {"type": "enabled", "budget_tokens": 30_000}


async def test_an_unknown_window_is_said_to_be_taken_for_small() -> None:
    class Strange:
        name = "somebodys-own"

        def stream(self, request: ModelRequest) -> object:
            raise AssertionError

    with pytest.raises(ToolError, match="holds 64,000, which is not known and taken for so many"):
        await check_fits(Strange(), replace(starting("x"), messages=(Message.user(LARGE),)))  # type: ignore[arg-type]
