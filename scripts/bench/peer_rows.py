"""kinfold beside its peers: the same work on the same image, each in its own process, in turn, in one run.

`peers/make_venvs.sh DIRECTORY` makes the image and the environments, which KINFOLD_BENCH_PEERS names. Each
peer is started as its own documentation does it; kinfold with everything that it is by default.
"""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
from measure import Row

IMAGE = "kinfold-bench/peers"
"""kinfold/base with swe-rex's server in it, which that peer would else install at each start."""
CHILD = Path(__file__).parent / "peers" / "child.py"
PEERS = ("kinfold", "docker", "openai-agents", "llm-sandbox", "swe-rex", "inspect-ai")
WORK = (
    ("cold start to first exec", "open", 4),
    ('exec `["true"]`', "exec", 40),
    ("write and read a file of 4 KiB", "files", 15),
    ("8 execs of `sleep 0.2` at once", "eight", 5),
)
FLOOD = ("output of 64 MiB", "flood", 3)
"""Last of all: a peer that does not come to its end is ended itself."""
PATIENCE = 90.0
"""Seconds for one request; a peer that takes longer is ended, and its container removed."""


class Peer:
    """A child process that does what its peer can."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.failures: list[str] = []
        venvs = os.environ.get("KINFOLD_BENCH_PEERS", "")
        python = sys.executable if name == "kinfold" else str(Path(venvs) / name / "bin" / "python")
        self._process: subprocess.Popen[str] | None = None
        if not venvs and name != "kinfold":
            self.failures.append("KINFOLD_BENCH_PEERS names no environments: peers/make_venvs.sh makes them")
        elif not Path(python).exists():
            self.failures.append("its environment was not made")
        else:
            environment = {k: v for k, v in os.environ.items() if name == "kinfold" or not k.startswith("PYTHON")}
            self._process = subprocess.Popen(
                [python, str(CHILD), name, IMAGE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env=environment,
            )

    def ask(self, work: str, **more: Any) -> float | None:
        """Seconds; None where it cannot, which is then among its failures."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return None
        process.stdin.write(json.dumps({"do": work, **more}) + "\n")
        process.stdin.flush()
        if not select.select([process.stdout], [], [], PATIENCE)[0]:
            process.kill()
            process.wait()
            self._process = None
            self.failures.append(f"{work}: no answer within {PATIENCE:g} s")
            return None
        said = json.loads(process.stdout.readline() or '{"error": "its process ended"}')
        if "error" in said:
            self.failures.append(f"{work}: {said['error']}")
            return None
        return float(said["seconds"])

    def end(self) -> None:
        """Of the process."""
        if self._process is not None:
            if self._process.stdin is not None:
                self._process.stdin.close()
            self._process.wait(30)


def survivors(marker: int) -> int:
    """Processes with this argument, seen from the host."""
    count = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            count += words[:1] == [b"sleep"] and str(marker).encode() in words
    return count


def _measured(peers: Sequence[Peer], title: str, work: str, rounds: int) -> Row:
    seconds: dict[str, list[float]] = {}
    able = list(peers)
    for index in range(rounds):
        for peer in list(able):
            if work == "open" and index:
                peer.ask("close")
            took = peer.ask(work)
            if took is None:
                able.remove(peer)
                seconds.pop(peer.name, None)
            else:
                seconds.setdefault(peer.name, []).append(took)
    byte_count = 64 * 1024 * 1024 if work == "flood" else 0
    return Row(name=title, bar="", seconds=seconds, byte_count=byte_count)


async def _timeouts(peers: Sequence[Peer]) -> Row:
    seconds: dict[str, list[float]] = {}
    words = []
    for peer in peers:
        marker = random.randrange(10**8, 10**9)
        took = peer.ask("timeout", marker=marker)
        if took is not None:
            await anyio.sleep(1.0)
            seconds[peer.name] = [took]
            words.append(f"{peer.name} {survivors(marker)}")
    note = f"processes of the exec that live a second after its timeout, seen from the host: {', '.join(words)}"
    return Row(name="timeout of 2 s: `setsid sleep & sleep 60`", bar="0 survivors", seconds=seconds, note=note)


def _remove_what_is_left() -> None:
    """Of peers that were ended: the containers made of this bench's own image."""
    listed = ["docker", "ps", "--all", "--quiet", "--filter", f"ancestor={IMAGE}"]
    left = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    if left:
        subprocess.run(["docker", "rm", "--force", *left], check=True, stdout=subprocess.DEVNULL)


async def peer_rows() -> list[Row]:
    """All rows of this file; who cannot do something is named with the reason in the last one's note."""
    peers = [Peer(name) for name in PEERS]
    try:
        rows = [_measured(peers, *WORK[0])]
        able = [peer for peer in peers if peer.name in rows[0].seconds]
        rows += [_measured(able, *work) for work in WORK[1:]]
        rows.append(await _timeouts(able))
        rows.append(_measured(able, *FLOOD))
    finally:
        for peer in peers:
            if peer.failures and peer.failures[0].startswith("open"):
                peer.end()
                continue
            peer.ask("close")
            peer.end()
        _remove_what_is_left()
    failed = "; ".join(f"**{peer.name}** {failure}" for peer in peers for failure in peer.failures)
    last = rows[-1]
    note = f"what could not be done, and why: {failed or 'nothing'}"
    rows[-1] = Row(name=last.name, bar=last.bar, seconds=last.seconds, byte_count=last.byte_count, note=note)
    return rows
