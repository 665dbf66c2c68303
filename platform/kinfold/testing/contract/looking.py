"""Looking at a sandbox from outside the exec that is judged: who is alive, and what comes about in a while."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from kinfold.errors import PathError
from kinfold.sandbox.sandbox import Sandbox

_ALIVE = """
import os, sys
mark = b"KF_TOKEN=" + sys.argv[1].encode() + b"\\0"
found = []
for pid in os.listdir("/proc"):
    if pid.isdigit():
        try:
            with open(f"/proc/{pid}/environ", "rb") as environ:
                if mark in environ.read() + b"\\0":
                    found.append(int(pid))
        except OSError:
            pass
print(*found)
"""

DAEMONS = """
import os, signal, sys
count = int(sys.argv[1])
for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
for _ in range(count):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(1, b"ready\\n")
            while True:
                signal.pause()
        os._exit(0)
while True:
    signal.pause()
"""
"""A program with daemons that left its session, lost their parent and ignore every polite signal."""


async def alive(sandbox: Sandbox, token: str) -> list[int]:
    """The pids, by a fresh look at /proc, of processes that were started with `KF_TOKEN=token`."""
    result = await sandbox.exec(["python3", "-c", _ALIVE, token], timeout=60)
    assert result.exit_code == 0, result.stderr_text
    return [int(pid) for pid in result.stdout_text.split()]


async def eventually(what: Callable[[], Awaitable[bool]], timeout: float = 20.0) -> bool:
    """Whether `what` became true within `timeout` seconds."""
    with anyio.move_on_after(timeout):
        while not await what():
            await anyio.sleep(0.02)
        return True
    return False


async def exists(sandbox: Sandbox, path: str) -> bool:
    """Whether there is something at `path`."""
    return not isinstance((await sandbox.stat([path]))[0], PathError)
