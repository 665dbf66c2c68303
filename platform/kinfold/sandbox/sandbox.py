"""The one class behind which every provider's container looks the same."""

from __future__ import annotations

import builtins
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import anyio

from kinfold.errors import PathError, SandboxError, SandboxLost
from kinfold.sandbox import replies
from kinfold.sandbox.allowlist import Allowlist
from kinfold.sandbox.archive import ArchiveLimits, Extracted, pack, unpack
from kinfold.sandbox.base import (
    MIB,
    Control,
    DiskUse,
    ExecRequest,
    ExecResult,
    FileStat,
    Listing,
    OnEgress,
    OwnerEnd,
    Provider,
    SandboxRef,
    SandboxSpec,
    SandboxUsage,
    Snapshot,
)
from kinfold.sandbox.channel import RemoteError
from kinfold.sandbox.collect import Plain
from kinfold.sandbox.execs import ExecInfo, Execs, Kept
from kinfold.sandbox.files import Files
from kinfold.sandbox.lifetime import Lifetime
from kinfold.sandbox.link import Link, OnChange
from kinfold.sandbox.process import Process
from kinfold.sandbox.processes import ProcessTable, process_table
from kinfold.sandbox.protocol import Request, WriteFlag
from kinfold.sandbox.transfer import READ_LIMIT, FileWriter, Transfer

if TYPE_CHECKING:
    from kinfold.sandbox.egress.egress import Egress

__all__ = ["READ_LIMIT", "Process", "Sandbox"]

_KEEPALIVE = 15.0
_END_TIMEOUT = 10.0
_CLOSE_TIMEOUT = 60.0
_NO_LIMIT = 2**62
"""What cgroup v1 says where memory has no limit is about twice this."""


