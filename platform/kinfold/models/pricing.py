"""What a request costs, from a table of list prices; a model that is not in it has no price rather than a free one."""

from __future__ import annotations

import re
from dataclasses import dataclass

from kinfold.messages import Usage

CACHE_WRITE = 1.25
"""A written prompt token against a plain one, in an entry that lives five minutes."""
CACHE_WRITE_HOUR = 2.0
"""The same in an entry that lives an hour; kinfold asks for none, a server in between may."""
WEB_SEARCH = 0.01
"""US dollars for each search that the service made by itself."""
_PER = 1_000_000


@dataclass(frozen=True, slots=True)
class Price:
    """US dollars for a million tokens, without discounts."""

    input: float
    output: float
    cache_read: float = 0.1
    """A prompt token read from the cache against a plain one."""
    long: Price | None = None
    """What holds for a whole request whose prompt has over `LONG_PROMPT` tokens, where that differs."""


LONG_PROMPT = 100_000

PRICES: dict[str, Price] = {
    "claude-fable-5-1": Price(10, 50, 0.025),
    "claude-mythos-5-1": Price(10, 50, 0.025),
    "claude-fable-5": Price(10, 50),
    "claude-mythos-5": Price(10, 50),
    "claude-opus-5-5": Price(4, 20, 0.05),
    "claude-opus-5": Price(5, 25),
    "claude-opus-4-8": Price(5, 25),
    "claude-opus-4-7": Price(5, 25),
    "claude-opus-4-6": Price(5, 25),
    "claude-opus-4-5": Price(5, 25),
    "claude-opus-4-1": Price(15, 75),
    "claude-sonnet-5-5": Price(2, 10, 0.05),
    "claude-sonnet-5": Price(2, 10),
    "claude-sonnet-4-6": Price(3, 15),
    "claude-sonnet-4-5": Price(3, 15),
    "claude-haiku-5-5": Price(0.1, 0.5, long=Price(0.5, 2.5)),
    "claude-haiku-4-5": Price(1, 5),
    "scripted": Price(0, 0),
}
"""The vendor's published prices as of autumn 2026, by the model's name without its date; a script asks nobody."""


def cost_usd(model: str, usage: Usage) -> float | None:
    """What one request to `model` cost in US dollars; None where the price is not known.

    Pass the usage of single requests and add up: a price may depend on how long a request's prompt is.
    """
    if model.startswith("cassette:"):  # a recording asks nobody, like a script
        return 0.0
    iterations = usage.detail.iterations if usage.detail else ()
    rounds = [(one.model or model, one.usage) for one in iterations] or [(model, usage)]
    costs = [_tokens_cost(name, counts) for name, counts in rounds]
    known = [cost for cost in costs if cost is not None]
    if len(known) < len(costs):
        return None
    searches = usage.detail.server_tool_use.get("web_search_requests", 0) if usage.detail else 0
    return sum(known) + searches * WEB_SEARCH


def _tokens_cost(model: str, usage: Usage) -> float | None:
    price = PRICES.get(re.sub(r"-\d{8}$", "", model.removeprefix("anthropic:")))
    if price is None:
        return None
    if price.long is not None and usage.prompt_tokens > LONG_PROMPT:
        price = price.long
    hour = usage.cache_creation_hour_tokens
    written = hour * CACHE_WRITE_HOUR + (usage.cache_creation_tokens - hour) * CACHE_WRITE
    prompt = usage.input_tokens + written + usage.cache_read_tokens * price.cache_read
    return (prompt * price.input + usage.output_tokens * price.output) / _PER
