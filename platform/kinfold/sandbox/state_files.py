"""Directories and files of the state directory: for their owner only, and one clear error where they cannot be had."""

from __future__ import annotations

import errno
import os
from pathlib import Path

from kinfold.config import STATE_VARIABLE
from kinfold.errors import ConfigError


def private_dir(path: Path) -> Path:
    """`path`, made with mode 0700 where it is missing; refused where it is somebody else's."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise ConfigError(
            f"the state directory {path} cannot be made: {error.strerror}",
            hint=f"set {STATE_VARIABLE} to a directory of yours",
        ) from error
    if found.st_uid not in (os.geteuid(), 0) or found.st_mode & 0o002:
        raise ConfigError(
            f"the state directory {path} can be written by others",
            hint=f"`chmod 700 {path}`, or set {STATE_VARIABLE} to a directory of yours",
        )
    return path


def unwritable(path: Path, error: OSError) -> ConfigError:
    """The error to raise where something of the state directory cannot be written."""
    return ConfigError(
        f"cannot write {path}: {error.strerror}",
        hint="free some disk space" if is_full(error) else f"set {STATE_VARIABLE} to a directory of yours",
    )


def is_full(error: OSError) -> bool:
    """Whether it failed for want of space."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)
