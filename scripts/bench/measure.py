"""Paired timing: every contestant is timed once per round, in turn, so that drift of the machine hits all alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

Work = Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One comparison: seconds per call (or another figure, in `unit`) by contestant; the first is ours."""

    name: str
    bar: str
    """What the design asks for."""
    seconds: Mapping[str, list[float]]
    note: str = ""
    byte_count: int = 0
    """Bytes moved by one call; 0 where throughput means nothing."""
    unit: str = "s"

    def median(self, contestant: str) -> float:
        """The median, in `unit`."""
        return statistics.median(self.seconds[contestant])

    def percentile(self, contestant: str, share: float) -> float:
        """The value that `share` of the calls stay below."""
        ordered = sorted(self.seconds[contestant])
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]

    def ratio(self, contestant: str) -> float:
        """Ours over theirs, the median of the ratios round by round."""
        ours = next(iter(self.seconds.values()))
        return statistics.median(a / b for a, b in zip(ours, self.seconds[contestant], strict=False))


async def paired(contestants: Mapping[str, Work], *, rounds: int, warmup: int = 3) -> dict[str, list[float]]:
    """Seconds of each contestant in each round; `warmup` rounds are not counted."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for index in range(rounds + warmup):
        for name, work in contestants.items():
            before = time.perf_counter()
            await work()
            elapsed = time.perf_counter() - before
            if index >= warmup:
                seconds[name].append(elapsed)
    return seconds


def blocking(work: Callable[[], object]) -> Work:
    """A blocking call as a contestant: made in this thread, for a worker thread would add its own cost."""

    async def call() -> object:
        return work()

    return call
