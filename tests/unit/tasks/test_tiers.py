"""Tiers: who is in which, what is refused by name and numbers, and what is brought within it."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from tests.unit.agent.stage import calls, complete
from tests.unit.tasks.house import MemoryProvider

from kinfold import ParentTask
from kinfold.config import Settings, Tier
from kinfold.definitions import SubagentDefinition
from kinfold.errors import ConfigError
from kinfold.messages import Usage
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.tasks.result import RunLimits
from kinfold.tasks.store.door import Store
from kinfold.tasks.store.tasks import StoredTasks
from kinfold.tasks.tier import asked_limits, definitions_of, limits_within, model_of, month_start, tier_of

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


def limits_of(found: Settings) -> RunLimits:
    return limits_within(tier_of(found), asked_limits(found))


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
    assert model_of(tier_of(settings(tmp_path, user_id="bob")), None) == "haiku"
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
        model_of(tier_of(settings(tmp_path, tier="free")), "opus")


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


@pytest.mark.anyio
async def test_a_library_task_is_brought_within_its_tier_and_refused_what_is_over() -> None:
    tier = Tier(name="free", model="haiku", max_steps=1, budget=0.5)
    refusals: tuple[tuple[dict[str, Any], str], ...] = (
        ({"limits": RunLimits(max_steps=2)}, "the tier 'free' allows max_steps 1, and 2"),
        ({"model": "opus"}, "the tier 'free' has the model 'haiku', and 'opus'"),
    )
    for asked, words in refusals:
        arguments: dict[str, Any] = {"model": paid(), "tier": tier, "provider": MemoryProvider(), **asked}
        async with ParentTask("x", **arguments) as task:
            with pytest.raises(ConfigError, match=words):
                await task.start()
    provider = MemoryProvider()
    async with ParentTask("x", model=paid(steps=3), tier=tier, provider=provider) as task:
        await task.start()
        assert (await task.wait()).ended_by == "step_limit"


def paid(steps: int = 0) -> ScriptedModel:
    """Costs a dollar a request: a million tokens of a model at that price."""

    def reply(request: ModelRequest) -> ScriptedReply:
        usage = Usage(input_tokens=1_000_000)
        if request.step <= steps and request.tool_choice is None:
            return replace(calls(("todo_write", {"todos": [{"content": "x"}]})), usage=usage)
        return replace(complete(), usage=usage)

    return ScriptedModel(reply)


@pytest.mark.anyio
async def test_a_months_credits_are_of_all_tasks_of_a_user_and_end_a_task_in_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kinfold.agent.metered.cost_usd", lambda model, usage: usage.input_tokens / 1e6)
    tier = Tier(name="free", credits=4.5)

    async def one(user: str, steps: int) -> str:
        async with ParentTask(
            "x", model=paid(steps), tier=tier, user_id=user, provider=MemoryProvider(), definitions=()
        ) as task:
            await task.start()
            return (await task.wait()).ended_by

    assert await one("ada", 1) == "complete"  # two requests: $2
    assert await one("ada", 9) == "budget"  # $2.50 are left: three requests, and no fourth
    assert await one("bob", 0) == "complete", "another's credits are another's"
    with pytest.raises(ConfigError, match=r"credits of 'ada' are used up: \$5\.00 of the \$4\.50") as refused:
        await one("ada", 0)
    assert refused.value.code == "credits_used_up"


@pytest.mark.anyio
async def test_what_a_user_spent_holds_no_estimate_and_nothing_of_an_earlier_day(
    own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinfold.agent.metered.cost_usd", lambda model, usage: usage.input_tokens / 1e6)
    async with ParentTask("x", model=paid(2), provider=MemoryProvider(), definitions=()) as task:
        await task.start()
        await task.wait()
    today = datetime.now(UTC).timestamp()
    async with Store(own_state) as store:
        stored = StoredTasks(store)
        assert await stored.spent("local", today) == (3.0, 0)
        assert await stored.spent("ada", today) == (0.0, 0)
        async with (await store.database()).writing() as connection:
            first = "(SELECT min(id) FROM model_requests)"
            await connection.exec_driver_sql(f"UPDATE model_requests SET estimated = 1 WHERE id = {first}")
        assert await stored.spent("local", today) == (2.0, 0)
        assert await stored.spent("local", today + 86_400) == (0.0, 0)


def test_credits_count_from_the_first_of_the_month() -> None:
    at = datetime(2024, 2, 29, 23, 59, tzinfo=UTC)
    assert month_start(at) == datetime(2024, 2, 1, tzinfo=UTC).timestamp()
