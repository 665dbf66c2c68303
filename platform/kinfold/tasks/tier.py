"""What a tier makes of what was asked: what is over it is refused by its name and numbers, the rest is filled in."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from kinfold.config import Settings, Tier
from kinfold.definitions import SubagentDefinition
from kinfold.errors import ConfigError
from kinfold.tasks.result import RunLimits


def tier_of(settings: Settings) -> Tier:
    """The tier of this task; one without limits where none is named. Raises `ConfigError` for an unknown name."""
    name = settings.tier_name
    if name is None:
        return Tier()
    if name not in settings.tiers:
        known = ", ".join(sorted(settings.tiers)) or "none"
        raise ConfigError(f"there is no tier {name!r}", hint=f"tiers of kinfold.toml are: {known}")
    return settings.tiers[name].model_copy(update={"name": name})


def model_of(tier: Tier, asked: str | None) -> str | None:
    """The main agent's model. Raises `ConfigError` where another than the tier's was asked for.

    A script or a recording stands for any model: it costs nothing.
    """
    free = (asked or "").partition(":")[0] in ("scripted", "cassette")
    if tier.model is None or free:
        return asked
    if asked not in (None, tier.model):
        raise ConfigError(
            f"the tier {tier.name!r} has the model {tier.model!r}, and {asked!r} was asked for",
            hint="leave the model out, or name another tier",
        )
    return tier.model


def asked_limits(settings: Settings) -> RunLimits:
    """What the settings themselves ask for."""
    asked = {name: getattr(settings, name) for name in ("max_steps", "timeout", "budget")}
    return RunLimits.model_validate({name: value for name, value in asked.items() if value is not None})


def limits_within(tier: Tier, limits: RunLimits) -> RunLimits:
    """The task's limits. Raises `ConfigError` where more was asked for than the tier allows."""
    found = {name: getattr(limits, name) for name in limits.model_fields_set}
    for name in ("max_steps", "concurrency", "timeout", "budget"):
        asked, most = found.get(name), getattr(tier, name)
        if asked is not None and most is not None and asked > most:
            raise ConfigError(
                f"the tier {tier.name!r} allows {name} {most:g}, and {asked:g} was asked for",
                hint=f"ask for at most {most:g}, or name another tier",
            )
        if asked is None and most is not None:
            found[name] = min(most, RunLimits().max_steps) if name == "max_steps" else most
    return RunLimits.model_validate(found)


def month_start(now: datetime | None = None) -> float:
    """When the calendar month began (UTC), in seconds since the epoch: credits count from there."""
    now = now or datetime.now(UTC)
    return datetime(now.year, now.month, 1, tzinfo=UTC).timestamp()


def within_credits(tier: Tier, limits: RunLimits, *, user_id: str, spent: float) -> RunLimits:
    """The limits with a budget of what is left of the month's credits. Raises `ConfigError` where nothing is."""
    if tier.credits is None:
        return limits
    left = tier.credits - spent
    if left <= 0:
        raise ConfigError(
            f"the credits of {user_id!r} are used up: ${spent:.2f} of the ${tier.credits:.2f} that the tier "
            f"{tier.name!r} gives a month",
            hint="wait for the next month (UTC), or name a tier with more",
            code="credits_used_up",
        )
    return limits.model_copy(update={"budget": left if limits.budget is None else min(left, limits.budget)})


def definitions_of(tier: Tier, definitions: Sequence[SubagentDefinition]) -> tuple[SubagentDefinition, ...]:
    """The definitions as they run in this tier: its models, and no more steps than it allows."""
    return tuple(_within(tier, definition) for definition in definitions)


def _within(tier: Tier, definition: SubagentDefinition) -> SubagentDefinition:
    return definition.model_copy(
        update={
            "model": tier.subagent_model or definition.model,
            "compaction_model": tier.compaction_model or definition.compaction_model,
            "max_steps": min(definition.max_steps, tier.subagent_max_steps or definition.max_steps),
        }
    )
