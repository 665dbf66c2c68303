"""How many tokens a model's window holds, by its resolved name; a model that is not known is taken to be small."""

from __future__ import annotations

WINDOWS: dict[str, int] = {"claude-": 200_000, "scripted": 200_000}
"""By the beginning of the name. The vendor's smallest window counts for its whole family: some models hold more."""
UNKNOWN_WINDOW = 64_000


def window_of(model: str) -> int | None:
    """The window of a model, also of a recorded one; None where the model is not known."""
    name = model.removeprefix("cassette:").removeprefix("anthropic:")
    return next((size for start, size in WINDOWS.items() if name.startswith(start)), None)
