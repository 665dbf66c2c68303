"""A hundred sandboxes on one machine: time to ready, execs of twenty at once, and what each costs while it idles."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import anyio
from loop_rows import resident
from measure import Row

from kinfold.sandbox import DockerProvider, SandboxSpec
from kinfold.sandbox.base import MIB, Limits
from kinfold.sandbox.sandbox import Sandbox

IMAGE = "kinfold/base"
OPEN, ACTIVE, QUARTERS, EXECS = 100, 20, 4, 20
SPEC = SandboxSpec(image=IMAGE, keep=0, limits=Limits(memory_bytes=256 * MIB, disk_bytes=128 * MIB))


async def ready(provider: DockerProvider, boxes: list[Sandbox]) -> float:
    """Seconds from create to the first exec done."""
    before = time.perf_counter()
    box = await provider.create(SPEC)
    boxes.append(box)
    await box.exec(["true"])
    return time.perf_counter() - before


async def active(boxes: Sequence[Sandbox]) -> list[float]:
    """Seconds of each `true`, where each of these runs one after another and all of them at once."""
    seconds: list[float] = []

    async def runs(box: Sandbox) -> None:
        for _ in range(EXECS):
            before = time.perf_counter()
            await box.exec(["true"])
            seconds.append(time.perf_counter() - before)

    async with anyio.create_task_group() as group:
        for box in boxes:
            group.start_soon(runs, box)
    return seconds


def pss(pid: Path) -> int:
    """Bytes of a process's own memory and its share of what it has in common with others; 0 once it is gone."""
    try:
        lines = (pid / "smaps_rollup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))


def memory_of(boxes: Sequence[Sandbox]) -> dict[str, float]:
    """MB for each sandbox, by what holds it; needs root to see."""
    handles = {box.ref.handle for box in boxes}
    total: dict[str, int] = defaultdict(int)
    for pid in Path("/proc").iterdir():
        if not pid.name.isdigit():
            continue
        try:
            group, words = (pid / "cgroup").read_text(), (pid / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError):
            continue
        if any(handle in group for handle in handles):
            total["supervisor" if b"init" in words else "shims that stand ready"] += pss(pid)
        elif b"containerd-shim" in words[0] and handles & {word.decode() for word in words}:
            total["the engine's shim"] += pss(pid)
    return {what: amount / len(boxes) / 1e6 for what, amount in total.items()}


async def scale_rows() -> list[Row]:
    """By quarters of the hundred, so that growth shows."""
    opened: dict[str, list[float]] = {}
    execs: dict[str, list[float]] = {}
    grown: list[float] = []
    boxes: list[Sandbox] = []
    async with DockerProvider() as provider:
        try:
            await ready(provider, boxes)
            for quarter in range(1, QUARTERS + 1):
                size = OPEN * quarter // QUARTERS
                before, already = resident(), len(boxes)
                opened[f"up to {size} open"] = [await ready(provider, boxes) for _ in range(size - already)]
                grown.append((resident() - before) / (size - already) / 1e6)
                execs[f"{ACTIVE} of {size} at once"] = await active(boxes[-ACTIVE:])
            memory = memory_of(boxes)
        finally:
            async with anyio.create_task_group() as group:
                for box in boxes:
                    group.start_soon(box.aclose)
    parts = ", ".join(f"{what} {amount:.2f}" for what, amount in memory.items())
    note = f"MB for each idle sandbox: {parts}, this process {statistics.median(grown):.2f} (by quarter: "
    note += ", ".join(f"{amount:.2f}" for amount in grown) + ")"
    return [
        Row(name=f"create to first exec, one after another, of {OPEN}", bar="linear growth", seconds=opened, note=note),
        Row(name=f"exec of `true`, {ACTIVE} sandboxes active", bar="linear growth", seconds=execs),
    ]
