"""A racer at work on this machine itself, in the place of container code that shares a workspace with the host."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.hostile.hostile_support import racer


@contextmanager
def at_work(directory: Path, *command: str) -> Iterator[None]:
    """The racer `command[0]` runs in `directory` until the end of the block, as whoever we are."""
    program = directory.parent / f"racer-{command[0]}"
    if not program.exists():
        program.write_bytes(racer(command[0]))
        program.chmod(0o755)
    process = subprocess.Popen([program, *command[1:]], cwd=directory)
    try:
        yield
        assert process.poll() is None, "the racer gave up: nothing was raced"
    finally:
        process.kill()
        process.wait()
