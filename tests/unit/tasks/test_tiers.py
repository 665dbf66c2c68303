"""Tiers: who is in which, what is refused by name and numbers, and what is brought within it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinfold.config import Settings, Tier
from kinfold.definitions import SubagentDefinition
from kinfold.errors import ConfigError
from kinfold.tasks.tier import definitions_of, limits_of, model_of, tier_of

TOML = """
[tiers.free]
model = "haiku"
max_steps = 10
concurrency = 2
budget = 0.5

[tiers.pro]
max_steps = 200

[users]
ada = "pro"
bob = "free"
"""


def settings(tmp_path: Path, text: str = TOML, **flags: Any) -> Settings:
    (tmp_path / "kinfold.toml").write_text(text)
    return Settings.load(flags, cwd=tmp_path, environ={})


def test_a_user_is_in_the_tier_that_the_file_says_and_a_flag_outweighs_it(tmp_path: Path) -> None:
    assert settings(tmp_path, user_id="ada").tier_name == "pro"
    assert settings(tmp_path, user_id="ada", tier="free").tier_name == "free"
    assert tier_of(settings(tmp_path)) == Tier()
    with pytest.raises(ConfigError, match="no tier 'gold'") as raised:
        tier_of(settings(tmp_path, tier="gold"))
    assert "free, pro" in raised.value.hint


def test_what_was_not_asked_for_is_the_tiers(tmp_path: Path) -> None:
    limits = limits_of(settings(tmp_path, user_id="bob"))
    assert (limits.max_steps, limits.concurrency, limits.budget) == (10, 2, 0.5)
    assert model_of(settings(tmp_path, user_id="bob")) == "haiku"
    assert limits_of(settings(tmp_path, user_id="ada")).max_steps == 60, "a tier above the default raises nothing"
    assert limits_of(settings(tmp_path, user_id="ada", max_steps=150)).max_steps == 150


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"max_steps": 11}, "the tier 'free' allows max_steps 10, and 11 was asked for"),
        ({"budget": 0.75}, "the tier 'free' allows budget 0.5, and 0.75 was asked for"),
    ],
)
def test_a_refusal_names_the_tier_and_both_numbers(tmp_path: Path, flags: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        limits_of(settings(tmp_path, tier="free", **flags))
    with pytest.raises(ConfigError, match="the tier 'free' has the model 'haiku', and 'opus'"):
        model_of(settings(tmp_path, tier="free", model="opus"))


def test_definitions_are_brought_within_the_tier() -> None:
    big = SubagentDefinition(type="a", description="A.", max_steps=100, model="opus")
    small = SubagentDefinition(type="b", description="B.", max_steps=3)
    tier = Tier(subagent_model="haiku", subagent_max_steps=20)
    assert [(d.model, d.max_steps) for d in definitions_of(tier, [big, small])] == [("haiku", 20), ("haiku", 3)]
    assert definitions_of(Tier(), [big]) == (big,)


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("[tiers.a]\nmax_steps = 1\n[tiers.b]\n# x\nmax_steps = 0\n", 5, "tiers.b.max_steps: Input should be greater"),
        ("[tiers.a]\nbudgett = 1\n", 2, "unknown key 'tiers.a.budgett'"),
        ("[users]\nada = 3\n", 2, "users.ada: Input should be a valid string"),
        ('model = "x"\ntimezone = "Mars/Base"\n', 2, "unknown time zone 'Mars/Base'"),
        ("timeout = 'foo'\n", 1, "(got 'foo')"),
    ],
)
def test_a_wrong_value_names_file_and_line_what_stands_there_and_what_to_do(
    tmp_path: Path, text: str, place: int, words: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        settings(tmp_path, text)
    assert raised.value.message.startswith(f"{tmp_path}/kinfold.toml:{place}: ")
    assert words in raised.value.message
    assert raised.value.hint.startswith(("write another value", "a tier has: "))
