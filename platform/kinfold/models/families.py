"""Which models take which `effort` and which `thinking`, so that what one would refuse is said before it is asked.

A model that is not listed is sent what is asked for: its service knows it better.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from kinfold.models.base import MAX_TOKENS, Effort, Thinking

_HIGH: tuple[Effort, ...] = ("low", "medium", "high")
_MAX: tuple[Effort, ...] = (*_HIGH, "max")
_ALL: tuple[Effort, ...] = (*_HIGH, "xhigh", "max")


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What models of one kind take."""

    efforts: tuple[Effort, ...] = _ALL
    """Empty: no `effort` at all."""
    adaptive: bool = True
    max_output: int = 0
    """Tokens of a reply, reasoning included, where reasoning has a budget; 0: `budget_tokens` is refused."""
    off: str | None = "omit"
    """How reasoning is turned off: by a `thinking` of this type, or by leaving it out; None: it cannot be."""
    off_efforts: tuple[Effort, ...] = _ALL
    """With which efforts that is taken."""
    bound: bool = False
    """Whether reasoning is tied to the conversation that it followed, and refused behind another one. These same models
    refuse to be forced to a tool."""


_ALWAYS = Family(off=None)
_ALWAYS_BOUND = Family(off=None, bound=True)
_FOUR_SEVEN = Family()
_FOUR_SIX = Family(efforts=_MAX, max_output=64_000)
_FOUR_FIVE = Family(efforts=(), adaptive=False, max_output=64_000)

FAMILIES: dict[str, Family] = {
    "claude-fable-5-1": _ALWAYS_BOUND,
    "claude-mythos-5-1": _ALWAYS_BOUND,
    "claude-fable-5": _ALWAYS,
    "claude-mythos-5": _ALWAYS,
    "claude-opus-5-5": _ALWAYS_BOUND,
    "claude-sonnet-5-5": Family(off="between_tools", off_efforts=_HIGH, bound=True),
    "claude-haiku-5-5": Family(off="disabled", off_efforts=_HIGH, bound=True),
    "claude-opus-5": Family(off="disabled", off_efforts=_HIGH),
    "claude-sonnet-5": Family(off="disabled"),
    "claude-opus-4-8": _FOUR_SEVEN,
    "claude-opus-4-7": _FOUR_SEVEN,
    "claude-opus-4-6": _FOUR_SIX,
    "claude-sonnet-4-6": _FOUR_SIX,
    "claude-opus-4-5": Family(efforts=_HIGH, adaptive=False, max_output=64_000),
    "claude-sonnet-4-5": _FOUR_FIVE,
    "claude-haiku-4-5": _FOUR_FIVE,
    "claude-opus-4-1": Family(efforts=(), adaptive=False, max_output=32_000),
}
"""By the model's name without its date; the vendor's documentation as of autumn 2026."""


def family_of(model: str) -> Family | None:
    """The family of a model, also of a recorded one; None where it is not known."""
    return FAMILIES.get(re.sub(r"-\d{8}$", "", model.removeprefix("cassette:").removeprefix("anthropic:")))


def why_refused(model: str, effort: Effort | None, thinking: Thinking | None) -> tuple[str, str] | None:
    """Which of the two (`effort`, `thinking`) the model would refuse, and why; None: it takes both."""
    family = family_of(model)
    if family is None:
        return None
    if effort is not None and effort not in family.efforts:
        taken = f"it takes {', '.join(family.efforts)}" if family.efforts else "it takes none"
        return "effort", f"{effort!r} is no effort of {model}: {taken}"
    reason = _thinking_refused(family, effort, thinking)
    return ("thinking", f"{reason.format(model=model)}; it takes {_taken(family)}") if reason else None


def _thinking_refused(family: Family, effort: Effort | None, thinking: Thinking | None) -> str | None:
    match thinking:
        case "adaptive" if not family.adaptive:
            return "'adaptive' is no thinking of {model}"
        case "off" if family.off is None:
            return "{model} always reasons, so its thinking cannot be 'off'"
        case "off" if effort is not None and effort not in family.off_efforts:
            return f"{{model}} does not turn its thinking 'off' at effort {effort!r}, only at {_HIGH[-1]!r} or below"
        case int() if thinking + MAX_TOKENS > family.max_output:
            return f"a budget of {thinking:,} tokens is no thinking of {{model}}"
    return None


def _taken(family: Family) -> str:
    budget = f"a budget of at most {family.max_output - MAX_TOKENS:,} tokens" if family.max_output else ""
    forms = ("'adaptive'" if family.adaptive else "", "'off'" if family.off else "", budget)
    return " or ".join(form for form in forms if form)


def thinking_body(model: str, thinking: Thinking) -> dict[str, Any] | None:
    """The `thinking` of a request to a model; None: it is left out."""
    if thinking == "adaptive":
        return {"type": "adaptive"}
    if thinking == "off":
        family = family_of(model)
        how = family.off if family is not None and family.off is not None else "disabled"
        return None if how == "omit" else {"type": how}
    return {"type": "enabled", "budget_tokens": thinking}
