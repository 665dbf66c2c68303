"""Fairness inside one sandbox: what a sibling's `true` and a file request cost beside floods, walks, burners, bombs."""

from __future__ import annotations

import asyncio
import functools
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from measure import Row, Work

from kinfold.sandbox import DockerProvider, ExecRequest, SandboxSpec
from kinfold.sandbox.base import MIB, Limits
from kinfold.sandbox.sandbox import Sandbox

IMAGE = "kinfold/base"
RACERS = Path(__file__).parents[2] / "tests" / "hostile" / "racers"
CALLS = 300
FILES = 1_000_000
CLAIMED = 90_000


@functools.cache
def racer(name: str) -> bytes:
    """The static program made of one of the tests' racers."""
    with tempfile.TemporaryDirectory() as directory:
        program = Path(directory) / name
        subprocess.run(["cc", "-static", "-O1", "-pthread", "-o", str(program), RACERS / f"{name}.c"], check=True)
        return program.read_bytes()


async def timed(work: Work, calls: int = CALLS, *, until: Callable[[], bool] = lambda: False) -> list[float]:
    """Seconds of each call, one after another; ends early once `until` says so."""
    seconds = []
    for _ in range(calls):
        before = time.perf_counter()
        await work()
        seconds.append(time.perf_counter() - before)
        if until():
            break
    return seconds


def fairness(name: str, bar: str, loaded: list[float], quiet: list[float], note: str = "") -> Row:
    """A row of loaded against quiet; the note says the ratio that the bar is about."""
    row = Row(name=name, bar=bar, seconds={"beside the load": loaded, "quiet": quiet})
    ratio = row.percentile("beside the load", 0.99) / row.median("quiet")
    words = f"p99 ÷ quiet median = {ratio:.2f}; longest {max(loaded) * 1000:.1f} ms{'; ' if note else ''}{note}"
    return Row(name=row.name, bar=row.bar, seconds=row.seconds, note=words)


@asynccontextmanager
async def load(work: Awaitable[object]) -> AsyncIterator[asyncio.Future[object]]:
    """Something that runs meanwhile; cancelled at the end where it still does."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.sleep(0.3)
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])


@asynccontextmanager
async def programs(box: Sandbox, *commands: list[str]) -> AsyncIterator[None]:
    """Programs that run meanwhile, killed at the end."""
    for command in commands:
        await box.start(ExecRequest(command=command, owner="load"))
    await asyncio.sleep(0.5)
    try:
        yield
    finally:
        await box.end("load", grace=0)


async def forever(work: Callable[[], Awaitable[object]]) -> None:
    """One call after another."""
    while True:
        await work()


async def flood_rows(box: Sandbox, true: Work) -> list[Row]:
    """One flood; eight that leave time on the cpus, as many programs do; and eight that take all there is."""
    rows, bar = [], "p99 < 3 × the quiet median"
    steady = ["sh", "-c", "while :; do head -c 1000000 /dev/zero; sleep 0.1; done"]
    for what, flood, count, wanted in (
        ("`yes`", ["yes"], 1, bar),
        ("a flood of some 8 MB/s", steady, 8, bar),
        ("`yes`, the cpus exhausted", ["yes"], 8, ""),
    ):
        quiet = await timed(true)
        async with programs(box, *[flood] * count):
            loaded = await timed(true)
        rows.append(fairness(f"exec beside {count} × {what}", wanted, loaded, quiet))
    return rows


async def tree_rows(box: Sandbox, true: Work) -> list[Row]:
    """Long file requests: a listing of a million files, a claim of a directory, a digest of 1 GiB, a removal."""
    made = await box.exec(
        f"mkdir -p many some && (cd many && seq {FILES} | xargs touch) && (cd some && seq {CLAIMED} | xargs touch)"
        " && head -c 1073741824 /dev/zero > big",
        timeout=600,
    )
    if made.exit_code != 0:
        raise RuntimeError(made.stderr_text)
    stat: Work = lambda: box.stat(["some/1"])  # noqa: E731
    works: dict[str, Callable[[], Awaitable[object]]] = {
        f"a snapshot of {FILES:,} files": box.snapshot,
        f"a claim of a directory of {CLAIMED:,} files": lambda: box.stat(["some"], claim=True),
        "a digest of 1 GiB": lambda: box.stat(["big"], digest=True),
    }
    rows = []
    bar = "p99 < 3 × the quiet median"
    for name, work in works.items():
        for what, sibling in (("exec", true), ("stat", stat)):
            quiet = await timed(sibling)
            async with load(forever(work)):
                loaded = await timed(sibling, 2 * CALLS)
            rows.append(fairness(f"{what} beside {name}", bar, loaded, quiet))
    quiet = await timed(true)
    async with load(box.remove("many", recursive=True)) as removal:
        loaded = await timed(true, 2000, until=removal.done)
    rows.append(fairness(f"exec beside the removal of {FILES:,} files", bar, loaded, quiet))
    return rows


async def burner_row(box: Sandbox, true: Work) -> Row:
    """Eight spinning programs on the sandbox's two cpus."""
    quiet = await timed(true)
    async with programs(box, *[["sh", "-c", "while :; do :; done"]] * 8):
        loaded = await timed(true)
    return fairness("exec beside 8 cpu burners", "median < 3 × the quiet one, p99 < 150 ms", loaded, quiet)


