"""Where the supervisor's binary is, and its digest."""

from __future__ import annotations

import hashlib
import os
from functools import lru_cache
from pathlib import Path

from kinfold.errors import ConfigError

SUPERVISOR_VARIABLE = "KINFOLD_SUPERVISOR"
_PACKAGED = Path(__file__).resolve().parent.parent / "_bin" / "kinfold-supervisor"
_BUILT = Path(__file__).resolve().parents[3] / "sandbox_images" / "supervisor" / "build" / "kinfold-supervisor"
"""Of a source checkout; beside an installed package there is no such directory."""


def supervisor_path() -> Path:
    """`$KINFOLD_SUPERVISOR`, else the packaged binary, else a checkout's build. Raises `ConfigError`."""
    named = os.environ.get(SUPERVISOR_VARIABLE)
    if named:
        path = Path(named).absolute()
        if not _usable(path):
            raise ConfigError(
                f"{SUPERVISOR_VARIABLE} names {path}, which is no executable file",
                hint=f"unset {SUPERVISOR_VARIABLE} to use the packaged supervisor",
            )
        return path
    for path in (_PACKAGED, _BUILT):
        if _usable(path):
            return path
    raise ConfigError(
        "the supervisor binary is missing",
        hint="in a checkout: `make -C sandbox_images/supervisor`; else reinstall kinfold",
    )


def supervisor_digest() -> str:
    """The SHA-256 in hex of the binary at `supervisor_path()`."""
    path = supervisor_path()
    found = path.stat()
    return _digest(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=4)
def _digest(path: Path, mtime_ns: int, size: int) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _usable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
