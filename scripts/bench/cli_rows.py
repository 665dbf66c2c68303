"""`kinfold --help` as a whole process, beside an interpreter that does nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from measure import Row, Work, blocking, paired


def whole_process(*command: str) -> Work:
    """A command from start to exit as a contestant."""

    def call() -> object:
        return subprocess.run(command, check=True, capture_output=True)

    return blocking(call)


async def cli_rows() -> list[Row]:
    """The one row."""
    kinfold = str(Path(sys.executable).with_name("kinfold"))
    contestants = {
        "kinfold --help": whole_process(kinfold, "--help"),
        "python -c pass": whole_process(sys.executable, "-c", "pass"),
    }
    return [Row(name="kinfold --help", bar="< 250 ms", seconds=await paired(contestants, rounds=20, warmup=2))]
