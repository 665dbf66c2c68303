"""A program starts with every signal at its default, whatever the supervisor's own parent had ignored."""

from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import ctypes, signal, sys
from pathlib import Path
import anyio
from kinfold.sandbox import LocalProvider, SandboxSpec

ignore = (ctypes.c_ulong * 4)(1, 0, 0, 0)
for number in (1, 15, 32, 33, 64):  # 32 and 33 are the C library's own: only the raw call ignores them
    assert ctypes.CDLL(None).syscall(int(sys.argv[2]), number, ignore, None, 8) == 0

async def main():
    async with LocalProvider(state_dir=Path(sys.argv[1])) as provider:
        async with await provider.create(SandboxSpec(keep=0)) as sandbox:
            print((await sandbox.exec(["cat", "/proc/self/status"])).stdout_text)

anyio.run(main)
"""


def test_signals_that_an_engine_was_started_with_ignored_are_not_ignored_in_programs(tmp_path: Path) -> None:
    rt_sigaction = {"x86_64": "13", "aarch64": "134"}[platform.machine()]
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), rt_sigaction]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    ignored = next(line for line in ended.stdout.splitlines() if line.startswith("SigIgn:"))
    assert ignored.split()[1] == "0" * 16
