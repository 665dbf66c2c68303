"""Sandboxes as containers of a Docker engine.

The order of `create` is the point: everything that can be refused is refused before anything exists; the intent is
recorded before the container; the directories are made by us; what the container will run is checked before it runs;
and nothing is handed out before a marker has proved that both sides see the same workspace.
"""

from __future__ import annotations

import logging
import os
import time
import weakref
from collections.abc import Awaitable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import anyio
import anyio.from_thread
import anyio.to_thread

from kinfold.config import state_dir as default_state_dir
from kinfold.errors import ConfigError, KinfoldError, LeaseLost, SandboxLost, StartFailed
from kinfold.sandbox.base import ByteStream, Control, ProbeReport, SandboxRef, SandboxSpec
from kinfold.sandbox.dial import Listener
from kinfold.sandbox.docker import ending, quota, state, workspaces
from kinfold.sandbox.docker import labels as engine_labels
from kinfold.sandbox.docker.admission import Admitted, admit
from kinfold.sandbox.docker.client import Engine, EngineFacts, EngineRefused
from kinfold.sandbox.docker.containers import START_DEADLINE, Containers
from kinfold.sandbox.docker.controls import Controls, Probing
from kinfold.sandbox.docker.create import Plan
from kinfold.sandbox.docker.intent import fresh_id, intent, terms
from kinfold.sandbox.docker.pool import Pool, PoolSpec
from kinfold.sandbox.docker.prepare import Prepared, prepare
from kinfold.sandbox.docker.proof import prove_workspace
from kinfold.sandbox.docker.pull import find_image
from kinfold.sandbox.docker.reaper import reap_dead
from kinfold.sandbox.docker.stream import open_engine_stream
from kinfold.sandbox.docker.workspaces import Layout, Making, Workspaces
from kinfold.sandbox.owner import Owner
from kinfold.sandbox.record import SandboxRecord
from kinfold.sandbox.records import FileRecords, Records
from kinfold.sandbox.sandbox import Sandbox

logger = logging.getLogger(__name__)

ChannelKind = Literal["auto", "engine", "socket"]
SOCKET_TIMEOUT = 2.0
"""Seconds that a supervisor has to dial the local socket before the engine's stream is taken."""
CLEANUP_DEADLINE = 60.0
LOOK_EVERY = 60.0
"""Seconds between two looks at what the dead left, on the occasion of a create."""