async def bomb_rows(box: Sandbox) -> list[Row]:
    """File requests beside a fork bomb at the pids limit; how soon a waiting exec starts; how soon the bomb is dead."""
    await box.write("small", b"x" * 1024)
    rows = []
    for what, work in (("stat", lambda: box.stat(["small"])), ("read 1 KiB", lambda: box.read("small"))):
        quiet = await timed(work)
        async with programs(box, ["./tree", "bomb"]):
            loaded = await timed(work)
        rows.append(fairness(f"{what} beside a fork bomb", "p99 < 3 × the quiet median", loaded, quiet))
    waits, victims = [], Counter[str]()
    for _ in range(10):
        bomb = await box.start(ExecRequest(command=["./tree", "bomb"], owner="load"))
        await asyncio.sleep(0.5)
        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:  # more than the shims that are ready: one of them finds no pid
            for _ in range(6):
                group.create_task(box.exec(["true"]))
        waits.append(time.perf_counter() - began)
        await box.end("load", grace=0)
        victims[(await bomb.wait()).ended_by] += 1
    note = ", ".join(f"the bomb ended {number} × {ending}" for ending, number in victims.items())
    rows.append(
        Row(name="6 execs at once at the pids limit", bar="all done within 2 s", seconds={"kinfold": waits}, note=note)
    )
    return rows


async def kill_rows(box: Sandbox) -> list[Row]:
    """From the kill to the proof."""
    rows = []
    for what, mode, bar in (("a spinning fork bomb", "bomb", "< 100 ms"), ("50 daemons", "daemons", "< 15 ms")):
        seconds, killed, sooner = list[float](), 0, Counter[str]()
        while len(seconds) < 20 and sooner.total() < 60:
            process = await box.start(ExecRequest(command=["./tree", mode], owner="load"))
            await asyncio.sleep(0.7)
            before = time.perf_counter()
            ends = await box.end("load", grace=0)
            if not ends:  # the supervisor had ended it, for it left no process to anybody else
                sooner[(await process.wait()).ended_by] += 1
                continue
            seconds.append(time.perf_counter() - before)
            if ends[0].survivors:
                raise RuntimeError(f"{ends[0].survivors} processes of {what} outlived the kill")
            killed = max(killed, ends[0].killed)
        rows.append(
            Row(
                name=f"kill to proof of {what}",
                bar=bar,
                seconds={"kinfold": seconds},
                note=f"up to {killed} processes were killed; each died, with proof"
                + "".join(f"; {number} more were {ending} before" for ending, number in sooner.items()),
            )
        )
    return rows


async def memory_row(box: Sandbox) -> Row:
    """A program that takes all memory, twenty times, beside one that must live."""
    neighbour = await box.start(ExecRequest(command=["sleep", "600"], owner="neighbour"))
    seconds, endings = [], Counter[str]()
    for _ in range(20):
        before = time.perf_counter()
        ended = await box.exec(["./hog"], timeout=60)
        seconds.append(time.perf_counter() - before)
        endings[ended.ended_by] += 1
    alive = any(e.id == neighbour.id and e.state == "running" for e in await box.execs())
    await box.end("neighbour", grace=0)
    note = f"{dict(endings)}; the neighbour {'lived' if alive else 'DIED'}"
    return Row(name="a one-process memory bomb", bar="oom_killed, 20 of 20", seconds={"kinfold": seconds}, note=note)


async def fairness_rows() -> list[Row]:
    """All rows of this file."""
    limits = Limits(
        pids=512, memory_bytes=1024 * MIB, file_bytes=2048 * MIB, disk_bytes=10240 * MIB, disk_inodes=1_500_000
    )
    async with (
        DockerProvider() as provider,
        await provider.create(SandboxSpec(image=IMAGE, keep=0, limits=limits)) as box,
    ):
        for name in ("tree", "hog"):
            await box.write(name, racer(name), mode=0o755)
        true: Work = lambda: box.exec(["true"])  # noqa: E731
        await timed(true, 50)
        rows = await flood_rows(box, true)
        rows.append(await burner_row(box, true))
        rows += await bomb_rows(box)
        rows += await kill_rows(box)
        rows.append(await memory_row(box))
        rows += await tree_rows(box, true)
    return rows
