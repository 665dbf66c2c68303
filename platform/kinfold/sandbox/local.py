"""The supervisor as a plain child process: for tests and for trying things. It is no sandbox and says so.

Programs run as the caller's own uid, see the whole machine and can leave: only the API is that of a sandbox.
`/workspace` in file requests means the workspace's own directory; inside execs only relative paths hold.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType

import anyio
import anyio.to_thread

from kinfold.config import state_dir as default_state_dir
from kinfold.errors import ConfigError, SandboxLost, StartFailed, Unenforceable
from kinfold.sandbox.allowlist import Allowlist
from kinfold.sandbox.base import ByteStream, Control, ProbeReport, SandboxRef, SandboxSpec
from kinfold.sandbox.binary import supervisor_path
from kinfold.sandbox.dial import Listener
from kinfold.sandbox.lifetime import Lifetime, Terms
from kinfold.sandbox.sandbox import Sandbox
from kinfold.sandbox.state_files import private_dir

_LOG = logging.getLogger("kinfold.sandbox.local")
_DIAL_TIMEOUT = 10.0
_TERM_TIMEOUT = 5.0
_SLACK = 0.05
"""Seconds by which a lease may lie ahead without that somebody else has used the sandbox."""
_WHY = "a local sandbox is a plain child process of this one"
_CONTROLS = (
    "memory",
    "swap",
    "pids",
    "cpu",
    "disk",
    "network",
    "seccomp",
    "no_new_privileges",
    "read_only_root",
    "supervisor_isolation",
)


@dataclass(slots=True, kw_only=True)
class _Local:
    """One supervisor and what belongs to it."""

    ref: SandboxRef
    spec: SandboxSpec
    spec_hash: str
    process: subprocess.Popen[bytes]
    folder: Path
    """Sockets, home and log: private, and removed at the end."""
    made: Path | None
    """The workspace's directory, where kinfold made it."""
    terms: Terms
    lease: float | None = None
    """Seconds since the epoch; moved on by whoever uses it."""


