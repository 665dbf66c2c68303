"""A file system of its own for a made workspace and its home: an ext4 image whose size and inodes are the limits.

    <root>/disk.img     sparse; takes on the host what was written into it
    <root>/disk/        where it is mounted, nosuid and nodev, while the sandbox lives

Both names follow from the sandbox's id: whoever finds a record knows what may be left of it, whenever its maker died.
The loop device belongs to the mount alone: the kernel frees it with the last user.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from kinfold.errors import SandboxError, StartFailed

IMAGE = "disk.img"
UNFINISHED = "disk.img.new"
POINT = "disk"
RESERVE_BYTES = 1 << 30
"""Free bytes that must be left on the host's file system for a sandbox to be made there."""
RESERVE_INODES = 10_000
_BLOCK = 4096
_INODE = 256
_SEARCHED = "/usr/sbin:/usr/bin:/sbin:/bin"
_TOOLS = ("mkfs.ext4", "mount", "umount")
_DEADLINE = 30.0
_FEATURES = (
    "^has_journal,^resize_inode,sparse_super,extent,filetype,dir_index,dir_nlink,extra_isize,large_file,huge_file"
)
"""No journal: the files live as long as their sandbox, and a quarter of a small workspace would be spent on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a workspace and its home may hold together."""

    bytes: int
    inodes: int


def missing() -> str:
    """What this host lacks to make such a file system; empty where nothing is known to be in the way."""
    if sys.platform != "linux":
        return "the workspace's disk can be bounded on Linux only"
    if os.geteuid() != 0:
        return "only root may mount a file system for the workspace"
    absent = [tool for tool in _TOOLS if _tool(tool) is None]
    if absent:
        return f"the host lacks {', '.join(absent)} (packages e2fsprogs and mount)"
    return "" if os.path.exists("/dev/loop-control") else "the host has no loop devices (/dev/loop-control)"


def make(root: Path, size: Size) -> None:
    """Make the image below `root` and mount it. Raises `StartFailed`; `remove` takes away what came about."""
    image = root / UNFINISHED
    try:
        with open(os.open(image, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "rb") as file:
            os.truncate(file.fileno(), _image_bytes(size))
    except OSError as error:
        raise StartFailed(f"cannot make {image}: {error.strerror}", hint="free some disk space") from error
    options = "lazy_itable_init=1,nodiscard,root_owner=0:0"
    format_ = ["-q", "-F", "-m", "0", "-b", str(_BLOCK), "-I", str(_INODE), "-N", str(size.inodes + _OWN_INODES)]
    said = _run("mkfs.ext4", *format_, "-O", _FEATURES, "-E", options, str(image))
    if said is not None:
        raise StartFailed(f"cannot make a file system for the workspace: {said}", hint="`kinfold doctor` shows more")
    os.rename(image, root / IMAGE)
    attach(root)
    os.rmdir(root / POINT / "lost+found")


def attach(root: Path) -> None:
    """Mount the image below `root`; no error where it is mounted. Raises `StartFailed`."""
    point = root / POINT
    if is_mounted(point):
        return
    said = _run("mount", "-t", "ext4", "-o", "loop,nosuid,nodev,noatime", str(root / IMAGE), str(point))
    if said is not None:
        raise StartFailed(
            f"cannot mount the workspace's file system: {said}", hint="`losetup -a` and `kinfold doctor` show more"
        )


def detach(root: Path) -> None:
    """Unmount what is mounted below `root`, also where a shell still stands in it. Raises `SandboxError`.

    Then the files are out of sight at once, and the space is free when the last process has left.
    """
    point = root / POINT
    said = None
    while is_mounted(point):
        if said is not None and (said := _run("umount", "--lazy", str(point))) is not None:
            raise SandboxError(f"cannot unmount {point}: {said}", hint=f"`umount {point}` as root")
        said = said if said is not None else _run("umount", str(point))


def has_image(root: Path) -> bool:
    """Whether the files of this sandbox lie, or lay, in an image."""
    return os.path.lexists(root / IMAGE)


def is_mounted(point: Path) -> bool:
    """Whether something is mounted at `point`: then it is on another device than the directory that holds it."""
    try:
        return os.lstat(point).st_dev != os.lstat(point.parent).st_dev
    except FileNotFoundError:
        return False


def check(root: Path) -> str:
    """Put an image in order that was cut off from its mount, as by a power failure; what could not be, else empty."""
    if _tool("e2fsck") is None:
        return ""
    found = _call("e2fsck", "-p", str(root / IMAGE))
    return "" if found.returncode in (0, 1) else _words(found)


def check_reserve(place: Path, reserve: int = RESERVE_BYTES) -> None:
    """Raise `StartFailed` where the host's file system is so full that another sandbox would endanger it."""
    while not place.exists():
        place = place.parent
    found = os.statvfs(place)
    free = found.f_bavail * found.f_frsize
    if free < reserve:
        raise StartFailed(
            f"the disk is nearly full: {free >> 20} MiB are free at {place}, {reserve >> 20} MiB stay in reserve",
            hint="free some disk space, or `kinfold reap`",
        )
    if found.f_files and found.f_favail < RESERVE_INODES:
        raise StartFailed(
            f"the disk is nearly full: {found.f_favail} inodes are free at {place}, {RESERVE_INODES} stay in reserve",
            hint="remove some files, or `kinfold reap`",
        )


_OWN_INODES = 16
"""Of ext4 itself: eleven, and room for mkfs to round down."""


def _image_bytes(size: Size) -> int:
    """As large as leaves `size.bytes` for files: inode tables, bitmaps, and what ext4 keeps for delayed allocation."""
    blocks = -(-size.bytes // _BLOCK)
    tables = -(-(size.inodes + _OWN_INODES) * _INODE // _BLOCK)
    groups = (blocks + tables) // 30_000 + 2
    reserved = min(blocks // 48 + 1, 4096)
    return (blocks + tables + groups * 8 + reserved + 64) * _BLOCK


def _tool(name: str) -> str | None:
    return shutil.which(name, path=_SEARCHED)


def _run(tool: str, *arguments: str) -> str | None:
    """None when it worked, else what it said."""
    found = _call(tool, *arguments)
    return None if found.returncode == 0 else _words(found)


def _call(tool: str, *arguments: str) -> subprocess.CompletedProcess[bytes]:
    path = _tool(tool)
    if path is None:
        raise StartFailed(f"the host lacks {tool}", hint="install e2fsprogs and mount")
    try:
        return subprocess.run(
            [path, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_DEADLINE,
            env={"PATH": _SEARCHED, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise StartFailed(f"{tool} did not work: {error}", hint="`kinfold doctor` checks the host") from error


def _words(found: subprocess.CompletedProcess[bytes]) -> str:
    words = (found.stderr or found.stdout).decode("utf-8", "replace").strip().splitlines()
    return words[0][:300] if words else f"exit code {found.returncode}"
