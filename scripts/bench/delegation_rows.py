"""One fixed delegation by kinfold and by its peers: the same answers of the same server, in turn, in one run.

The peers' environments are made by `peers/make_venvs.sh DIRECTORY`, named here by KINFOLD_BENCH_PEERS.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from measure import Row
from model_server import ANSWER, PAGES, PROMPT, Counts, ModelServer

CHILD = Path(__file__).parent / "peers" / "delegation.py"
SYSTEMS = ("kinfold", "deepagents", "openai-agents", "kinfold-in-container")
ROUNDS = 10
WARMUP = 2
PATIENCE = 60.0
"""Seconds for one run, and for the first one's imports."""


class System:
    """A child process that runs the delegation, and what came of each run."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.failure = ""
        self.runs: list[tuple[dict[str, Any], Counts]] = []
        self._process: subprocess.Popen[str] | None = None
        venvs = os.environ.get("KINFOLD_BENCH_PEERS", "")
        ours = name.startswith("kinfold")
        python = Path(sys.executable) if ours else Path(venvs) / name / "bin" / "python"
        if not ours and not venvs:
            self.failure = "KINFOLD_BENCH_PEERS names no environments: peers/make_venvs.sh makes them"
        elif not python.exists():
            self.failure = "its environment was not made"
        else:
            self._process = subprocess.Popen(
                [str(python), str(CHILD), name, url],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
                env={k: v for k, v in os.environ.items() if ours or not k.startswith("PYTHON")},
            )  # fmt: skip
            self._say(PROMPT)

    def run(self, server: ModelServer, *, counted: bool) -> None:
        """Run once, unless it failed before; what it sent is kept with how long it took."""
        if self.failure or self._process is None or self._process.stdout is None:
            return
        server.counts = Counts()
        self._say("run")
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            self.failure = f"no answer within {PATIENCE:g} s"
            self._process.kill()
            return
        said = json.loads(self._process.stdout.readline() or '{"error": "its process ended"}')
        self.failure = str(said.get("error", "")) or _unfair(said["text"], server.counts)
        if counted and not self.failure:
            self.runs.append((said, server.counts))

    def end(self) -> None:
        """Of the process."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait(60)

    def _say(self, line: str) -> None:
        if self._process is not None and self._process.stdin is not None:
            try:
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()
            except BrokenPipeError:
                self.failure = self.failure or "its process ended"


def _unfair(text: str, counts: Counts) -> str:
    """Why this run is not the one that all were to make; empty where it is."""
    if text.strip() != ANSWER:
        return f"another answer: {text[:200]!r}"
    if counts.odd:
        return f"requests that nobody can place: {counts.odd[0]}"
    if (len(counts.main), len(counts.subagent)) != (2, PAGES + 1):
        return f"{len(counts.main)} requests of the main agent and {len(counts.subagent)} of the subagent"
    return ""


FIGURES: tuple[tuple[str, str, Callable[[dict[str, Any], Counts], float]], ...] = (
    ("wall time of the whole task", "s", lambda said, counts: float(said["seconds"])),
    ("requests", "requests", lambda said, counts: len(counts.main) + len(counts.subagent)),
    ("main agent's context before it delegates", "tokens", lambda said, counts: counts.main[0]),
    ("main agent's context at its end", "tokens", lambda said, counts: counts.main[-1]),
    ("what the delegation added to the main context", "tokens", lambda said, counts: counts.main[-1] - counts.main[0]),
    ("subagent's context at its end", "tokens", lambda said, counts: counts.subagent[-1]),
    ("tokens sent in all", "tokens", lambda said, counts: sum(counts.main) + sum(counts.subagent)),
    ("the process's memory after the run", "MB", lambda said, counts: said["memory"] / 2**20),
)


def _note(systems: Sequence[System]) -> str:
    failed = "; ".join(f"**{one.name}** {one.failure}" for one in systems if one.failure)
    return (
        f"two agents, {PAGES} tool calls, the same answers for all, {ROUNDS} runs in turn after {WARMUP} not counted; "
        "each system with the tools and instructions that it ships: kinfold's main agent has files, a shell, search "
        "and the subagent's tool, that of deepagents has files and todos, that of openai-agents nothing but the "
        "delegation. `kinfold` runs without a container, as the others do; `kinfold-in-container` makes one for each "
        "task, and removes it. kinfold streams, the others do not. Tokens are a quarter of the characters of system "
        "texts, tools and "
        f"messages. What could not be compared, and why: {failed or 'nothing'}"
    )


async def delegation_rows() -> list[Row]:
    """All rows of this file; who cannot do it is named with the reason in the note."""
    server = ModelServer()
    systems = [System(name, server.url) for name in SYSTEMS]
    try:
        for index in range(WARMUP + ROUNDS):
            for system in systems:
                system.run(server, counted=index >= WARMUP)
    finally:
        for system in systems:
            system.end()
        server.close()
    able = [system for system in systems if not system.failure]
    rows: list[Row] = []
    for name, unit, figure in FIGURES:
        values = {system.name: [figure(said, counts) for said, counts in system.runs] for system in able}
        rows.append(Row(name=name, bar="", seconds=values, unit=unit, note="" if rows else _note(systems)))
    return rows