class LocalProvider:
    """A `Provider` without any isolation. Sandboxes live at most as long as this object: `aclose` destroys them."""

    name = "local"

    def __init__(self, state_dir: Path | None = None) -> None:
        self._state_dir = state_dir
        self._locals: dict[str, _Local] = {}
        self._ended: dict[str, str] = {}
        """Why, of those whose time was over."""

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A supervisor of its own for `spec.workspace`. Raises `ConfigError`, `StartFailed`, `Unenforceable`."""
        if spec.strict:
            raise Unenforceable(
                f"none of the controls is enforced: {_WHY}", hint="use DockerProvider, or `strict=False` for a trial"
            )
        spec_hash = hashlib.sha256(spec.model_dump_json().encode()).hexdigest()
        known = next((one for one in self._locals.values() if spec.name and one.spec.name == spec.name), None)
        if known is not None:
            if known.spec_hash != spec_hash:
                raise ConfigError(
                    f"a sandbox named {spec.name!r} exists with another specification",
                    hint="destroy it first, or choose another name",
                )
            return await self.connect(known.ref)
        local = await anyio.to_thread.run_sync(self._start, spec, spec_hash)
        self._locals[local.ref.id] = local
        _LOG.warning("sandbox %s is no sandbox: %s", local.ref.id, _WHY)
        sandbox = self._sandbox(local, spec, ends=True)
        try:
            await sandbox.open()
        except BaseException as error:
            with anyio.CancelScope(shield=True):
                words = await anyio.to_thread.run_sync(_log_tail, local.folder)
                await self.destroy(local.ref)
            if isinstance(error, StartFailed) and words:
                raise StartFailed(f"{error.message}; it said: {words}", hint=error.hint) from error
            raise
        return sandbox

    def _start(self, spec: SandboxSpec, spec_hash: str) -> _Local:
        binary = supervisor_path()
        sandbox_id = f"sbx_{secrets.token_hex(8)}"
        workspace, made = self._workspace(spec, sandbox_id)
        folder = Path(tempfile.mkdtemp(prefix="kinfold-"))
        for name in ("dial", "home"):
            (folder / name).mkdir(mode=0o700)
        command = [
            *(str(binary), "init", "--local"),
            *("--root", str(workspace)),
            *("--home", str(folder / "home")),
            *("--dial", str(folder / "dial")),
            *("--orphan-grace", str(max(1, round(spec.orphan_grace)))),
        ]
        if spec.idle_pause is not None:
            command += ["--idle-pause", f"{spec.idle_pause * 1000:.0f}"]
        if isinstance(spec.network, Allowlist):
            command += ["--egress", "0"]
        with (folder / "log").open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", start_new_session=True
            )
        ref = SandboxRef(
            id=sandbox_id,
            provider=self.name,
            handle=str(process.pid),
            name=spec.name or "",
            workspace=str(workspace),
            created_at=datetime.now(UTC).isoformat(),
            labels=dict(spec.labels),
        )
        terms = Terms(created_at=time.time(), ttl=spec.ttl, idle_ttl=spec.idle_ttl)
        return _Local(ref=ref, spec=spec, spec_hash=spec_hash, process=process, folder=folder, made=made, terms=terms)

    def _sandbox(self, local: _Local, spec: SandboxSpec, *, ends: bool, carries: bool = True) -> Sandbox:
        """One more door to it. Who does not end it when its time is over still tells of its use."""
        local.lease = local.terms.lease(time.time())

        async def renew(lease: float) -> None:
            local.lease = max(lease, local.lease or 0.0)

        async def expire(reason: str, by_idle: bool) -> bool:
            used = by_idle and local.lease is not None and local.lease > time.time() + _SLACK
            if used or not ends:
                return False
            self._ended[local.ref.id] = reason
            await self.destroy(local.ref)
            return True

        lifetime = Lifetime(local.terms, expire=expire, renew=renew)
        return Sandbox(
            provider=self,
            ref=local.ref,
            spec=spec,
            not_enforced=_not_enforced(),
            lifetime=lifetime,
            carries=carries,
        )

    def _workspace(self, spec: SandboxSpec, sandbox_id: str) -> tuple[Path, Path | None]:
        if spec.workspace is not None:
            given = Path(spec.workspace).absolute()
            if given.is_symlink() or not given.is_dir() or given == Path("/"):
                raise ConfigError(
                    f"the workspace {spec.workspace} is no directory that can be used",
                    hint="name an existing directory: not a file, not a link, not /",
                )
            if spec.copy_from is not None:
                raise ConfigError("a workspace is either given or copied", hint="drop `workspace` or `copy_from`")
            return given, None
        if spec.copy_from is not None and not Path(spec.copy_from).is_dir():
            raise ConfigError(f"{spec.copy_from} is no directory to copy", hint="name an existing directory")
        state = private_dir(self._state_dir or default_state_dir())
        root = private_dir(private_dir(state / "local") / sandbox_id)
        made = root / "workspace"
        if spec.copy_from is not None:
            shutil.copytree(spec.copy_from, made, symlinks=True)
        else:
            made.mkdir(mode=0o755)
        return made, root

    async def connect(self, ref: SandboxRef) -> Sandbox:
        """Another `Sandbox` on a running one; closing it leaves the supervisor alone. Raises `SandboxLost`."""
        local = self._running(ref)
        spec = local.spec.model_copy(update={"detached": True})
        sandbox = self._sandbox(local, spec, ends=local.spec.detached, carries=False)
        try:
            await sandbox.open()
        except StartFailed as error:
            raise SandboxLost(error.message) from error
        return sandbox

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxRef]:
        """Those that this object made and that carry `labels`."""
        wanted = (labels or {}).items()
        return [
            replace(local.ref, state="running" if local.process.poll() is None else "exited")
            for local in self._locals.values()
            if wanted <= local.ref.labels.items()
        ]

    async def destroy(self, ref: SandboxRef) -> None:
        """End the supervisor and all it ran; no error when it is gone already."""
        local = self._locals.pop(ref.id, None)
        if local is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(_end, local)

    async def probe(self) -> ProbeReport:
        """Nothing is enforced here."""
        return ProbeReport(engine="local child process (no sandbox)", controls=_not_enforced())

    async def open_stream(self, ref: SandboxRef) -> ByteStream:
        """A stream that the supervisor dials. Raises `SandboxLost` when it has ended."""
        local = self._running(ref)
        async with Listener(local.folder / "dial", peer_uids=frozenset({os.geteuid()})) as listener:
            dialled = asyncio.ensure_future(listener.accept(_DIAL_TIMEOUT))
            try:
                while not dialled.done():
                    await asyncio.wait([dialled], timeout=0.5)
                    if not dialled.done():
                        self._running(ref)
                return dialled.result()
            finally:
                dialled.cancel()

    def _running(self, ref: SandboxRef) -> _Local:
        local = self._locals.get(ref.id)
        if local is None and ref.id in self._ended:
            raise SandboxLost(f"sandbox {ref.id} has ended: {self._ended[ref.id]}")
        if local is None:
            raise SandboxLost(f"there is no local sandbox {ref.id} in this process")
        code = local.process.poll()
        if code is not None:
            raise SandboxLost(f"the supervisor of {ref.id} ended with code {code}: {_log_tail(local.folder)}")
        return local

    async def aclose(self) -> None:
        """Destroy what is left."""
        for local in list(self._locals.values()):
            await self.destroy(local.ref)

    async def __aenter__(self) -> LocalProvider:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _not_enforced() -> tuple[Control, ...]:
    return tuple(Control(name=name, enforced=False, reason=_WHY) for name in _CONTROLS)


def _end(local: _Local) -> None:
    process = local.process
    process.terminate()
    try:
        process.wait(_TERM_TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    _remove(local.folder)
    if local.made is not None and local.spec.keep == 0:
        _remove(local.made)


def _remove(tree: Path) -> None:
    """Also where a program took a directory's permissions away."""
    for folder, names, _ in os.walk(tree):
        for name in names:
            path = Path(folder, name)
            if not path.is_symlink():
                path.chmod(0o700)
    shutil.rmtree(tree)


def _log_tail(folder: Path) -> str:
    try:
        return (folder / "log").read_bytes()[-500:].decode("utf-8", "replace").strip()
    except FileNotFoundError:
        return ""
