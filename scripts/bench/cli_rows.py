"""`kinfold --help` as a whole process, beside an interpreter that does nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from measure import Row, paired


async def cli_rows() -> list[Row]:
    """The one row."""
    kinfold = str(Path(sys.executable).with_name("kinfold"))

    async def ours() -> None:
        subprocess.run([kinfold, "--help"], check=True, capture_output=True)

    async def bare() -> None:
        subprocess.run([sys.executable, "-c", "pass"], check=True, capture_output=True)

    seconds = await paired({"kinfold --help": ours, "python -c pass": bare}, rounds=20, warmup=2)
    return [Row(name="kinfold --help", bar="< 250 ms", seconds=seconds)]
