"""What becomes of a bounded workspace at the sandbox's end: plain files at the same path, and no mount left behind.

Whoever is told a path expects to find the files there, also after the machine was started anew. So they are copied out
of the image, and the copy takes the mount's place by one rename. What is too much to copy in a few seconds stays
mounted, until its time to be kept is over; `kinfold reap` mounts it again where a restart has ended that.

Any step may be the last one: the image goes only when the plain files are in place, and whoever comes next begins anew.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from kinfold.errors import ConfigError, SandboxError
from kinfold.sandbox.docker import quota
from kinfold.sandbox.docker.trees import DIRECTORY, Checkpoint, CopyRules, copy_tree, opened, remove_tree

logger = logging.getLogger(__name__)

COPIED_BYTES = 1 << 30
COPIED_INODES = 20_000
"""More than this is not copied out: at some 10,000 files and 500 MB a second it would hold up the task's end."""
_COPY = "kept"


def keep_files(root: Path, descriptor: int, checkpoint: Checkpoint) -> None:
    """Turn the image below `root` (open as `descriptor`) into plain files, or leave it mounted where they are many.

    Raises `SandboxError`, `OSError`; nothing is lost then, and the image stays.
    """
    if not quota.is_mounted(root / quota.POINT):
        if os.listdir(root / quota.POINT):
            os.unlink(quota.IMAGE, dir_fd=descriptor)  # the copy is in place; only this was still to be done
            return
        reattach(root)
    if not os.path.isdir(root / quota.POINT / "workspace"):
        quota.detach(root)  # its maker died before there was anything to keep
        os.unlink(quota.IMAGE, dir_fd=descriptor)
        return
    why = _too_much(root) or _copy_out(root, descriptor, checkpoint)
    if why:
        logger.info("%s stays mounted while its files are kept: %s", root / quota.POINT, why)
        return
    quota.detach(root)
    os.rename(_COPY, quota.POINT, src_dir_fd=descriptor, dst_dir_fd=descriptor)
    os.unlink(quota.IMAGE, dir_fd=descriptor)


def reattach(root: Path) -> bool:
    """Mount kept files again that a restart of the machine has unmounted; whether there was anything to do."""
    point = root / quota.POINT
    if not quota.has_image(root) or quota.is_mounted(point) or os.listdir(point):
        return False
    broken = quota.check(root)
    if broken:
        raise SandboxError(f"{root / quota.IMAGE} is damaged: {broken}", hint=f"`e2fsck -y {root / quota.IMAGE}`")
    quota.attach(root)
    return True


def _too_much(root: Path) -> str:
    disk = os.statvfs(root / quota.POINT)
    size, files = (disk.f_blocks - disk.f_bfree) * disk.f_frsize, disk.f_files - disk.f_ffree
    if size > COPIED_BYTES or files > COPIED_INODES:
        return f"{size >> 20} MiB in {files} files are more than is copied out"
    host = os.statvfs(root)
    if size + quota.RESERVE_BYTES > host.f_bavail * host.f_frsize:
        return f"the host has no room for a copy of {size >> 20} MiB"
    return ""


def _copy_out(root: Path, descriptor: int, checkpoint: Checkpoint) -> str:
    """Copy the workspace beside the mount; why it could not be, else empty. Set-uid bits and devices are left out."""
    left = remove_tree(descriptor, _COPY, checkpoint)
    if left:
        return left[0]
    os.makedirs(root / _COPY / "workspace", mode=0o700)
    with (
        opened(f"{quota.POINT}/workspace", DIRECTORY, dir_fd=descriptor) as source,
        opened(f"{_COPY}/workspace", DIRECTORY, dir_fd=descriptor) as target,
    ):
        found = os.fstat(source)
        owner = (found.st_uid, found.st_gid)
        # What one file with many names, or one with holes, would come to as plain copies is bounded, too.
        rules = CopyRules(owner=owner, extra_mode=0, max_bytes=COPIED_BYTES, max_entries=COPIED_INODES)
        try:
            copy_tree(source, target, rules, checkpoint)
        except ConfigError as error:
            remove_tree(descriptor, _COPY, checkpoint)
            return error.message
        os.fchown(target, *owner)
        os.fchmod(target, found.st_mode & 0o777)
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))
    return ""
