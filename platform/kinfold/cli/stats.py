"""`kinfold sandbox stats`: what sandboxes use, as a table that goes on, as one look, or as JSON lines."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import anyio

from kinfold.cli.columns import show_rows, size, span, table
from kinfold.cli.foreground import run_async
from kinfold.cli.run import load_settings, make_provider
from kinfold.cli.sandboxes import find_sandbox
from kinfold.errors import SandboxError, SandboxLost
from kinfold.sandbox.base import SandboxRef, SandboxUsage
from kinfold.sandbox.record import SandboxRecord
from kinfold.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from kinfold.sandbox.docker.provider import DockerProvider

HEADINGS = (
    "sandbox", "name", "state", ">cpu", ">memory", ">of", ">processes", ">of", ">disk", ">of", ">execs", ">age",
    ">lease ends in",
)  # fmt: skip
EVERY = 2.0
"""Seconds between two looks of the live table."""
_SHORT = 0.5
"""Seconds between the two looks that a share of the processor takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One sandbox at one moment."""

    ref: SandboxRef
    record: SandboxRecord | None
    usage: SandboxUsage | None
    """None: it does not answer, or does not run."""
    cpu_percent: float | None
    """Of one processor, since the look before."""
    at: float
    """Seconds since the epoch."""

    @property
    def state(self) -> str:
        """As the engine has it, and whether its execs are paused."""
        if self.ref.state == "running" and self.usage is None:
            return "no answer"
        return "paused" if self.usage is not None and self.usage.paused else self.ref.state

    def cells(self) -> tuple[str, ...]:
        """For a person."""
        use = self.usage
        disk = use.disk if use is not None else None
        cpu = "-" if self.cpu_percent is None else f"{self.cpu_percent:.0f} %"
        memory = (size(use.memory_bytes), size(use.memory_limit_bytes)) if use is not None else ("-", "-")
        pids = (_number(use.pids), _number(use.pids_limit)) if use is not None else ("-", "-")
        held = (size(disk.bytes), size(disk.bytes_limit)) if disk is not None else ("-", "-")
        execs = str(use.execs_running) if use is not None else "-"
        times = (span(self._age()), span(self._lease()))
        return (self.ref.id, self.ref.name or "-", self.state, cpu, *memory, *pids, *held, execs, *times)

    def line(self) -> str:
        """For a program: one JSON object; None is what is not known, or what has no end."""
        use = self.usage
        found: dict[str, object] = {"id": self.ref.id, "name": self.ref.name or None, "state": self.state}
        found |= {"ageSeconds": self._age(), "leaseEndsInSeconds": self._lease(), "cpuPercent": self.cpu_percent}
        if use is not None:
            found |= {
                "cpuSeconds": use.cpu_seconds,
                "memoryBytes": use.memory_bytes,
                "memoryPeakBytes": use.memory_peak_bytes,
                "memoryLimitBytes": use.memory_limit_bytes,
                "pids": use.pids,
                "pidsPeak": use.pids_peak,
                "pidsLimit": use.pids_limit,
                "oomKills": use.oom_kills,
                "execsRunning": use.execs_running,
                "pausedSeconds": use.paused_seconds,
                "diskBytes": use.disk.bytes if use.disk else None,
                "diskLimitBytes": use.disk.bytes_limit if use.disk else None,
                "inodes": use.disk.inodes if use.disk else None,
                "inodesLimit": use.disk.inodes_limit if use.disk else None,
            }
        return json.dumps(found)

    def _age(self) -> float | None:
        return round(self.at - self.record.created_at, 3) if self.record is not None else None

    def _lease(self) -> float | None:
        ends = self.record.expires_at if self.record is not None else None
        return round(ends - self.at, 3) if ends is not None else None


class Watch:
    """The sandboxes that are looked at, each over one connection that stays open."""

    def __init__(self, provider: DockerProvider, wanted: str | None) -> None:
        self._provider = provider
        self._wanted = wanted
        self._open: dict[str, Sandbox] = {}
        self._before: dict[str, tuple[float, float]] = {}

    async def look(self) -> list[Row]:
        """All of them now. Raises `NotFound` where a named one is not there."""
        if self._wanted is not None:
            refs = [await find_sandbox(self._provider, self._wanted)]
        else:
            refs = await self._provider.list()
        records = {record.id: record for record in (await self._provider.records.list()).records}
        rows: dict[str, Row] = {}
        async with anyio.create_task_group() as group:
            for ref in refs:
                group.start_soon(self._row, ref, records, rows)
        for gone in self._open.keys() - rows.keys():
            await self._open.pop(gone).aclose()
        return [rows[ref.id] for ref in refs]

    async def _row(self, ref: SandboxRef, records: Mapping[str, SandboxRecord], rows: dict[str, Row]) -> None:
        use = await self._usage(ref) if ref.state == "running" else None
        now, share = time.monotonic(), None
        if use is not None and use.cpu_seconds is not None:
            before = self._before.get(ref.id)
            self._before[ref.id] = (now, use.cpu_seconds)
            if before is not None:
                share = round((use.cpu_seconds - before[1]) / max(now - before[0], 1e-3) * 100, 1)
        rows[ref.id] = Row(ref=ref, record=records.get(ref.id), usage=use, cpu_percent=share, at=time.time())

    async def _usage(self, ref: SandboxRef) -> SandboxUsage | None:
        """None where it ended just now, or does not answer: one of many must not end the table."""
        try:
            with anyio.move_on_after(EVERY * 2):
                if ref.id not in self._open:
                    self._open[ref.id] = await self._provider.connect(ref)
                return await self._open[ref.id].usage()
        except SandboxLost:
            lost = self._open.pop(ref.id, None)
            if lost is not None:
                await lost.aclose()
        except SandboxError:
            return None
        return None

    async def aclose(self) -> None:
        """The sandboxes live on."""
        for sandbox in self._open.values():
            await sandbox.aclose()


def stats_command(wanted: str | None, *, once: bool, as_json: bool) -> int:
    """Watch, or look once where that was asked for or nobody sits before a terminal."""

    async def watch() -> list[Row]:
        async with make_provider(load_settings({})) as provider:
            watching = Watch(provider, wanted)
            try:
                await watching.look()
                await anyio.sleep(_SHORT)
                rows = await watching.look()
                if not once and not as_json and sys.stdout.isatty():
                    await _live(watching, rows)
                return rows
            finally:
                with anyio.CancelScope(shield=True):
                    await watching.aclose()

    rows = run_async(watch)
    if as_json:
        for row in rows:
            print(row.line())
    else:
        show_rows(HEADINGS, [row.cells() for row in rows])
    return 0


async def _live(watching: Watch, rows: list[Row]) -> None:
    """Until Ctrl-C, or until the one that was named is gone."""
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(highlight=False), auto_refresh=False, screen=False) as live:
        while True:
            live.update(table(HEADINGS, [row.cells() for row in rows]), refresh=True)
            await anyio.sleep(EVERY)
            rows = await watching.look()


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
