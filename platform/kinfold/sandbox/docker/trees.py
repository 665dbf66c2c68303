"""Copying and removing directory trees on the host by directory descriptors only: no path is ever looked up twice.

Neither recurses, neither follows a link, and neither opens anything but directories and regular files. Removing works
at any depth with a handful of descriptors: what lies deeper is first hoisted to the top of the tree that is going away.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kinfold.errors import ConfigError

Checkpoint = Callable[[], None]
"""Called between entries; raises where the work is to stop."""

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_DEPTH = 200
"""Levels that `copy_tree` goes down, the same as a listing's."""
_PIECE = 1 << 20
_ACCESS = (errno.EACCES, errno.EPERM)


def never() -> None:
    """The checkpoint that never stops anything."""


@contextmanager
def opened(name: str, flags: int, *, dir_fd: int | None = None) -> Iterator[int]:
    """A descriptor that is closed at the end."""
    descriptor = os.open(name, flags | os.O_CLOEXEC, dir_fd=dir_fd)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


# --- removing -------------------------------------------------------------------------------------------------------


def remove_tree(parent: int, name: str, checkpoint: Checkpoint = never) -> list[str]:
    """Remove `name` in the directory `parent`, whatever it is; gives back what would not go, as `name: reason`.

    Safe beside a second remover of the same tree. Nothing else may write to it any more.
    """
    try:
        os.unlink(name, dir_fd=parent)
    except FileNotFoundError:
        return []
    except OSError as error:
        if error.errno not in (errno.EISDIR, errno.EPERM):
            return [f"{name}: {error.strerror}"]
    else:
        return []
    left: dict[str, str] = {}
    try:
        with _open_to_empty(parent, name) as top:
            _empty(top, left, checkpoint)
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return []
    except OSError as error:
        left.setdefault(name, error.strerror or str(error))
    return [f"{entry}: {reason}" for entry, reason in left.items()]


def _empty(top: int, left: dict[str, str], checkpoint: Checkpoint) -> None:
    """Remove all that is in `top`, pass by pass, until a pass achieves nothing."""
    numbers = itertools.count()
    progress = True
    while progress:
        progress = False
        left.clear()
        for name in _names(top):
            checkpoint()
            try:
                progress |= _remove_level(top, name, numbers)
            except FileNotFoundError:
                continue
            except OSError as error:
                left[name] = error.strerror or str(error)


def _remove_level(top: int, name: str, numbers: Iterator[int]) -> bool:
    """Remove one entry of `top`: a directory's own directories are hoisted into `top` for a later pass."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=top, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=top)
        return True
    moved = False
    with _open_to_empty(top, name) as directory:
        for entry in _names(directory):
            moved = True
            if stat.S_ISDIR(os.stat(entry, dir_fd=directory, follow_symlinks=False).st_mode):
                _hoist(directory, entry, top, numbers)
            else:
                os.unlink(entry, dir_fd=directory)
    try:
        os.rmdir(name, dir_fd=top)
    except OSError as error:
        if error.errno != errno.ENOTEMPTY or not moved:
            raise
    return True


def _hoist(directory: int, entry: str, top: int, numbers: Iterator[int]) -> None:
    while True:
        target = f".kf-removing-{os.getpid()}-{next(numbers)}"
        if not _exists(top, target):
            break
    try:
        os.rename(entry, target, src_dir_fd=directory, dst_dir_fd=top)
    except PermissionError:
        _make_accessible(directory, entry)  # moving a directory rewrites its `..`
        os.rename(entry, target, src_dir_fd=directory, dst_dir_fd=top)


def _exists(directory: int, name: str) -> bool:
    try:
        os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


@contextmanager
def _open_to_empty(parent: int, name: str) -> Iterator[int]:
    """The directory, made writable and searchable first where it is ours and is not."""
    try:
        descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    except PermissionError:
        _make_accessible(parent, name)
        descriptor = os.open(name, DIRECTORY, dir_fd=parent)
    try:
        found = os.fstat(descriptor)
        if found.st_mode & 0o700 != 0o700 and found.st_uid == os.geteuid():
            os.fchmod(descriptor, 0o700)
        yield descriptor
    finally:
        os.close(descriptor)


def _make_accessible(parent: int, name: str) -> None:
    """chmod 0700 without following a link: by a descriptor that needs no permission on the directory itself."""
    with opened(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=parent) as descriptor:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)


def _names(directory: int) -> list[str]:
    """The names in a directory; read by a descriptor of its own, since reading moves the descriptor's position."""
    with opened(".", DIRECTORY, dir_fd=directory) as fresh:
        return os.listdir(fresh)


# --- copying --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyRules:
    """How a copy comes out."""

    owner: tuple[int, int] | None
    """uid and gid on the host that everything is given to; None: ours."""
    extra_mode: int
    """Permission bits added to everything (the execute bits to directories only)."""
    max_bytes: int
    max_entries: int
    skip: frozenset[str] = frozenset()
    """Names left out at the top."""


