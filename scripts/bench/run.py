"""Run benchmarks and write `results/`: `run.py [--only] [SET…]`, sets as in `SETS`; none named: all."""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable

import anyio
import report
from cli_rows import cli_rows
from delegation_rows import delegation_rows
from fairness_rows import fairness_rows
from loop_rows import loop_rows
from measure import Row
from peer_rows import peer_rows
from sandbox_rows import sandbox_rows
from scale_rows import scale_rows

SETS: dict[str, tuple[str, Callable[[], Awaitable[list[Row]]]]] = {
    "sandbox": ("The sandbox beside the engine and the host", sandbox_rows),
    "fairness": ("Fairness inside one sandbox", fairness_rows),
    "scale": ("A hundred sandboxes on one machine", scale_rows),
    "peers": ("The sandbox beside its peers", peer_rows),
    "loop": ("The agent loop with a scripted model", loop_rows),
    "delegation": ("One delegation beside its peers", delegation_rows),
    "cli": ("The command line", cli_rows),
}


async def main(names: list[str]) -> None:
    """Run the named sets."""
    for name in names or list(SETS):
        title, rows = SETS[name]
        page = report.write(name, title, await rows())
        print(page.read_text())


if __name__ == "__main__":
    anyio.run(main, [name for name in sys.argv[1:] if name != "--only"])
