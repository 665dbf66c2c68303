"""What a tier makes of what was asked: what is over it is refused by its name and numbers, the rest is filled in."""

from __future__ import annotations

from collections.abc import Sequence

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
    return settings.tiers[name]


def model_of(settings: Settings) -> str | None:
    """The main agent's model. Raises `ConfigError` where another than the tier's was asked for."""
    tier = tier_of(settings)
    if tier.model is None:
        return settings.model
    if settings.model not in (None, tier.model):
        raise ConfigError(
            f"the tier {settings.tier_name!r} has the model {tier.model!r}, and {settings.model!r} was asked for",
            hint="leave the model out, or name another tier",
        )
    return tier.model


def limits_of(settings: Settings) -> RunLimits:
    """The task's limits. Raises `ConfigError` where more was asked for than the tier allows."""
    tier = tier_of(settings)
    found: dict[str, float | None] = {"concurrency": tier.concurrency}
    for name in ("max_steps", "timeout", "budget"):
        asked, most = getattr(settings, name), getattr(tier, name)
        if asked is not None and most is not None and asked > most:
            raise ConfigError(
                f"the tier {settings.tier_name!r} allows {name} {most:g}, and {asked:g} was asked for",
                hint=f"ask for at most {most:g}, or name another tier",
            )
        found[name] = most if asked is None else asked
    if tier.max_steps is not None and settings.max_steps is None:
        found["max_steps"] = min(tier.max_steps, RunLimits().max_steps)
    return RunLimits.model_validate({name: value for name, value in found.items() if value is not None})


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