@dataclass(slots=True)
class Copied:
    """What a copy came to."""

    entries: int = 0
    bytes: int = 0
    skipped: int = 0
    """FIFOs, sockets, devices."""


def copy_tree(source: int, target: int, rules: CopyRules, checkpoint: Checkpoint = never) -> Copied:
    """Copy what is in the directory `source` into the directory `target`, links as links, special files left out.

    Raises `ConfigError` over `max_bytes` or `max_entries`, below `MAX_DEPTH` levels, and where one cannot be read.
    """
    done = Copied()
    stack = [(os.dup(source), os.dup(target), iter(sorted(set(_names(source)) - rules.skip)))]
    try:
        while stack:
            origin, copy, names = stack[-1]
            name = next(names, None)
            if name is None:
                stack.pop()
                os.close(origin)
                os.close(copy)
                continue
            checkpoint()
            done.entries += 1
            if done.entries > rules.max_entries:
                raise ConfigError(
                    f"the tree to copy has more than the {rules.max_entries} entries that the sandbox's disk may hold",
                    hint="copy less, or raise limits.disk_inodes",
                )
            deeper = _copy_entry(origin, copy, name, rules, done)
            if deeper is not None:
                stack.append((*deeper, iter(sorted(_names(deeper[0])))))
            if len(stack) > MAX_DEPTH:
                raise ConfigError(
                    f"the tree to copy is deeper than {MAX_DEPTH} levels at {name!r}", hint="copy a part of it"
                )
    finally:
        for origin, copy, _ in stack:
            os.close(origin)
            os.close(copy)
    return done


def _copy_entry(origin: int, copy: int, name: str, rules: CopyRules, done: Copied) -> tuple[int, int] | None:
    """Copy one entry; of a directory the two descriptors to go on with."""
    try:
        found = os.stat(name, dir_fd=origin, follow_symlinks=False)
        if stat.S_ISDIR(found.st_mode):
            return _copy_directory(origin, copy, name, rules)
        if stat.S_ISLNK(found.st_mode):
            os.symlink(os.readlink(name, dir_fd=origin), name, dir_fd=copy)
            if rules.owner is not None:
                os.chown(name, *rules.owner, dir_fd=copy, follow_symlinks=False)
        elif stat.S_ISREG(found.st_mode):
            _copy_file(origin, copy, name, rules, done)
        else:
            done.skipped += 1
    except FileNotFoundError:
        done.skipped += 1  # removed while we copied
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(copy, name, rules, done) from error
        raise ConfigError(
            f"cannot copy {name!r}: {error.strerror}", hint="make it readable, or leave it out of the directory"
        ) from error
    return None


def _copy_directory(origin: int, copy: int, name: str, rules: CopyRules) -> tuple[int, int]:
    inner = os.open(name, DIRECTORY, dir_fd=origin)
    try:
        os.mkdir(name, 0o700, dir_fd=copy)
        made = os.open(name, DIRECTORY, dir_fd=copy)
    except BaseException:
        os.close(inner)
        raise
    if rules.owner is not None:
        os.fchown(made, *rules.owner)
    os.fchmod(made, stat.S_IMODE(os.fstat(inner).st_mode) & 0o777 | 0o700 | rules.extra_mode)
    return inner, made


def _copy_file(origin: int, copy: int, name: str, rules: CopyRules, done: Copied) -> None:
    """Checked on the descriptor that is read: between stat and open the file may have become something else."""
    with opened(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=origin) as reader:
        found = os.fstat(reader)
        if not stat.S_ISREG(found.st_mode):
            done.skipped += 1
            return
        with opened(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, dir_fd=copy) as writer:
            while piece := os.read(reader, _PIECE):
                done.bytes += len(piece)
                if done.bytes > rules.max_bytes:
                    raise _too_large(name, rules, done)
                _write_all(writer, piece)
            if rules.owner is not None:
                os.fchown(writer, *rules.owner)
            os.fchmod(writer, stat.S_IMODE(found.st_mode) & 0o777 | rules.extra_mode & 0o666)
            os.utime(writer, ns=(found.st_atime_ns, found.st_mtime_ns))


def _too_large(name: str, rules: CopyRules, done: Copied) -> ConfigError:
    return ConfigError(
        f"the tree to copy is larger than the sandbox's disk limit of {rules.max_bytes} bytes: "
        f"{done.bytes} bytes in {done.entries} entries up to {name!r}",
        hint="copy less, or raise limits.disk_bytes",
    )


def _no_space(copy: int, name: str, rules: CopyRules, done: Copied) -> ConfigError:
    disk = os.fstatvfs(copy)
    what = "inodes" if disk.f_files and disk.f_ffree == 0 else "space"
    return ConfigError(
        f"no {what} left for the copy of the workspace at {name!r}, after {done.bytes} bytes in {done.entries} entries "
        f"(limits: {rules.max_bytes} bytes, {rules.max_entries} entries)",
        hint=f"copy less, raise limits.disk_{'inodes' if what == 'inodes' else 'bytes'}, or free some disk space",
    )


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]
