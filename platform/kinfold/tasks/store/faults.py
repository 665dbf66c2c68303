"""What SQLite says went wrong, as one of our errors: the file, the reason, and what to do about it."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from kinfold.errors import StoreError, StoreErrorCode

_KINDS: dict[int, StoreErrorCode] = {
    sqlite3.SQLITE_BUSY: "store_locked",
    sqlite3.SQLITE_LOCKED: "store_locked",
    sqlite3.SQLITE_CORRUPT: "store_corrupt",
    sqlite3.SQLITE_NOTADB: "store_corrupt",
    sqlite3.SQLITE_FULL: "store_full",
    sqlite3.SQLITE_IOERR: "store_failed",
    sqlite3.SQLITE_READONLY: "store_unwritable",
    sqlite3.SQLITE_CANTOPEN: "store_unwritable",
    sqlite3.SQLITE_PERM: "store_unwritable",
    sqlite3.SQLITE_AUTH: "store_unwritable",
}
NEARLY_FULL = 128 * 1024
"""Bytes below which a file system has no room for SQLite's own files beside the store (its index takes 32 KiB)."""


def store_error(path: Path, error: BaseException | None, *, waited: float) -> StoreError:
    """The error for what the driver raised; `waited` is how long it tried to get the lock, in seconds."""
    kind = _kind(path, error)
    words = str(error) or type(error).__name__
    match kind:
        case "store_locked":
            return StoreError(
                f"the store {path} is locked: another process has been writing for more than {waited:g} s",
                hint=f"try again; `fuser {path}` names the process, ending it frees the store",
                code=kind,
            )
        case "store_corrupt":
            return corrupt(path, words)
        case "store_full":
            return StoreError(
                f"no space is left for the store {path}: {words}",
                hint=f"free some space in {path.parent}; what is stored is intact and can be read",
                code=kind,
            )
        case "store_unwritable":
            return StoreError(
                f"the store {path} cannot be opened or written: {words}",
                hint="give its files and directory back to your user, or set KINFOLD_STATE to a directory of yours",
                code=kind,
            )
        case _:
            return StoreError(f"the store {path} failed: {words}", hint="`kinfold doctor` checks it", code=kind)


def corrupt(path: Path, words: str) -> StoreError:
    """The error for a file that is damaged, or is no database at all."""
    return StoreError(
        f"the store {path} is damaged: {words}",
        hint=f"move it and its -wal aside (`mv {path} {path}.damaged`); a new one is made, and `kinfold reap "
        "--by-labels` removes the sandboxes that only the lost records knew",
        code="store_corrupt",
    )


def newer(path: Path, found: str, known: str) -> StoreError:
    """The error for a store that a later kinfold has written."""
    return StoreError(
        f"the store {path} is of a newer kinfold: it has version {found!r}, this one knows {known!r}",
        hint="use that kinfold, or set KINFOLD_STATE to another directory",
        code="store_newer",
    )


def _kind(path: Path, error: BaseException | None) -> StoreErrorCode:
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, UnicodeDecodeError) or "decode to UTF-8" in str(error):
        return "store_corrupt"
    kind = _KINDS.get(code & 0xFF, "store_failed") if isinstance(code, int) else "store_failed"
    # Beside the full disk that SQLite names as one there is the one on which it cannot make its index.
    if kind in ("store_failed", "store_unwritable") and _is_full(path):
        return "store_full"
    return kind


def _is_full(path: Path) -> bool:
    try:
        found = os.statvfs(path.parent)
    except OSError:
        return False
    return found.f_bavail * found.f_frsize < NEARLY_FULL or (found.f_files > 0 and found.f_favail == 0)
