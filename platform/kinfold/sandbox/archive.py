"""Trees in and out as tar streams, made and read here, member by member, by ordinary file requests.

No file of the host is touched, and the tar module never extracts anything: it only reads headers.
"""

from __future__ import annotations

import posixpath
import stat
import tarfile
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import anyio.from_thread
import anyio.to_thread

from kinfold.errors import PathError
from kinfold.sandbox.base import GIB, MIB, FileStat
from kinfold.sandbox.workspace import is_under_root, normalize

if TYPE_CHECKING:
    from kinfold.sandbox.sandbox import Sandbox

_SMALL = MIB
_PIECE = MIB
_HEADER_BUDGET = 8 * MIB
"""What a stream may spend on headers between two members; a longer one is an attack on our memory."""
_BLOCK = 512
_FREE = 16 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveLimits:
    """Ceilings of one archive, in or out; `PathError` `too_large` beyond them."""

    entries: int = 100_000
    total_bytes: int = 5 * GIB
    member_bytes: int = 2 * GIB
    ratio: int = 100
    """Bytes that members may grow to, for each byte that the stream holds of them; 16 MiB are free."""


@dataclass(slots=True, kw_only=True)
class Extracted:
    """What an archive gave."""

    files: int = 0
    directories: int = 0
    symlinks: int = 0
    total_bytes: int = 0
    skipped: list[str] = field(default_factory=list)
    """Members of other kinds: hard links, devices, FIFOs."""


# --- out ------------------------------------------------------------------------------------------------------------


async def pack(sandbox: Sandbox, path: str, limits: ArchiveLimits) -> AsyncGenerator[bytes, None]:
    """The tar stream of `path`. See `Sandbox.archive`."""
    base = normalize(path)
    members = await _members(sandbox, base, limits)
    total = 0
    for name, entry in members:
        total += entry.size if entry.type == "file" else 0
        if total > limits.total_bytes or (entry.type == "file" and entry.size > limits.member_bytes):
            raise PathError("too_large", entry.path, f"the archive would be larger than {limits}")
        if entry.type == "file" and entry.size <= _SMALL:
            data = await sandbox.read(entry.path)
            yield _header(name, entry, len(data)) + data + _padding(len(data))
        elif entry.type == "file":
            yield _header(name, entry, entry.size)
            async with aclosing(_exactly(sandbox, entry)) as pieces:
                async for piece in pieces:
                    yield piece
            yield _padding(entry.size)
        else:
            yield _header(name, entry, 0)
    yield bytes(2 * _BLOCK)


async def _members(sandbox: Sandbox, base: str, limits: ArchiveLimits) -> list[tuple[str, FileStat]]:
    [top] = await sandbox.stat([base])
    if isinstance(top, PathError):
        raise top
    if top.type != "directory":
        return [(posixpath.basename(base), top)] if top.type == "file" else []
    listing = await sandbox.list(base, depth=2**32 - 1, max_entries=limits.entries)
    if listing.truncated:
        raise PathError("too_large", base, f"holds more than {limits.entries} entries, or is too deep to archive")
    return list(_sound(base, listing.entries))


def _sound(base: str, entries: Iterable[FileStat]) -> Iterator[tuple[str, FileStat]]:
    """What may go into an archive: each name once, beneath nothing but directories, no link that leads out of it.

    A listing is no snapshot: under somebody's renames one name may be seen twice, as a link and as a directory. An
    archive that holds both, and then a file beneath, makes whoever unpacks it write through the link.
    """
    directories, seen = {base}, set[str]()
    for entry in entries:
        above = posixpath.dirname(entry.path)
        if entry.type == "other" or entry.path in seen or above not in directories:
            continue
        seen.add(entry.path)
        if entry.type == "directory":
            directories.add(entry.path)
        elif entry.type == "symlink" and not is_under_root(posixpath.join(above, entry.target or "/"), base):
            continue
        yield entry.path[len(base) + 1 :], entry


