"""Copies delivered artifacts out of the sandbox into a directory of this machine, each against its digest.

A path in the container is hostile: it is mapped component by component beneath held directory descriptors, no link on
this side is followed, and a file appears under its name only whole and checked (temporary file, then rename).
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat as stat_module
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from kinfold.errors import ConfigError, PathError
from kinfold.messages import Artifact
from kinfold.sandbox.base import WORKSPACE, FileStat
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tools.names import shown

MAX_DEPTH = 200
MAX_ENTRIES = 100_000
"""What a directory may hold to be an artifact at all."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class NotCopied(Exception):
    """Why one artifact stays in the workspace; becomes a line of `Copied.problems`."""


@dataclass(slots=True)
class Copied:
    """What was written (absolute paths), and a line for everything that was not."""

    files: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """A line for each link or other special file inside of a directory: not delivered, and no failure."""


class OutDirectory:
    """The directory that artifacts are copied to, made where missing. Raises `ConfigError` when it cannot serve."""

    def __init__(self, path: Path, *, workspace: Path | None = None) -> None:
        self.path = path.expanduser().absolute()
        if workspace is not None and self.path.resolve().is_relative_to(workspace.expanduser().resolve()):
            raise ConfigError(f"{path} lies inside the workspace", hint="choose an output directory outside of it")
        self._made = [folder for folder in (self.path, *self.path.parents) if not os.path.lexists(folder)]
        """What was not there before, the deepest first."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError as error:
            hint = "name a directory, or one that can be made"
            raise ConfigError(f"{path} cannot be the output directory: {error.strerror}", hint=hint) from None
        if not os.access(self.path, os.W_OK | os.X_OK):
            self.close()
            raise ConfigError(f"{path} is not writable", hint="choose another output directory")

    def close(self) -> None:
        """Release the descriptor, and take back what was made here for nothing."""
        if self._fd < 0:
            return
        os.close(self._fd)
        self._fd = -1
        with suppress(OSError):  # the first that is not empty, or went meanwhile
            for folder in self._made:
                folder.rmdir()

    async def take(self, artifacts: Sequence[Artifact], sandbox: Sandbox) -> Copied:
        """Copy these artifacts; what cannot be copied is a problem, never half a file. Raises `SandboxError`."""
        copied = Copied()
        for artifact in artifacts:
            try:
                if artifact.fs_type == "directory":
                    await self._take_directory(artifact, sandbox, copied)
                else:
                    await self._take_file(artifact.path, artifact.sha256, sandbox, copied)
            except NotCopied as error:
                copied.problems.append(f"{shown(artifact.path)} was not copied out: {error}")
            except PathError as error:
                copied.problems.append(f"{shown(artifact.path)} was not copied out: {error.message}")
            except OSError as error:
                copied.problems.append(f"{shown(artifact.path)} was not copied out: {error.strerror or error}")
            except UnicodeEncodeError:
                copied.problems.append(f"{shown(artifact.path)} was not copied out: no file here can have that name")
        return copied

    async def _take_directory(self, artifact: Artifact, sandbox: Sandbox, copied: Copied) -> None:
        listing = await sandbox.list(artifact.path, depth=MAX_DEPTH, max_entries=MAX_ENTRIES)
        if listing.truncated:
            raise NotCopied(f"it holds more than {MAX_ENTRIES:,} entries, or is deeper than {MAX_DEPTH} levels")
        paths = [entry.path for entry in listing.entries if entry.type == "file"]
        digests = dict(zip(paths, await _digests(paths, sandbox), strict=True))
        if artifact.sha256 is not None and _digest_of_directory(artifact.path, digests) != artifact.sha256:
            raise NotCopied("it changed since it was delivered")
        with self._folder(_components(artifact.path)):
            pass
        for entry in listing.entries:
            if entry.type == "directory":
                with self._folder(_components(entry.path)):
                    pass
            elif entry.type == "file":
                await self._take_file(entry.path, digests[entry.path], sandbox, copied)
            else:
                copied.left_out.append(f"{shown(entry.path)} was left out: a {entry.type} inside a directory")

    async def _take_file(self, source: str, sha256: str | None, sandbox: Sandbox, copied: Copied) -> None:
        *above, name = _components(source)
        mode = 0o755 if await _is_executable(source, sandbox) else 0o644
        with self._folder(above) as folder:
            temporary = f".kinfold-{secrets.token_hex(8)}"
            fd = os.open(temporary, _NEW, mode, dir_fd=folder)
            try:
                digest = await _fill(fd, source, sandbox)
                if sha256 is not None and digest != sha256:
                    raise NotCopied("its content is not what was delivered")
                os.replace(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
            except BaseException:
                os.unlink(temporary, dir_fd=folder)
                raise
        copied.files.append(str(self.path.joinpath(*above, name)))

    @contextmanager
    def _folder(self, components: Sequence[str]) -> Iterator[int]:
        """A descriptor of the folder beneath the directory, made where missing; a link on the way is an `OSError`."""
        fd = os.dup(self._fd)
        try:
            for component in components:
                if component not in _names(fd, component):
                    os.mkdir(component, 0o755, dir_fd=fd)
                deeper = os.open(component, _FOLDER, dir_fd=fd)
                os.close(fd)
                fd = deeper
            yield fd
        finally:
            os.close(fd)


def _names(fd: int, component: str) -> tuple[str, ...]:
    """`component` where something of that name is there, of whatever type."""
    try:
        os.stat(component, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return ()
    return (component,)


def _components(path: str) -> list[str]:
    """The parts of an absolute container path beneath the workspace; raises `NotCopied` for anything else."""
    parts = path.split("/")
    root = WORKSPACE.split("/")
    beneath = parts[len(root) :]
    if parts[: len(root)] != root or any(part in ("", ".", "..") or "\0" in part for part in beneath):
        raise NotCopied("its path does not lie beneath the workspace")
    return beneath


async def _fill(fd: int, source: str, sandbox: Sandbox) -> str:
    """Write the whole of `source` to the descriptor and close it; the sha256 of what was written."""
    digest = hashlib.sha256()
    with os.fdopen(fd, "wb") as file:
        async for chunk in sandbox.read_stream(source):
            digest.update(chunk)
            file.write(chunk)
    return digest.hexdigest()


async def _is_executable(path: str, sandbox: Sandbox) -> bool:
    (found,) = await sandbox.stat([path])
    return isinstance(found, FileStat) and found.type == "file" and bool(found.mode & stat_module.S_IXUSR)


async def _digests(paths: Sequence[str], sandbox: Sandbox) -> list[str]:
    digests = []
    for path, found in zip(paths, await sandbox.stat(list(paths), digest=True) if paths else (), strict=True):
        if not isinstance(found, FileStat) or found.sha256 is None:
            raise NotCopied(f"{shown(path)} in it cannot be read")
        digests.append(found.sha256)
    return digests


def _digest_of_directory(root: str, digests: dict[str, str]) -> str:
    """As the supervisor computes a claimed directory's digest: sorted lines of path, NUL and sha256."""
    relative = {os.fsencode(path[len(root) :].lstrip("/")): digest for path, digest in digests.items()}
    lines = (path + b"\0" + relative[path].encode() + b"\n" for path in sorted(relative))
    return hashlib.sha256(b"".join(lines)).hexdigest()
