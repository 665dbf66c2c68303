"""`kinfold sandbox …` and `kinfold reap`: sandboxes by hand. A created one is detached: its lease alone keeps it."""

from __future__ import annotations

import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

import anyio

from kinfold.cli.ending import Outlet, one_line, say_error
from kinfold.cli.foreground import run_async
from kinfold.cli.run import load_settings, make_provider, make_spec
from kinfold.config import Settings
from kinfold.errors import NotFound, StoreError
from kinfold.sandbox.base import ExecRequest, ExecResult, Provider, SandboxRef
from kinfold.sandbox.process import Process
from kinfold.sandbox.record import RecordList, SandboxRecord
from kinfold.sandbox.sandbox import Sandbox


def create_command(
    flags: Mapping[str, str | None], *, workspace: str | None, copy: bool, name: str | None, ttl: float
) -> int:
    """Create a detached sandbox; its id goes to standard output."""
    spec = make_spec(load_settings(flags), workspace=workspace, copy=copy, name=name, ttl=ttl, detached=True)

    async def create() -> SandboxRef:
        async with make_provider(load_settings({})) as provider:
            sandbox = await provider.create(spec)
            ref = sandbox.ref
            await sandbox.aclose()
            return ref

    ref = run_async(create)
    print(ref.id)
    print(f"files: {one_line(ref.workspace)}", file=sys.stderr)
    return 0


def list_command() -> int:
    """One line per sandbox: id, name, state, image, workspace."""

    async def listed() -> list[SandboxRef]:
        async with make_provider(load_settings({})) as provider:
            return await provider.list()

    for ref in run_async(listed):
        print(one_line("\t".join((ref.id, ref.name or "-", ref.state, ref.image, ref.workspace))))
    return 0


def list_all_command() -> int:
    """One line per record, the oldest first: id, name, state, times of begin and end, and why it ended."""

    async def listed() -> RecordList:
        async with make_provider(load_settings({})) as provider:
            return await provider.records.list(gone=True)

    found = run_async(listed)
    for record in found.records:
        ended = _moment(record.ended_at) if record.ended_at is not None else "-"
        fields = (record.id, record.name or "-", record.state, _moment(record.created_at), ended, record.reason or "-")
        print(one_line("\t".join(fields)))
    for broken in found.broken:
        say_error(f"{broken.source} cannot be read: {broken.reason}")
    return 0


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))


def exec_command(wanted: str, command: Sequence[str], *, cwd: str, timeout: float | None, stdin: bool) -> int:
    """Run a program; its output is passed through as it comes and its exit code returned."""

    async def execute(sandbox: Sandbox) -> int:
        data = await anyio.to_thread.run_sync(sys.stdin.buffer.read) if stdin else None
        request = ExecRequest(command=list(command), cwd=cwd, timeout=timeout, stdin=data, stream=True)
        process = await sandbox.start(request)
        try:
            await _pass_through(process)
            result = await process.wait()
        except BaseException:  # Ctrl-C, or nobody reads any more: the program goes with its caller
            with anyio.CancelScope(shield=True):
                await process.kill(request.grace)
            raise
        return exit_code_of_result(result)

    return with_sandbox(wanted, execute)


def exit_code_of_result(result: ExecResult) -> int:
    """A program's own exit code; where it had none, why it ended is said."""
    if result.exit_code is not None:
        return result.exit_code
    say_error(f"the program was ended: {result.ended_by}")
    return 128 + result.signal if result.signal else 1


async def _pass_through(process: Process) -> None:
    targets = {"stdout": Outlet(sys.stdout), "stderr": Outlet(sys.stderr)}
    async for piece in process.output():
        targets[piece.stream].write(piece.data)


def read_command(wanted: str, path: str) -> int:
    """The file's bytes on standard output."""

    async def read(sandbox: Sandbox) -> int:
        target = Outlet(sys.stdout)
        async for chunk in sandbox.read_stream(path):
            target.write(chunk)
        return 0

    return with_sandbox(wanted, read)


def write_command(wanted: str, path: str) -> int:
    """Standard input into the file, whole or not at all."""

    async def write(sandbox: Sandbox) -> int:
        data = await anyio.to_thread.run_sync(sys.stdin.buffer.read)
        stat = await sandbox.write(path, data)
        print(f"{one_line(stat.path)}: {stat.size:,} bytes", file=sys.stderr)
        return 0

    return with_sandbox(wanted, write)


def pause_command(wanted: str) -> int:
    """Stop all that runs in the sandbox; files can still be read and written."""

    async def pause(sandbox: Sandbox) -> int:
        await sandbox.pause()
        return 0

    return with_sandbox(wanted, pause)


def resume_command(wanted: str) -> int:
    """Let all that a pause stopped run on."""

    async def resume(sandbox: Sandbox) -> int:
        await sandbox.resume()
        return 0

    return with_sandbox(wanted, resume)


def destroy_command(wanted: str) -> int:
    """End the sandbox."""

    async def destroy() -> None:
        async with make_provider(load_settings({})) as provider:
            await provider.destroy(await find_sandbox(provider, wanted))

    run_async(destroy)
    return 0


def reap_command(*, dry_run: bool, by_labels: bool, abandon: bool) -> int:
    """One line per thing removed, with the reason; exit 0 also when there was nothing."""
    from kinfold.sandbox.docker import reaper

    async def reap() -> list[reaper.Reaped]:
        settings = load_settings({})
        open_tasks = None if abandon else await _open_tasks(settings)

        def resumable(record: SandboxRecord) -> bool:
            task = record.labels.get("task")
            return not abandon and (open_tasks is None or task is None or task in open_tasks)

        async with make_provider(settings) as provider:
            return await reaper.reap(provider, dry_run=dry_run, by_labels=by_labels, resumable=resumable)

    for item in run_async(reap):
        verb = "removed" if item.removed else "left" if item.kept else "would remove" if dry_run else "could not remove"
        print(one_line(f"{verb} {item.kind} {item.name}: {item.reason}"))
    return 0


async def _open_tasks(settings: Settings) -> frozenset[str] | None:
    """The tasks that have not ended; None where the store does not say."""
    from kinfold.tasks.store.door import Store
    from kinfold.tasks.store.tasks import StoredTasks

    try:
        async with Store(settings.state_dir) as store:
            return await StoredTasks(store).open_ids()
    except StoreError:
        return None  # its own reasons are told where the records are read


async def find_sandbox(provider: Provider, wanted: str) -> SandboxRef:
    """By id or name. Raises `NotFound`."""
    for ref in await provider.list():
        if wanted in (ref.id, ref.name):
            return ref
    raise NotFound(f"no sandbox {wanted!r}", hint="`kinfold sandbox list` shows the ones there are")


def with_sandbox(wanted: str, work: Callable[[Sandbox], Awaitable[int]]) -> int:
    """The exit code of `work` on a running sandbox, whoever made it; it lives on afterwards."""

    async def connected() -> int:
        async with make_provider(load_settings({})) as provider:
            sandbox = await provider.connect(await find_sandbox(provider, wanted))
            try:
                return await work(sandbox)
            finally:
                await sandbox.aclose()

    return run_async(connected)
