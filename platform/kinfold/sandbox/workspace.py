"""What a path inside the workspace is: decided on the words alone, before anything reaches the container.

The container's kernel decides again, with links resolved; this is the same rule for what never gets that far.
"""

from __future__ import annotations

import posixpath
from collections.abc import Sequence

from kinfold.errors import PathError
from kinfold.sandbox.base import WORKSPACE

MAX_PATH_BYTES = 65_536
"""Longest path that the supervisor accepts."""
MAX_NAME_BYTES = 255
"""Longest component that a file system holds."""


def is_under_root(path: str, root: str = WORKSPACE) -> bool:
    """Whether `path` names `root` or something beneath it, component by component.

    A relative path is taken as relative to `root`; `..` is resolved lexically, links are not looked at.
    `/workspace-evil` is not under `/workspace`.
    """
    if not path or "\0" in path:
        return False
    resolved = _resolve(path, root)
    base = _resolve(root, "/")
    return resolved == base or resolved.startswith(base if base == "/" else base + "/")


def normalize(path: str) -> str:
    """The absolute container path that `path` means, without `.`, `..` and doubled slashes.

    Raises `PathError`: `invalid` for what no file can be called, `path_escape` for what leaves the workspace.
    """
    if path.isascii() and len(path) <= MAX_NAME_BYTES:
        if not path or "\0" in path:
            raise _invalid(path)
        if path == ".":
            return WORKSPACE
        if path[0] not in "./" and path[-1] != "/" and "//" not in path and "/." not in path:
            return f"{WORKSPACE}/{path}"  # nothing to resolve: the common case, and there may be thousands
    else:
        _check_bytes(path)
    resolved = _resolve(path, WORKSPACE)
    if resolved == WORKSPACE or resolved.startswith(WORKSPACE + "/"):
        return resolved
    raise PathError(
        "path_escape",
        path,
        f"lies outside {WORKSPACE}",
        hint=f"use a path relative to {WORKSPACE}, or an absolute one beneath it",
    )


def plain_bytes(paths: Sequence[str]) -> list[bytes] | None:
    """The bytes of relative `paths` that all mean what they say; None where one has to be looked at by itself.

    All at once, for there may be thousands: `normalize` would say `/workspace/` and the path of each.
    """
    text = "\0".join(("", *paths, ""))
    if not paths or not text.isascii() or text.count("\0") != len(paths) + 1 or max(map(len, paths)) > MAX_NAME_BYTES:
        return None
    if any(part in text for part in _UNUSUAL):
        return None
    return text[1:-1].encode("ascii").split(b"\0")


_UNUSUAL = ("\0\0", "\0/", "/\0", "\0.", "/.", "//")
"""What a path between NULs holds that is empty, absolute, ends in a slash, or has something to resolve."""


def to_bytes(path: str) -> bytes:
    """The bytes of a path or name; what was not UTF-8 comes back as it was. Raises `PathError` (`invalid`)."""
    try:
        return path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PathError("invalid", path, "holds a code point that no file name can hold") from None


def to_text(path: bytes) -> str:
    """A path as text; bytes that are not UTF-8 become surrogate escapes."""
    return path.decode("utf-8", "surrogateescape")


def _resolve(path: str, root: str) -> str:
    resolved = posixpath.normpath(posixpath.join(root, path))
    return resolved[1:] if resolved.startswith("//") else resolved


def _check_bytes(path: str) -> None:
    raw = to_bytes(path)
    if not raw or b"\0" in raw:
        raise _invalid(path)
    if len(raw) > MAX_PATH_BYTES:
        raise PathError("invalid", path[:64] + "…", f"is {len(raw)} bytes long; at most {MAX_PATH_BYTES} can be used")
    for name in raw.split(b"/"):
        if len(name) > MAX_NAME_BYTES:
            raise PathError(
                "invalid", path[:64] + "…", f"has a name of {len(name)} bytes; at most {MAX_NAME_BYTES} can be used"
            )


def _invalid(path: str) -> PathError:
    return PathError("invalid", path, "is empty" if not path else "holds a NUL byte")