class Sandbox:
    """One container and its workspace, made by `Provider.create` or `Provider.connect`.

    Whoever made it owns it and closes it (`async with`, or `aclose`); agents and tools borrow it. Every method may
    raise `SandboxLost`; file methods raise `PathError`. Paths are relative to the workspace, or absolute beneath
    `/workspace`. Calls may run at the same time.
    """

    def __init__(
        self,
        *,
        provider: Provider,
        ref: SandboxRef,
        spec: SandboxSpec,
        not_enforced: tuple[Control, ...] = (),
        on_close: Callable[[], Awaitable[None]] | None = None,
        lifetime: Lifetime | None = None,
        carries: bool = True,
        link: Link | None = None,
    ) -> None:
        """`carries`: whether connections of an allowlist come to this object; not to one that is borrowed. `link`: one
        that is open already."""
        self._provider = provider
        self._ref = ref
        self._spec = spec
        self._not_enforced = not_enforced
        self._on_close = on_close
        self._lifetime = lifetime
        keepalive = min(_KEEPALIVE, spec.orphan_grace / 4)
        self._link = link or Link(provider, ref, keepalive=keepalive, outage=spec.orphan_grace)
        self._execs = Execs(self._link, {**spec.env, **spec.secrets})
        self._files = Files(self._link)
        self._transfer = Transfer(self._link)
        self._closed = False
        self._egress: Egress | None = None
        if carries and isinstance(spec.network, Allowlist):
            from kinfold.sandbox.egress.egress import Egress

            self._egress = Egress(spec.network, ref.id)
            self._link.on_channel = self._egress.claim

    async def open(self) -> None:
        """Greet the supervisor; providers call it. Raises `StartFailed` when it does not answer."""
        await self._link.open()
        if self._lifetime is not None:
            self._lifetime.watch(self._link)

    def succeeded_by(
        self, *, ref: SandboxRef, spec: SandboxSpec, not_enforced: tuple[Control, ...], lifetime: Lifetime
    ) -> Sandbox:
        """The same container and channel under another spec; this object is done with, and closing it does nothing.

        Providers call it to hand a warm sandbox out; nothing has run in it.
        """
        self._closed = True
        self._link.ref = ref
        self._link.on_change = None
        self._link.touch()
        heir = Sandbox(
            provider=self._provider,
            ref=ref,
            spec=spec,
            not_enforced=not_enforced,
            lifetime=lifetime,
            link=self._link,
        )
        lifetime.watch(self._link)
        return heir

    # --- who it is --------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """`sbx_` and 16 hex digits."""
        return self._ref.id

    @property
    def ref(self) -> SandboxRef:
        """How any process can name it."""
        return self._ref

    @property
    def spec(self) -> SandboxSpec:
        """What was asked for."""
        return self._spec

    @property
    def alive(self) -> bool:
        """Whether its channel works at this moment."""
        return self._link.alive

    @property
    def agent_uid(self) -> int:
        """The uid of every exec and file operation, as seen inside."""
        return self._link.channel.hello.agent_uid

    @property
    def generation(self) -> int:
        """Of the supervisor; never changes while this object lives."""
        return self._link.channel.hello.generation

    @property
    def controls(self) -> frozenset[str]:
        """What the supervisor itself found to hold (names of `replies.CONTROL_BITS`)."""
        return self._link.channel.hello.controls

    @property
    def supervisor_build(self) -> str:
        """The digest of the supervisor's sources, as it says."""
        return self._link.channel.hello.build

    @property
    def not_enforced(self) -> tuple[Control, ...]:
        """Controls that were asked for and do not hold here."""
        return self._not_enforced

    def watch(self, on_change: OnChange) -> None:
        """Call this when the supervisor is out of reach (`degraded`), is back (`ready`), or is given up (`lost`)."""
        self._link.on_change = on_change

    # --- programs ---------------------------------------------------------------------------------------------------

    async def exec(
        self,
        command: Sequence[str] | str,
        *,
        cwd: str = ".",
        env: Mapping[str, str] | None = None,
        stdin: bytes | None = None,
        timeout: float | None = None,
        grace: float = 2.0,
        idle_timeout: float | None = None,
        max_output_bytes: int = MIB,
        owner: str = "",
    ) -> ExecResult:
        """Run a program to its end: an argv list, or a string for `sh -c`. See `ExecRequest` for the words.

        A non-zero exit, a timeout, a program that cannot start (127, 126) are results. Raises `PathError` for a `cwd`
        that is not there. When the caller is cancelled the whole tree is dead before the cancellation goes on.
        """
        return await self._execs.run(
            ExecRequest(
                command=command,
                cwd=cwd,
                env=env or {},
                stdin=stdin,
                timeout=timeout,
                grace=grace,
                idle_timeout=idle_timeout,
                max_output_bytes=max_output_bytes,
                owner=owner,
            )
        )

    async def run(self, request: ExecRequest) -> ExecResult:
        """As `exec`; `stream` and `stdin_open` are for `start` and mean nothing here."""
        return await self._execs.run(request)

    async def start(self, request: ExecRequest) -> Process:
        """Start a program and return when it runs. A cancelled caller later does not end it: `kill` or `end` do."""
        return await self._execs.start(request)

    async def attach(self, exec_id: str, offsets: tuple[int, int] = (0, 0)) -> Process:
        """Follow an exec that runs or ran, from these offsets of stdout and stderr. Raises `NotFound`."""
        return await self._execs.attach(exec_id, offsets)

    async def take_up(self, request: ExecRequest) -> Process:
        """See the exec with this request's `id` to its end, as the process that started it by this request would have.

        Raises `NotFound` where the supervisor does not know it: it never began, or its end was told already.
        """
        return await self._execs.take_up(request)

    async def end(self, owner: str, *, grace: float = 2.0) -> builtins.list[OwnerEnd]:
        """Kill all that the execs of `owner` (a run's id) left running, with proof."""
        return await self._execs.end(owner, grace)

    async def execs(self) -> builtins.list[ExecInfo]:
        """The execs that the supervisor knows, running and ended."""
        return await self._execs.list()

    async def kept(
        self, exec_id: str, stream: Literal["stdout", "stderr"] = "stdout", offset: int = 0, limit: int = MIB
    ) -> Kept:
        """What is kept of an exec's output from `offset` on. Raises `NotFound`."""
        return await self._execs.kept(exec_id, stream, offset, limit)

    async def processes(self) -> ProcessTable:
        """The processes of every exec now, also those that a leader left behind."""
        return await self._link.ask(Request.PROCESSES, b"", lambda: Plain(process_table))

    async def pause(self) -> None:
        """Stop all execs, whoever started them; their clocks stand still. Files can still be read and written."""
        channel = await self._link.ready()
        await self._tell(Request.PAUSE)
        channel.execs_paused = self._link.execs_paused = True

    async def resume(self) -> None:
        """Continue all execs."""
        await self._tell(Request.RESUME)
        self._link.execs_paused = self._link.channel.execs_paused = False

    async def _tell(self, request: Request) -> None:
        try:
            await self._link.ask(request, b"", lambda: Plain(replies.nothing))
        except RemoteError as error:
            raise SandboxError(f"{request.name.lower()} failed: {error.failure.message}") from error

    async def usage(self) -> SandboxUsage:
        """What it uses now."""
        numbers = await self._link.ask(Request.USAGE, b"", lambda: Plain(replies.usage))
        cpu, memory, memory_peak, memory_limit, pids, pids_peak, pids_limit, oom_kills, running, *disk = numbers[:-2]
        paused, paused_us = numbers[-2:]
        return SandboxUsage(
            cpu_seconds=None if cpu is None else cpu / 1_000_000,
            memory_bytes=memory,
            memory_peak_bytes=memory_peak,
            memory_limit_bytes=None if memory_limit is None or memory_limit >= _NO_LIMIT else memory_limit,
            pids=pids,
            pids_peak=pids_peak,
            pids_limit=pids_limit,
            oom_kills=oom_kills,
            execs_running=running or 0,
            disk=DiskUse.of(disk),
            paused=bool(paused),
            paused_seconds=(paused_us or 0) / 1_000_000,
        )

    # --- files ------------------------------------------------------------------------------------------------------

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None, digest: bool = False) -> bytes:
        """A file's bytes. Without `limit` at most `READ_LIMIT`, else `PathError` `too_large`.

        `digest` checks the bytes against the SHA-256 that was taken in the container.
        """
        return await self._transfer.read(path, offset=offset, limit=limit, digest=digest)

    def read_stream(self, path: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        """A file's bytes in pieces, as fast as they are taken; of any size. Raises `PathError`."""
        return self._transfer.read_stream(path, offset=offset)

    async def write(
        self,
        path: str,
        data: bytes,
        *,
        if_match: str | None = None,
        exclusive: bool = False,
        mode: int = 0,
        parents: bool = True,
        digest: bool | None = None,
    ) -> FileStat:
        """Replace or make a file in one step.

        `digest`: whether the result carries the `sha256` of what was written; None: for data up to 1 MiB, since hashing
        more takes longer than writing it. `if_match`: the SHA-256 in hex that the file must still have, or `"absent"`;
        else `PathError` `conflict`. `exclusive`: an existing file is a `conflict`. `mode` 0 keeps the replaced file's,
        or is 0644. Hard links and extended attributes of a replaced file do not survive.
        """
        flags = WriteFlag.PARENTS if parents else WriteFlag(0)
        flags |= WriteFlag.EXCLUSIVE if exclusive else 0
        flags |= WriteFlag.DIGEST if digest or (digest is None and len(data) <= MIB) else 0
        return await self._transfer.write(path, data, if_match=if_match, flags=flags, mode=mode)

    async def stat(
        self, paths: Iterable[str], *, digest: bool = False, claim: bool = False
    ) -> builtins.list[FileStat | PathError]:
        """What `lstat` says of each path, in order, in one round trip; a `PathError` in the place of what has none.

        `digest` adds the SHA-256 of regular files; `claim` judges the path as an artifact (links resolved, directories
        counted and hashed).
        """
        return await self._files.stat(paths, digest=digest, claim=claim)

    async def list(self, path: str = ".", *, depth: int = 1, max_entries: int = 10_000) -> Listing:
        """The entries below a directory, sorted; without `.kinfold`."""
        return await self._files.list(path, depth=depth, max_entries=max_entries)

    async def snapshot(self, max_entries: int = 1_000_000) -> Snapshot:
        """Metadata of the whole workspace, in one request."""
        return await self._files.snapshot(max_entries)

    async def make_dir(self, path: str, *, parents: bool = True, mode: int = 0) -> FileStat:
        """Make a directory; with `parents` an existing one is fine."""
        return await self._files.make_dir(path, mode=mode, parents=parents)

    async def remove(self, path: str, *, recursive: bool = False) -> int:
        """Remove a file, a link or an empty directory (`recursive`: any); how many entries went."""
        return await self._files.remove(path, recursive=recursive)

    async def rename(self, a: str, b: str, *, replace: bool = False) -> FileStat:
        """Rename within the workspace; an existing `b` is a `conflict` unless `replace`."""
        return await self._files.rename(a, b, replace=replace)

    async def symlink(self, target: str, path: str) -> FileStat:
        """Make a symbolic link; a target that leaves the workspace is `path_escape`."""
        return await self._files.symlink(target, path)

    async def open_writer(self, path: str, mode: int = 0) -> FileWriter:
        """Write a file of any size piece by piece; it replaces the old one at `finish`."""
        return await self._transfer.open_writer(path, mode=mode)

    def archive(self, path: str = ".", *, limits: ArchiveLimits | None = None) -> AsyncGenerator[bytes, None]:
        """A tar stream of what lies at and below `path`: files, directories and links.

        What is of other kinds is left out, and so is a link that leads out of what is archived.
        """
        return pack(self, path, limits or ArchiveLimits())

    async def extract(
        self, stream: AsyncIterator[bytes], path: str = ".", *, limits: ArchiveLimits | None = None
    ) -> Extracted:
        """Unpack a tar stream below `path`, inside the container. Raises `PathError` for a hostile or broken one."""
        return await unpack(self, stream, path, limits or ArchiveLimits())

    # --- the end ----------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """End all execs, close the channel, destroy the container; of a detached sandbox only close the channel."""
        if self._closed:
            return
        self._closed = True
        with anyio.CancelScope(shield=True), anyio.move_on_after(_CLOSE_TIMEOUT) as scope:
            try:
                if self._lifetime is not None:
                    await self._lifetime.aclose()
                await self._end_execs()
            finally:
                try:
                    if not self._spec.detached:
                        await self._provider.destroy(self._ref)
                finally:
                    if self._on_close is not None:
                        await self._on_close()
        if scope.cancelled_caught:
            raise SandboxError(
                f"closing {self.id} took longer than {_CLOSE_TIMEOUT:g} s",
                hint="`kinfold reap` removes what is left",
            )

    def on_egress(self, told: OnEgress) -> None:
        """Have each attempt of a program to reach the world told to `told`, when it has ended."""
        if self._egress is not None:
            self._egress.on_attempt = told

    async def end_egress(self) -> None:
        """Cut every connection to the world and allow no more; all attempts have been told of then."""
        if self._egress is not None:
            await self._egress.aclose()

    async def _end_execs(self) -> None:
        try:
            if not self._spec.detached and self._link.alive:
                await self._execs.end_all(_END_TIMEOUT)
        except SandboxLost:
            return  # nothing can be ended any more, and destroying it is what comes next
        finally:
            await self.end_egress()
            await self._execs.aclose()
            await self._link.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()
