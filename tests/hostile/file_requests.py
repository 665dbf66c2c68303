"""Every way in which a path of the caller's reaches a file of the sandbox, one function each."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator, Awaitable, Callable

from kinfold.errors import PathError
from kinfold.sandbox.base import ExecRequest, FileStat
from kinfold.sandbox.sandbox import Sandbox

SECRET = b"SECRET\n"
"""What every file outside the workspace holds."""
OUTSIDE = "/home/agent/out"
"""A directory that the agent may change and file requests may not: what they reach there they have escaped to."""

Attempt = Callable[[Sandbox, str], Awaitable[object]]


async def _read_stream(box: Sandbox, path: str) -> bytes:
    return b"".join([piece async for piece in box.read_stream(path)])


async def _archive(box: Sandbox, path: str) -> bytes:
    return b"".join([piece async for piece in box.archive(path)])


def tar_of(*members: tuple[str, bytes]) -> bytes:
    """A tar stream of regular files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


async def pieces(data: bytes, size: int = 1 << 16) -> AsyncIterator[bytes]:
    """A byte string as a stream."""
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def _stat(box: Sandbox, path: str, **how: bool) -> FileStat:
    [found] = await box.stat([path], **how)
    if isinstance(found, PathError):
        raise found
    return found


REQUESTS: dict[str, Attempt] = {
    "read": lambda box, path: box.read(path),
    "read_stream": _read_stream,
    "stat": _stat,
    "digest": lambda box, path: _stat(box, path, digest=True),
    "claim": lambda box, path: _stat(box, path, claim=True),
    "list": lambda box, path: box.list(path, depth=9),
    "archive": _archive,
    "write": lambda box, path: box.write(path, b"written"),
    "extract": lambda box, path: box.extract(pieces(tar_of(("member", b"written"))), path),
    "make_dir": lambda box, path: box.make_dir(path),
    "symlink": lambda box, path: box.symlink("f", path),
    "rename": lambda box, path: box.rename(path, f"{path}.moved", replace=True),
    "remove": lambda box, path: box.remove(path),
    "remove_tree": lambda box, path: box.remove(path, recursive=True),
    "exec in it": lambda box, path: box.run(ExecRequest(command=["cat", "f"], cwd=path)),
}

ON_THE_LINK_ITSELF = frozenset({"stat", "digest", "remove", "remove_tree", "rename", "archive"})
"""Requests that mean a link, where the path ends in one."""


async def lay_outside(box: Sandbox) -> bytes:
    """Put the secrets outside; gives back how it looks there."""
    made = await box.exec(f"mkdir -p {OUTSIDE}/sub; cd {OUTSIDE}; for f in f sub/f; do printf 'SECRET\\n' > $f; done")
    assert made.exit_code == 0, made.stderr_text
    return await look_outside(box)


async def look_outside(box: Sandbox) -> bytes:
    """Names, kinds, modes and contents of all that lies outside."""
    seen = await box.exec(f"find {OUTSIDE} -printf '%P %y %m %i\\n' | sort; find {OUTSIDE} -type f | sort | xargs cat")
    assert seen.exit_code == 0, seen.stderr_text
    return seen.stdout


def tells_a_secret(found: object) -> bool:
    """Whether an answer carries bytes from outside."""
    return SECRET in getattr(found, "stdout", found if isinstance(found, bytes) else b"")
