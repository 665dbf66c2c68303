"""What a stream tells of its bill: counts that are cumulative, so that the last of each kind is true, and what else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kinfold.messages import Iteration, Usage, UsageDetail

_COUNTS = {
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cache_creation_input_tokens": "cache_creation_tokens",
    "cache_read_input_tokens": "cache_read_tokens",
}
_MORE = ("cache_creation", "server_tool_use", "service_tier", "iterations")


class ReportedUsage:
    """Give it each `usage` of a stream, in order. What it cannot read it passes over: a bill is no reason to fail."""

    def __init__(self) -> None:
        self._told: dict[str, Any] = {}

    def take(self, usage: object) -> None:
        """Note what one event reports."""
        if isinstance(usage, dict):
            self._told |= {name: usage[name] for name in (*_COUNTS, *_MORE) if usage.get(name) is not None}

    @property
    def usage(self) -> Usage | None:
        """The whole bill so far; None: nothing was reported.

        Where the service lists its iterations they are the bill: its own sum leaves some of them out.
        """
        if not self._told:
            return None
        iterations = tuple(_iteration(entry) for entry in _list(self._told.get("iterations")))
        detail = UsageDetail(
            service_tier=_text(self._told.get("service_tier")),
            server_tool_use=_whole_numbers(self._told.get("server_tool_use")),
            iterations=iterations,
        )
        bill = sum((one.usage for one in iterations), Usage()) if iterations else _counted(self._told)
        return bill if detail == UsageDetail() else bill.model_copy(update={"detail": detail})


def _iteration(entry: Mapping[str, Any]) -> Iteration:
    return Iteration(kind=_text(entry.get("type")) or "", model=_text(entry.get("model")), usage=_counted(entry))


def _counted(usage: Mapping[str, Any]) -> Usage:
    numbers = _whole_numbers(usage)
    counts = {ours: numbers.get(theirs, 0) for theirs, ours in _COUNTS.items()}
    hour = _whole_numbers(usage.get("cache_creation")).get("ephemeral_1h_input_tokens", 0)
    return Usage.model_validate({**counts, "cache_creation_hour_tokens": min(hour, counts["cache_creation_tokens"])})


def _list(value: object) -> list[dict[str, Any]]:
    return [entry for entry in value if isinstance(entry, dict)] if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _whole_numbers(value: object) -> dict[str, int]:
    """The counts among a mapping's values; everything else is left out."""
    if not isinstance(value, Mapping):
        return {}
    return {name: count for name, count in value.items() if isinstance(count, int) and count >= 0 and count is not True}
