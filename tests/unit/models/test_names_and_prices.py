"""Models by name, prices by model, sizes by estimate."""

from __future__ import annotations

import pytest
from tests.unit.models.asking import question

from kinfold.errors import ConfigError
from kinfold.messages import ImageBlock, Message, TextBlock, ToolCall, ToolResult, Usage
from kinfold.models import LINES, estimate, resolve
from kinfold.models.pricing import cost_usd

MILLION = 1_000_000


@pytest.mark.parametrize(
    "name", ["", "gpt-9", "claude", "openai:gpt-9", "scripted", "scripted:", "anthropic", "anthropic:  ", "file.yaml"]
)
def test_an_unknown_name_is_a_config_error_that_lists_what_is_allowed(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolve(name)
    assert repr(name) in caught.value.message
    assert "scripted:FILE" in caught.value.hint
    assert "anthropic:NAME" in caught.value.hint


def test_a_cassette_that_is_not_there_says_so() -> None:
    with pytest.raises(ConfigError, match=r"cassette tape\.jsonl: No such file"):
        resolve("cassette:tape.jsonl")


@pytest.mark.parametrize("name", ["claude-opus-5", "anthropic:claude-opus-5"])
def test_a_bare_and_a_full_name_are_the_same_model(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-any")
    assert resolve(name).name == "claude-opus-5"


@pytest.mark.parametrize("line", sorted(LINES))
def test_a_line_of_models_means_one_whose_price_is_known(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-any")
    assert resolve(line).name == LINES[line]
    assert cost_usd(LINES[line], Usage(input_tokens=1)) is not None


@pytest.mark.parametrize(
    ("model", "usage", "cost"),
    [
        ("claude-opus-5", Usage(input_tokens=MILLION, output_tokens=MILLION), 30.0),
        ("claude-haiku-4-5-20251001", Usage(output_tokens=MILLION), 5.0),
        ("anthropic:claude-sonnet-4-6", Usage(cache_creation_tokens=MILLION), 3.75),
        ("claude-sonnet-4-6", Usage(cache_creation_tokens=MILLION, cache_creation_hour_tokens=MILLION // 2), 4.875),
        ("claude-sonnet-4-6", Usage(cache_read_tokens=MILLION), 0.3),
        ("claude-opus-5-5", Usage(cache_read_tokens=MILLION), 0.2),
        ("claude-fable-5-1", Usage(cache_read_tokens=MILLION), 0.25),
        ("claude-haiku-5-5", Usage(input_tokens=100_000), 0.01),
        ("claude-haiku-5-5", Usage(input_tokens=50_000, cache_read_tokens=60_000), 0.028),
        ("claude-opus-5", Usage(), 0.0),
    ],
)
def test_a_known_model_costs_its_list_price(model: str, usage: Usage, cost: float) -> None:
    assert cost_usd(model, usage) == pytest.approx(cost)


@pytest.mark.parametrize("model", ["claude-opus-99", "claude-opus-5-20", "", "my-server-model"])
def test_a_model_of_unknown_price_costs_none_and_not_nothing(model: str) -> None:
    assert cost_usd(model, Usage(input_tokens=5)) is None


def test_the_estimate_grows_with_every_part_of_a_request() -> None:
    bare = question(system=(), tools=(), messages=(Message.user("x" * 400),))
    assert 100 <= estimate.request_tokens(bare) <= 120
    parts = [
        question(system=("a long rule " * 10,), tools=(), messages=bare.messages),
        question(system=(), messages=bare.messages),
        question(system=(), tools=(), messages=(*bare.messages, *bare.messages)),
    ]
    assert all(estimate.request_tokens(part) > estimate.request_tokens(bare) for part in parts)


def test_every_kind_of_block_has_a_size() -> None:
    picture = ImageBlock(media_type="image/png", data="AAAA")
    result = ToolResult(tool_use_id="a", content=(picture, TextBlock(text="seen " * 100)))
    assert estimate.block_tokens(picture) > 1_000
    assert estimate.block_tokens(result) > estimate.block_tokens(picture) + 100
    assert estimate.block_tokens(ToolCall(id="a", name="bash", input={"command": "x" * 400})) > 100
    assert estimate.text_tokens("") == 0
    assert estimate.text_tokens("漢字かな交じり文") == 6
    assert estimate.text_tokens("\ud800") == 1
