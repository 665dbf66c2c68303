"""The middle of a list of numbers; one of the two cases below is wrong on purpose."""

from __future__ import annotations


def median(numbers: list[float]) -> float:
    """The middle value, or the mean of the two middle ones."""
    ordered = sorted(numbers)
    half = len(ordered) // 2
    return ordered[half]