def _header(name: str, entry: FileStat, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.mode = stat.S_IMODE(entry.mode) & 0o777
    info.mtime = entry.mtime_ns // 1_000_000_000
    if entry.type == "directory":
        info.type = tarfile.DIRTYPE
    elif entry.type == "symlink":
        info.type = tarfile.SYMTYPE
        target, above = entry.target or "", posixpath.dirname(entry.path)
        info.linkname = posixpath.relpath(target, above) if target.startswith("/") else target
    else:
        info.size = size
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _padding(size: int) -> bytes:
    return bytes(-size % _BLOCK)


async def _exactly(sandbox: Sandbox, entry: FileStat) -> AsyncGenerator[bytes, None]:
    """The bytes that the header announced: a file that grew is cut there, one that shrank is a `conflict`."""
    left = entry.size
    async with aclosing(sandbox.read_stream(entry.path)) as pieces:
        async for piece in pieces:
            yield piece[:left]
            left -= len(piece[:left])
            if not left:
                return
    raise PathError("conflict", entry.path, "shrank while it was archived")


# --- in -------------------------------------------------------------------------------------------------------------


async def unpack(sandbox: Sandbox, stream: AsyncIterator[bytes], path: str, limits: ArchiveLimits) -> Extracted:
    """Unpack below `path`. See `Sandbox.extract`."""
    extraction = _Extraction(sandbox, normalize(path), limits)
    reader = _Reader(stream)
    try:
        # The tar module reads synchronously: it gets a thread, and the thread asks the loop for bytes.
        await anyio.to_thread.run_sync(extraction.run, reader)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise PathError(
            "invalid", path, f"cannot be filled from this stream: not a sound tar archive ({error})"
        ) from error
    return extraction.result


class _Reader:
    """A file for the tar module over an async stream, with a budget that each step renews."""

    def __init__(self, stream: AsyncIterator[bytes]) -> None:
        self._stream = stream
        self._buffer = bytearray()
        self._budget = 0
        self._ended = False

    def allow(self, size: int) -> None:
        """How much may be read until the next call of this."""
        self._budget = size

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes unless the stream ends."""
        while len(self._buffer) < size and not self._ended:
            anyio.from_thread.check_cancelled()
            piece = anyio.from_thread.run(self._next)
            if piece is None:
                self._ended = True
            else:
                self._buffer += piece
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        self._budget -= len(data)
        if self._budget < 0:
            raise tarfile.ReadError("its headers are larger than any sound archive's")
        return data

    async def _next(self) -> bytes | None:
        return await anext(self._stream, None)


class _Header(tarfile.TarInfo):
    """A member; the tar module takes a spoiled or missing header for the end, and the rest would silently be lost."""

    @classmethod
    def fromtarfile(cls, tarfile_: tarfile.TarFile) -> Self:
        """The next one. Raises `tarfile.ReadError` but for the end that an archive has."""
        try:
            return super().fromtarfile(tarfile_)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]
            raise
        except tarfile.HeaderError as error:
            raise tarfile.ReadError(f"{error}, after {tarfile_.offset} bytes") from error


class _Extraction:
    """Runs in a thread; every change goes through the loop to the sandbox."""

    def __init__(self, sandbox: Sandbox, base: str, limits: ArchiveLimits) -> None:
        self._sandbox = sandbox
        self._base = base
        self._limits = limits
        self._links: set[str] = set()
        """What this archive made links: nothing of it is written through them."""
        self._stored = 0
        self.result = Extracted()

    def run(self, reader: _Reader) -> None:
        reader.allow(_HEADER_BUDGET)
        entries = 0
        with tarfile.open(  # type: ignore[call-overload]
            fileobj=reader, mode="r|", encoding="utf-8", errors="surrogateescape", tarinfo=_Header
        ) as tar:
            reader.allow(_HEADER_BUDGET)
            while (member := tar.next()) is not None:
                entries += 1
                self._check(member, entries)
                reader.allow(_HEADER_BUDGET + member.size)
                self._take(tar, member)
                tar.members.clear()  # a streamed archive needs no memory of what it gave
                reader.allow(_HEADER_BUDGET + (0 if member.isreg() else member.size))

    def _check(self, member: tarfile.TarInfo, entries: int) -> None:
        limits = self._limits
        if entries > limits.entries:
            raise PathError("too_large", self._base, f"the archive has more than {limits.entries} entries")
        if member.size < 0:
            raise PathError("invalid", member.name, f"cannot have {member.size} bytes")
        if member.size > limits.member_bytes:
            raise PathError(
                "too_large", member.name, f"has {member.size} bytes; at most {limits.member_bytes} are taken"
            )
        holds: Any = member.sparse  # of a file with holes: offset and size of each piece that is there
        self._stored += _BLOCK + (member.size if holds is None else sum(size for _, size in holds))
        self.result.total_bytes += member.size
        if self.result.total_bytes > limits.ratio * self._stored + _FREE:
            raise PathError(
                "too_large", member.name, f"grows to more than {limits.ratio} times of what the archive holds of it"
            )
        if self.result.total_bytes > limits.total_bytes:
            raise PathError("too_large", self._base, f"the archive holds more than {limits.total_bytes} bytes")

    def _take(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = self._place(member.name)
        sandbox = self._sandbox
        if path in self._links and (member.isdir() or member.isreg()):
            anyio.from_thread.run(sandbox.remove, path)
            self._links.discard(path)
        if member.isdir():
            if path != self._base:
                anyio.from_thread.run(_make_dir, sandbox, path, (member.mode & 0o777) | 0o700)
            self.result.directories += 1
        elif member.issym():
            anyio.from_thread.run(_link, sandbox, member.linkname, path)
            self._links.add(path)
            self.result.symlinks += 1
        elif member.isreg():
            self._file(tar, member, path)
            self.result.files += 1
        else:
            self.result.skipped.append(member.name)

    def _file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        source: Any = tar.extractfile(member)
        if source is None:
            raise tarfile.ReadError(f"{member.name!r} has no content")
        mode = member.mode & 0o777
        writer = anyio.from_thread.run(self._sandbox.open_writer, path, mode)
        try:
            while piece := source.read(_PIECE):
                anyio.from_thread.run(writer.write, piece)
            anyio.from_thread.run(writer.finish)
        finally:
            anyio.from_thread.run_sync(writer.abandon)

    def _place(self, name: str) -> str:
        """Where a member goes; refuses names that are absolute or climb, before the container refuses them too."""
        parts = name.split("/")
        if name.startswith("/") or ".." in parts:
            raise PathError("path_escape", name, "a member of the archive leaves the directory it is unpacked into")
        path = above = normalize(posixpath.join(self._base, name))
        while self._links and (above := posixpath.dirname(above)) not in ("/", self._base):
            if above in self._links:
                raise PathError("path_escape", name, "a member of the archive lies behind a link of the same archive")
        return path


async def _make_dir(sandbox: Sandbox, path: str, mode: int) -> None:
    await sandbox.make_dir(path, parents=True, mode=mode)


async def _link(sandbox: Sandbox, target: str, path: str) -> None:
    try:
        await sandbox.symlink(target, path)
        return
    except PathError as error:
        if error.reason == "conflict":
            await sandbox.remove(path)
        elif error.reason == "not_found":
            await sandbox.make_dir(posixpath.dirname(path))
        else:
            raise
    await sandbox.symlink(target, path)