class DockerProvider:
    """Makes, finds and ends sandboxes on one engine. See `kinfold.sandbox.base.Provider` for what each method promises.

    `host` is an engine's address (None: DOCKER_HOST, else the current context); `state_dir` holds the made
    workspaces and, unless `records` is given, the records; `instance` tells installations that share an engine apart.
    `channel` chooses how `open_stream` reaches the supervisor; `auto` takes the local socket where it answers.
    `disk_reserve` bytes must be free on the state directory's file system, or no sandbox is made. `pool` keeps
    sandboxes warm from the moment that the provider is entered, or first used.
    """

    name = "docker"

    def __init__(
        self,
        *,
        host: str | None = None,
        state_dir: Path | None = None,
        records: Records | None = None,
        instance: str | None = None,
        channel: ChannelKind = "auto",
        disk_reserve: int = quota.RESERVE_BYTES,
        pool: PoolSpec | None = None,
    ) -> None:
        self.engine = Engine(host)
        self.workspaces = Workspaces(Path(state_dir).absolute() if state_dir is not None else default_state_dir())
        self.records: Records = records if records is not None else FileRecords(self.state_dir / "records")
        self._instance = instance
        self.channel: ChannelKind = channel
        self.disk_reserve = disk_reserve
        self._channels: dict[str, ChannelKind] = {}
        self._next_look = 0.0
        self._controls = Controls(self)
        self._names: weakref.WeakValueDictionary[str, anyio.Lock] = weakref.WeakValueDictionary()
        self._containers: Containers | None = None
        self.pool = Pool(self, pool) if pool is not None else None

    @property
    def state_dir(self) -> Path:
        """Where workspaces, records and measurements are kept."""
        return self.workspaces.state_dir

    @property
    def instance(self) -> str:
        """Which installation this is; stands on every container as a label."""
        if self._instance is None:
            self._instance = self.workspaces.instance()
        return self._instance

    @property
    def containers(self) -> Containers:
        """This instance's containers."""
        if self._containers is None:
            self._containers = Containers(self.engine, self.instance)
        return self._containers

    async def __aenter__(self) -> DockerProvider:
        if self.pool is not None:
            self.pool.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Remove the pool's warm sandboxes, release the connections to the engine; all others live on."""
        if self.pool is not None:
            await self.pool.aclose()
        await self.engine.aclose()

    # --- create -----------------------------------------------------------------------------------------------------

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """See `Provider.create`."""
        admitted = admit(spec, self.state_dir)
        await self._remove_dead()
        if spec.name is None:
            return await self.create_admitted(admitted)
        async with self._names.setdefault(spec.name, anyio.Lock()):
            return await self.create_admitted(admitted)

    async def _remove_dead(self) -> None:
        """What a process that crashed left is removed by the next one that makes a sandbox."""
        if time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + LOOK_EVERY
            await reap_dead(self)

    async def prepare(self, admitted: Admitted) -> Prepared:
        """See `kinfold.sandbox.docker.prepare.prepare`."""
        return await prepare(self, self._controls, admitted)

    async def create_admitted(self, admitted: Admitted, *, probing: Probing | None = None) -> Sandbox:
        """`create`, past the checks; a sandbox that serves to measure the controls does not ask for them."""
        prepared = await prepare(self, self._controls, admitted, probing=probing)
        if self.pool is not None and probing is None:
            self.pool.start()
            warm = await self.pool.claim(admitted, prepared)
            if warm is not None:
                return warm
        return await self.create_prepared(admitted, prepared)

    async def create_prepared(self, admitted: Admitted, prepared: Prepared, *, pooled: bool = False) -> Sandbox:
        """The cold way; `pooled`: to wait for a claim."""
        sandbox_id = fresh_id()
        workspace = self.workspaces.layout(sandbox_id, admitted.given).workspace
        record = intent(sandbox_id, admitted, workspace, (self.name, self.instance, prepared.facts.id), pooled=pooled)
        held = await self.records.intend(record)
        if held.id != record.id:
            return await self._existing(held, admitted)
        try:
            layout = await self._make_directories(record.id, admitted, prepared)
            plan = prepared.plan(self, layout, self.containers.labels_of(record))
            return await self._start(plan, record, prepared.settled.not_enforced)
        except BaseException as error:
            await self._discard(record, error)
            raise

    async def _make_directories(self, sandbox_id: str, admitted: Admitted, prepared: Prepared) -> Layout:
        facts, limits = prepared.facts, prepared.limits
        making = Making(
            id=sandbox_id,
            given=admitted.given,
            copy_from=admitted.copy_from,
            user=admitted.user,
            mapping=workspaces.Mapping(base=facts.uid_base, rootless=facts.rootless),
            size=quota.Size(bytes=limits.disk_bytes, inodes=limits.disk_inodes),
            bounded=prepared.settled.bounded,
        )
        return await anyio.to_thread.run_sync(self.workspaces.make, making, anyio.from_thread.check_cancelled)

    async def _start(self, plan: Plan, record: SandboxRecord, not_enforced: tuple[Control, ...]) -> Sandbox:
        container_id = await self.containers.run(plan, record)
        parts = await self.containers.parts(container_id)
        record = await self.records.adopt(record.model_copy(update={"handle": container_id, "parts": parts}))
        sandbox = Sandbox(
            provider=self,
            ref=self.ref(record, "running"),
            spec=plan.spec,
            not_enforced=not_enforced,
            lifetime=ending.lifetime(self, record, plan.spec, ends=True),
        )
        try:
            await sandbox.open()
            await prove_workspace(sandbox, plan.layout.workspace)
        except BaseException as error:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLEANUP_DEADLINE):
                await sandbox.aclose()
            if not isinstance(error, SandboxLost):
                raise
            raise StartFailed(
                f"the sandbox did not come up: {error.message}", hint=error.hint or "`kinfold doctor` checks the engine"
            ) from error
        return sandbox

    async def _discard(self, record: SandboxRecord, error: BaseException) -> None:
        """Take back all that a failed create made, whatever is happening around it."""
        reason = f"it could not be created: {str(error) or type(error).__name__}"
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLEANUP_DEADLINE):
            try:
                await ending.end(self, self.ref(record, "creating"), reason, keep=False)
                await ending.remove_directories(self, record, workspace=True)
            except KinfoldError as second:
                error.add_note(f"the failed sandbox {record.id} could not be removed: {second}; `kinfold reap` will")
                logger.warning("sandbox %s: cleaning up after a failed create: %s", record.id, second)

    async def _existing(self, held: SandboxRecord, admitted: Admitted) -> Sandbox:
        """The sandbox that has this name already: the same one, or a refusal."""
        if held.spec_hash != admitted.hash:
            raise ConfigError(
                f"a sandbox named {held.name!r} exists with another spec ({held.id})",
                hint=f"`kinfold sandbox destroy {held.name}`, or choose another name",
            )
        abandoned = held.abandoned
        if held.state == "intended":
            if held.owner.fate() == "dead":
                await self.destroy(self.ref(held, "missing"))
                return await self.create_admitted(admitted)
            held = await self._await_adoption(held)
        if abandoned:
            await self._checked(held.id, self.containers.check_same(held))
            held = await self._take_over(held)
        return await self._connect(held, borrowed=not abandoned and not held.detached, spec=admitted.spec)

    async def _take_over(self, held: SandboxRecord) -> SandboxRecord:
        """Of a sandbox whose owner is dead; of two that try, one becomes its owner."""
        try:
            return await self.records.adopt(held.model_copy(update={"owner": Owner.current(), "abandoned_at": None}))
        except LeaseLost as error:
            raise StartFailed(
                f"the sandbox named {held.name!r} cannot be taken over: {error}", hint="try again"
            ) from None

    async def _await_adoption(self, held: SandboxRecord) -> SandboxRecord:
        """Another process is just creating it."""
        with anyio.move_on_after(START_DEADLINE):
            while True:
                found = (await self.records.list(id=held.id)).records
                if not found:
                    raise StartFailed(f"sandbox {held.name!r} was being created and failed", hint="try again")
                if found[0].state == "adopted":
                    return found[0]
                await anyio.sleep(0.1)
        raise StartFailed(
            f"sandbox {held.name!r} is being created by {held.owner.describe()} and is not ready",
            hint="try again later",
        )

    # --- the controls -----------------------------------------------------------------------------------------------

    async def probe(self) -> ProbeReport:
        """See `Provider.probe`."""
        spec = SandboxSpec(keep=0.0)
        return await self._controls.report(spec, await find_image(self.engine, spec), fresh=True)

    # --- connect, list, destroy -------------------------------------------------------------------------------------

    async def connect(self, ref: SandboxRef) -> Sandbox:
        """See `Provider.connect`. What it gives back is borrowed: closing it leaves the sandbox alive."""
        known = await self.records.list(id=ref.id, gone=True)
        if not known.records:
            why = f": {known.broken[0].reason}" if known.broken else ""
            raise SandboxLost(f"sandbox {ref.id} is not known here{why}", hint="`kinfold sandbox list --all`")
        record = known.records[0]
        if not record.live:
            raise SandboxLost(f"sandbox {ref.id} has ended: {record.reason}", hint="`kinfold sandbox list --all`")
        if ref.handle and record.handle and ref.handle != record.handle:
            raise SandboxLost(f"sandbox {ref.id} was replaced by another container", hint="`kinfold sandbox list`")
        return await self._connect(record, borrowed=True)

    async def _connect(self, record: SandboxRecord, *, borrowed: bool, spec: SandboxSpec | None = None) -> Sandbox:
        """`spec`: of a caller who has it whole, with what travels per exec; the record's is without secrets."""
        await self._checked(record.id, self.containers.check_same(record))
        spec = spec or SandboxSpec.model_validate(record.spec)
        settled = await self._controls.settle(spec.model_copy(update={"strict": False}), record.image)
        if spec.idle_ttl is not None:
            record = await self.records.renew(record, terms(spec, record.created_at).lease(time.time()))
        # One that has an owner is ended by its owner; a borrower only keeps it from looking idle.
        lifetime = ending.lifetime(self, record, spec, ends=not borrowed or record.detached)
        carries = not borrowed or spec.detached  # an owner that lives has the credentials and the event log
        if borrowed:
            spec = spec.model_copy(update={"detached": True})
        sandbox = Sandbox(
            provider=self,
            ref=self.ref(record, "running"),
            spec=spec,
            not_enforced=settled.not_enforced,
            lifetime=lifetime,
            carries=carries,
        )
        await sandbox.open()
        return sandbox

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxRef]:
        """See `Provider.list`. A sandbox whose container has gone is listed as `missing`.

        Where records cannot be read, what the labels say is listed too: it must be possible to end it.
        """
        containers = await self.containers.listed()
        wanted = dict(labels or {})
        refs: list[SandboxRef] = []
        known = await self.records.list()
        for record in known.records:
            ours = record.instance == self.instance and record.provider == self.name and record.state != "released"
            if ours and wanted.items() <= record.labels.items():
                found = containers.get(record.id)
                word = state.state_word(found["State"]) if found is not None else "missing"
                refs.append(self.ref(record, "creating" if record.state == "intended" and found is None else word))
        if known.broken:
            recorded = {record.id for record in known.records}
            unread = [self._labelled_ref(item) for id, item in containers.items() if id not in recorded]
            refs += [ref for ref in unread if wanted.items() <= ref.labels.items()]
        return refs

    def _labelled_ref(self, item: Mapping[str, Any]) -> SandboxRef:
        """What a container's labels alone say of its sandbox."""
        own: dict[str, str] = item.get("Labels") or {}
        return SandboxRef(
            id=own.get(engine_labels.SANDBOX, ""),
            provider=self.name,
            handle=str(item["Id"]),
            name=own.get(engine_labels.NAME, ""),
            image=own.get(engine_labels.IMAGE, ""),
            state=state.state_word(item["State"]),
            labels=engine_labels.from_engine(own),
        )

    async def destroy(self, ref: SandboxRef) -> None:
        """See `Provider.destroy`. Raises `EngineUnavailable`; the record then stays for the reaper."""
        await ending.end(self, ref, f"{Owner.current().describe()} ended it")

    # --- the channel ------------------------------------------------------------------------------------------------

    async def open_stream(self, ref: SandboxRef) -> ByteStream:
        """See `Provider.open_stream`."""
        kind = self.channel_of(ref)
        if kind != "engine":
            stream = await self._dialled(ref)
            if stream is not None:
                return stream
        if kind == "auto":
            self._channels[ref.id] = "engine"
        try:
            return await open_engine_stream(self.engine, ref.handle)
        except EngineRefused as error:
            if error.status not in (404, 409):
                raise
            await self._check_alive(ref)
            raise

    async def _dialled(self, ref: SandboxRef) -> ByteStream | None:
        """The supervisor's own connection to us; None where it does not come and the engine's stream may do."""
        facts = await self.engine.facts()
        try:
            async with Listener(self.workspaces.layout(ref.id).dial, peer_uids=_peer_uids(facts)) as listener:
                stream = await self._accepted(listener, ref)
        except (StartFailed, OSError) as error:
            if self.channel == "socket":
                raise StartFailed(
                    f"the supervisor did not dial the local socket: {error}", hint="use the engine's stream"
                ) from error
            return None
        self._channels[ref.id] = "socket"
        return stream

    async def _accepted(self, listener: Listener, ref: SandboxRef) -> ByteStream:
        """In two steps, so that a container that is just dying is not waited for to the end."""
        try:
            return await listener.accept(SOCKET_TIMEOUT * 0.2)
        except StartFailed:
            await self._check_alive(ref)
            return await listener.accept(SOCKET_TIMEOUT * 0.8)

    async def _check_alive(self, ref: SandboxRef) -> None:
        await self._checked(ref.id, self.containers.check_alive(ref.id, ref.handle))

    async def _checked(self, sandbox_id: str, check: Awaitable[object]) -> None:
        """Of a check that fails: where somebody has ended it, the record knows better than the engine why."""
        try:
            await check
        except SandboxLost as lost:
            reason = await ending.noted_reason(self, sandbox_id)
            if not reason:
                raise
            raise SandboxLost(
                f"sandbox {sandbox_id} has ended: {reason}", hint="`kinfold sandbox list --all`"
            ) from lost

    def channel_of(self, ref: SandboxRef) -> ChannelKind:
        """How this sandbox's supervisor is reached; `auto` until a stream was opened."""
        return self._channels.get(ref.id, self.channel)

    def forget_channel(self, sandbox_id: str) -> None:
        """The container is gone; another one of that id is tried anew."""
        self._channels.pop(sandbox_id, None)

    def ref(self, record: SandboxRecord, word: state.Word) -> SandboxRef:
        """How others may name this record's sandbox."""
        return SandboxRef(
            id=record.id,
            provider=self.name,
            handle=record.handle,
            name=record.name,
            image=record.image,
            workspace=record.workspace,
            state=word,
            created_at=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(record.created_at)),
            labels=dict(record.labels),
        )


# --- on the way to a sandbox ----------------------------------------------------------------------------------------


def _peer_uids(facts: EngineFacts) -> frozenset[int]:
    """As whom the supervisor, uid 0 inside, appears on the host."""
    return frozenset({os.geteuid() if facts.rootless else facts.uid_base[0]})
