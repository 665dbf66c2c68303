"""Looking at and changing the workspace's tree: paths checked here, the rest done in the container."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import TypeVar

from kinfold.errors import KinfoldError, PathError, SandboxError
from kinfold.sandbox import encode, replies
from kinfold.sandbox.base import WORKSPACE, FileStat, Listing, Snapshot
from kinfold.sandbox.channel import ChannelBroken, RemoteError
from kinfold.sandbox.collect import Answer, ListItems, Plain, StatItems
from kinfold.sandbox.file_stat import Entries, file_stat, listed
from kinfold.sandbox.link import PATIENCE, Ask, Link
from kinfold.sandbox.protocol import ProtocolViolation, Request, StatFlag
from kinfold.sandbox.replies import Failure
from kinfold.sandbox.workspace import normalize, plain_bytes, to_bytes, to_text

T = TypeVar("T")

ALL_DEPTHS = 2**32 - 1
_LONG_PATIENCE = 600.0
"""Of what has no frame to send before its end: digests, claims, and the removal of whole trees."""
_STAT_BATCH = 2_000
_STAT_BYTES = 128 * 1024


def wire_path(path: str) -> bytes:
    """The bytes of a normalised path as requests carry it: relative to the root."""
    return to_bytes(path[len(WORKSPACE) + 1 :]) or b"."


def file_error(failure: Failure, path: str) -> KinfoldError:
    """The error to raise for what the supervisor said of a path."""
    if failure.kind <= len(replies.PATH_REASONS):
        reason = replies.PATH_REASONS[failure.kind - 1]
        detail = failure.message if reason in ("invalid", "too_large", "not_regular") else ""
        return PathError(reason, path, detail)
    if failure.kind == replies.UNSUPPORTED:
        return PathError("invalid", path, failure.message or "is not supported here")
    return SandboxError(f"the supervisor failed on {path!r}: {failure.message or failure.kind}")


class Files:
    """The file half of `Sandbox`, on its link."""

    def __init__(self, link: Link) -> None:
        self._link = link

    # --- looking ----------------------------------------------------------------------------------------------------

    async def stat(self, paths: Iterable[str], *, digest: bool, claim: bool) -> list[FileStat | PathError]:
        """See `Sandbox.stat`."""
        wanted = tuple(paths)
        flags = (StatFlag.DIGEST if digest else 0) | (StatFlag.CLAIM if claim else 0)
        patience = _LONG_PATIENCE if flags else PATIENCE
        asked: builtins.list[str] = []
        refused: dict[int, PathError] = {}
        try:
            answers = await self._link.ask_many(
                Request.STAT, _stat_asks(wanted, flags, asked, refused), patience=patience
            )
        except RemoteError as error:
            raise file_error(error.failure, ".") from error
        found = (
            entry if isinstance(entry, FileStat) else _as_path_error(entry, path)
            for path, entry in zip(asked, chain.from_iterable(answers), strict=True)
        )
        if not refused:
            return [*found]
        return [refused[number] if number in refused else next(found) for number in range(len(wanted))]

    async def list(self, path: str, *, depth: int, max_entries: int) -> Listing:
        """See `Sandbox.list`."""
        base = normalize(path)
        entries, truncated = await self._list(base, depth, max_entries)
        return Listing(entries=tuple(entries[name] for name in sorted(entries)), truncated=truncated)

    async def snapshot(self, max_entries: int) -> Snapshot:
        """See `Sandbox.snapshot`."""
        entries, truncated = await self._list(WORKSPACE, ALL_DEPTHS, max_entries)
        return Snapshot(entries=entries, truncated=truncated)

    async def _list(self, base: str, depth: int, max_entries: int) -> tuple[Entries, bool]:
        if depth < 1 or max_entries < 1:
            raise ValueError("depth and max_entries are at least 1")
        payload = encode.list_(wire_path(base), depth=min(depth, ALL_DEPTHS), max_entries=min(max_entries, ALL_DEPTHS))
        frames, truncated, count = await self._ask(base, Request.LIST, payload, lambda: ListItems(max_entries))
        entries, records = Entries(base), 0
        try:
            for frame in frames:  # a frame is half a millisecond; then others have their turn
                found = listed(frame)
                records += len(found)
                entries.add(found)
                await asyncio.sleep(0)
            if records != count or count > max_entries:
                raise ProtocolViolation(f"{count} of {max_entries} entries announced, {records} sent")
        except ProtocolViolation as violation:
            raise self._link.lose(f"the supervisor of {self._link.ref.id} broke the protocol: {violation}") from None
        return entries, truncated

    async def _ask(self, path: str, request: Request, payload: bytes, answer: Callable[[], Answer[T]]) -> T:
        try:
            return await self._link.ask(request, payload, answer)
        except RemoteError as error:
            raise file_error(error.failure, path) from error

    # --- changing ---------------------------------------------------------------------------------------------------

    async def make_dir(self, path: str, *, mode: int, parents: bool) -> FileStat:
        """See `Sandbox.make_dir`."""
        where = normalize(path)
        payload = encode.make_dir(wire_path(where), mode=mode, parents=parents)

        async def became() -> FileStat:
            return await self._outcome(where, lambda stat: parents and stat.type == "directory")

        return await self._change(where, Request.MAKE_DIR, payload, partial(_stat_of, where), became)

    async def remove(self, path: str, *, recursive: bool) -> int:
        """See `Sandbox.remove`."""
        where = normalize(path)
        payload = encode.remove(wire_path(where), recursive=recursive)

        async def became() -> int:
            found = await self.stat([where], digest=False, claim=False)
            if isinstance(found[0], PathError) and found[0].reason == "not_found":
                return 1
            raise unknown_outcome(where)

        patience = _LONG_PATIENCE if recursive else PATIENCE
        return await self._change(where, Request.REMOVE, payload, replies.number64, became, patience=patience)

    async def rename(self, source: str, target: str, *, replace: bool) -> FileStat:
        """See `Sandbox.rename`."""
        old, new = normalize(source), normalize(target)
        payload = encode.rename(wire_path(old), wire_path(new), replace=replace)

        async def became() -> FileStat:
            raise unknown_outcome(old)

        return await self._change(old, Request.RENAME, payload, partial(_stat_of, new), became)

    async def symlink(self, target: str, path: str) -> FileStat:
        """See `Sandbox.symlink`."""
        where = normalize(path)
        raw = to_bytes(target)
        if not raw or b"\0" in raw:
            raise PathError("invalid", target, "is no usable target for a link")

        async def became() -> FileStat:
            return await self._outcome(where, lambda stat: stat.target == to_text(raw))

        payload = encode.symlink(raw, wire_path(where))
        return await self._change(where, Request.SYMLINK, payload, partial(_stat_of, where), became)

    async def _change(
        self,
        path: str,
        request: Request,
        payload: bytes,
        decode_ok: Callable[[memoryview], T],
        became: Callable[[], Awaitable[T]],
        *,
        patience: float = PATIENCE,
    ) -> T:
        """Send once; where the channel broke under it, `became` finds out or raises: nothing is silently done twice."""
        try:
            answer = Plain(decode_ok)
            return await self._link.once(await self._link.ready(), request, payload, answer, patience=patience)
        except RemoteError as error:
            raise file_error(error.failure, path) from error
        except ChannelBroken:
            return await became()

    async def _outcome(self, path: str, is_done: Callable[[FileStat], bool]) -> FileStat:
        payload = encode.stat([wire_path(path)])
        [entry] = await self._link.ask(Request.STAT, payload, lambda: StatItems([path]))
        if isinstance(entry, FileStat) and is_done(entry):
            return entry
        raise unknown_outcome(path)


def unknown_outcome(path: str) -> PathError:
    """For a change under which the channel broke: neither done again nor called done."""
    return PathError(
        "conflict",
        path,
        "the connection to the sandbox broke during this change and its outcome is not known",
        hint="look at what is there now, then decide whether to do it again",
    )


def _stat_asks(
    paths: Sequence[str], flags: int, asked: list[str], refused: dict[int, PathError]
) -> Iterator[Ask[list[FileStat | Failure]]]:
    """STATs for `paths`, each made when it is drawn: the supervisor works on the first while the next is encoded.

    What is asked for goes into `asked`, absolute; a path that is no path into `refused`, by its number.
    """

    start = 0
    for batch in encode.stat_batches(_wire_paths(paths, asked, refused), _STAT_BATCH, _STAT_BYTES):
        expected = asked[start : start + len(batch)]
        start += len(batch)
        yield encode.stat(batch, flags), partial(StatItems, expected)


def _wire_paths(paths: Sequence[str], asked: list[str], refused: dict[int, PathError]) -> Iterator[bytes]:
    """See `_stat_asks`."""
    for start in range(0, len(paths), _STAT_BATCH):
        part = paths[start : start + _STAT_BATCH]
        plain = plain_bytes(part)
        if plain is not None:
            asked += [f"{WORKSPACE}/{path}" for path in part]
            yield from plain
            continue
        for number, path in enumerate(part, start):
            try:
                where = normalize(path)
            except PathError as error:
                refused[number] = error
            else:
                asked.append(where)
                yield wire_path(where)


def _as_path_error(failure: Failure, path: str) -> PathError:
    error = file_error(failure, path)
    if not isinstance(error, PathError):
        raise error
    return error


def _stat_of(where: str, payload: memoryview) -> FileStat:
    return file_stat(where, replies.record(payload))
