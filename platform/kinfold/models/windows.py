"""How many tokens a model's window holds, by its resolved name; a model that is not known is taken to be small."""

from __future__ import annotations

_MILLION = 1_000_000
WINDOWS: dict[str, int] = {
    "claude-fable-5": _MILLION,
    "claude-mythos-5": _MILLION,
    "claude-opus-5": _MILLION,
    "claude-sonnet-5": _MILLION,
    "claude-opus-4-8": _MILLION,
    "claude-opus-4-7": _MILLION,
    "claude-opus-4-6": _MILLION,
    "claude-sonnet-4-6": _MILLION,
    "claude-": 200_000,
    "scripted": 200_000,
}
"""By the beginning of the name, the first that fits; from the vendor's overview of its models, autumn 2026. Where one
is smaller after all, the service says so, and the conversation is compacted then."""
UNKNOWN_WINDOW = 64_000


def window_of(model: str) -> int | None:
    """The window of a model, also of a recorded one; None where the model is not known."""
    name = model.removeprefix("cassette:").removeprefix("anthropic:")
    return next((size for start, size in WINDOWS.items() if name.startswith(start)), None)
