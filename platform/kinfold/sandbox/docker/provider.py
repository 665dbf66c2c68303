"""Sandboxes as containers of a Docker engine.

The order of `create` is the point: everything that can be refused is refused before anything exists; the intent is
recorded before the container; the directories are made by us; what the container will run is checked before it runs;
and nothing is handed out before a marker has proved that both sides see the same workspace.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

import anyio
import anyio.from_thread
import anyio.to_thread

from kinfold.errors import (
    ConfigError,
    KinfoldError,
    PathError,
    SandboxError,
    SandboxLost,
    StartFailed,
    Unenforceable,
)
from kinfold.sandbox.base import SCRATCH, ByteStream, Control, ProbeReport, SandboxRef, SandboxSpec
from kinfold.sandbox.binary import supervisor_path
from kinfold.sandbox.dial import Listener
from kinfold.sandbox.docker import labels, probe, state, workspaces
from kinfold.sandbox.docker.admission import Admitted, admit, fit_limits
from kinfold.sandbox.docker.client import Engine, EngineFacts, EngineRefused
from kinfold.sandbox.docker.create import Plan, engine_config
from kinfold.sandbox.docker.pull import find_image
from kinfold.sandbox.docker.stream import open_engine_stream
from kinfold.sandbox.docker.volume import SupervisorVolume
from kinfold.sandbox.docker.workspaces import Layout, Making, Workspaces
from kinfold.sandbox.records import FileRecords, Owner, Records, SandboxRecord, default_state_dir
from kinfold.sandbox.sandbox import Sandbox

logger = logging.getLogger(__name__)

ChannelKind = Literal["auto", "engine", "socket"]
SOCKET_TIMEOUT = 2.0
"""Seconds that a supervisor has to dial the local socket before the engine's stream is taken."""
START_DEADLINE = 60.0
REMOVE_DEADLINE = 30.0
CLEANUP_DEADLINE = 60.0
DETACHED_TTL = 86400.0
"""Lease of a detached sandbox whose spec names none: nothing lives for ever by mistake."""
_REMOTE_HINT = (
    "the engine does not see this machine's files: on another machine, or with kinfold itself in a container, "
    "KINFOLD_STATE and the workspace must lie on a path that is the same on both sides"
)


class DockerProvider:
    """Makes, finds and ends sandboxes on one engine. See `kinfold.sandbox.base.Provider` for what each method promises.

    `host` is an engine's address (None: DOCKER_HOST, else the current context); `state_dir` holds the made
    workspaces and, unless `records` is given, the records; `instance` tells installations that share an engine apart.
    `channel` chooses how `open_stream` reaches the supervisor; `auto` takes the local socket where it answers.
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
    ) -> None:
        self.engine = Engine(host)
        self.workspaces = Workspaces(Path(state_dir).absolute() if state_dir is not None else default_state_dir())
        self.records: Records = records if records is not None else FileRecords(self._state_dir / "records")
        self._instance = instance
        self._channel: ChannelKind = channel
        self._channels: dict[str, ChannelKind] = {}
        self._volume: SupervisorVolume | None = None
        self._probes = probe.ProbeCache(self._state_dir)
        self._names: dict[str, anyio.Lock] = {}
        self._set_ulimits = True

    @property
    def _state_dir(self) -> Path:
        return self.workspaces.state_dir

    @property
    def instance(self) -> str:
        """Which installation this is; stands on every container as a label."""
        if self._instance is None:
            self._instance = self.workspaces.instance()
        return self._instance

    async def __aenter__(self) -> DockerProvider:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Release the connections to the engine; sandboxes live on."""
        await self.engine.aclose()

    # --- create -----------------------------------------------------------------------------------------------------

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """See `Provider.create`."""
        admitted = admit(spec, self._state_dir)
        if spec.name is None:
            return await self._create(admitted)
        async with self._names.setdefault(spec.name, anyio.Lock()):
            return await self._create(admitted)

    async def _create(self, admitted: Admitted, *, probing: bool = False) -> Sandbox:
        spec = admitted.spec
        facts = await self.engine.facts()
        _check_runtime(spec, facts)
        limits = fit_limits(spec.limits, facts.cpus)
        image_id = await find_image(self.engine, spec)
        not_enforced = () if probing else await self._not_enforced(spec, image_id)
        record = self._intent(admitted, facts)
        held = await self.records.intend(record)
        if held.id != record.id:
            return await self._existing(held, admitted)
        try:
            layout = await self._make_directories(record.id, admitted, facts)
            plan = Plan(
                spec=spec,
                limits=limits,
                image_id=image_id,
                layout=layout,
                volume=self._supervisor_volume().name,
                labels=self._labels(record),
                ulimits=self._set_ulimits,
            )
            return await self._start(plan, record, not_enforced)
        except BaseException as error:
            await self._discard(record, error)
            raise

    def _intent(self, admitted: Admitted, facts: EngineFacts) -> SandboxRecord:
        """What is written down before anything exists."""
        spec = admitted.spec
        sandbox_id = f"sbx_{secrets.token_hex(8)}"
        now = time.time()
        return SandboxRecord(
            id=sandbox_id,
            provider=self.name,
            instance=self.instance,
            engine=facts.id,
            name=spec.name or "",
            spec_hash=admitted.hash,
            spec=spec.model_dump(mode="json", exclude={"secrets"}),
            image=spec.image,
            workspace=str(self.workspaces.layout(sandbox_id, admitted.given).workspace),
            made=admitted.given is None,
            owner=Owner.current(),
            detached=spec.detached,
            labels=dict(spec.labels),
            created_at=now,
            expires_at=_lease(spec, now, now),
        )

    async def _make_directories(self, sandbox_id: str, admitted: Admitted, facts: EngineFacts) -> Layout:
        making = Making(
            id=sandbox_id,
            given=admitted.given,
            copy_from=admitted.copy_from,
            user=admitted.user,
            mapping=workspaces.Mapping(base=facts.uid_base, rootless=facts.rootless),
            max_bytes=admitted.spec.limits.disk_bytes,
        )
        return await anyio.to_thread.run_sync(self.workspaces.make, making, anyio.from_thread.check_cancelled)

    async def _start(self, plan: Plan, record: SandboxRecord, not_enforced: tuple[Control, ...]) -> Sandbox:
        container_id = await self._run_container(plan, record)
        record = await self.records.adopt(record.id, handle=container_id)
        sandbox = Sandbox(provider=self, ref=self._ref(record, "running"), spec=plan.spec, not_enforced=not_enforced)
        try:
            await sandbox.open()
            await prove_workspace(sandbox, plan.layout)
        except SandboxLost as error:
            raise StartFailed(
                f"the sandbox did not come up: {error.message}", hint=error.hint or "`kinfold doctor` checks the engine"
            ) from error
        except BaseException:
            with anyio.CancelScope(shield=True), anyio.move_on_after(CLEANUP_DEADLINE):
                await sandbox.aclose()
            raise
        return sandbox

    async def _run_container(self, plan: Plan, record: SandboxRecord) -> str:
        """Create, check what it will run, start. Raises `StartFailed`."""
        try:
            container_id = await self._create_container(plan, record)
            await self._supervisor_volume().ensure(container_id, plan.image_id)
            await self.engine.call(
                "start the container", lambda api: api.start(container_id), deadline=START_DEADLINE, settle=True
            )
        except EngineRefused as error:
            if plan.ulimits and "rlimit" in error.explanation:
                self._set_ulimits = False
                await self._remove_container(labels.container_name(record.id), record.id)
                return await self._run_container(_without_ulimits(plan), record)
            raise _start_failed(error) from error
        return container_id

    async def _create_container(self, plan: Plan, record: SandboxRecord) -> str:
        config = engine_config(plan)
        made: dict[str, Any] = await self.engine.call(
            "create the container",
            lambda api: api.create_container_from_config(config, labels.container_name(record.id)),
            deadline=START_DEADLINE,
            settle=True,
        )
        return str(made["Id"])

    def _supervisor_volume(self) -> SupervisorVolume:
        if self._volume is None:
            self._volume = SupervisorVolume(self.engine, supervisor_path().read_bytes(), self.instance)
        return self._volume

    def _labels(self, record: SandboxRecord) -> dict[str, str]:
        return labels.to_engine(record.labels) | {
            labels.INSTANCE: self.instance,
            labels.SANDBOX: record.id,
            labels.ROLE: labels.ROLE_SANDBOX,
            labels.SPEC: record.spec_hash,
            labels.NAME: record.name,
            labels.IMAGE: record.image,
            labels.CREATED: str(int(record.created_at)),
        }

    async def _discard(self, record: SandboxRecord, error: BaseException) -> None:
        """Take back all that a failed create made, whatever is happening around it."""
        with anyio.CancelScope(shield=True), anyio.move_on_after(CLEANUP_DEADLINE):
            try:
                await self._remove_container(labels.container_name(record.id), record.id)
                await self._finish(record, keep=0.0)
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
        abandoned = not held.detached and held.owner.fate() == "dead"
        if held.state == "intended":
            if held.owner.fate() == "dead":
                await self.destroy(self._ref(held, "missing"))
                return await self._create(admitted)
            held = await self._await_adoption(held)
        if abandoned:
            held = await self.records.adopt(held.id, owner=Owner.current())
        return await self._connect(held, borrowed=not abandoned and not held.detached)

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
        return await self._probe(spec, await find_image(self.engine, spec), fresh=True)

    async def _probe(self, spec: SandboxSpec, image_id: str, *, fresh: bool = False) -> ProbeReport:
        facts = await self.engine.facts()
        key = probe.cache_key(facts, spec.runtime, self._supervisor_volume().digest, self._channel)
        async with self._probes.lock:
            report = None if fresh else self._probes.get(key)
            if report is None:
                report = await self._measure(facts, spec, image_id)
                self._probes.put(key, report)
        return report

    async def _measure(self, facts: EngineFacts, spec: SandboxSpec, image_id: str) -> ProbeReport:
        """One short sandbox, looked at from inside."""
        wanted = admit(SandboxSpec(image=image_id, pull="never", runtime=spec.runtime, keep=0.0), self._state_dir)
        limits = fit_limits(wanted.spec.limits, facts.cpus)
        async with await self._create(wanted, probing=True) as sandbox:
            seen = await probe.look_inside(sandbox)
            channel = self._channels.get(sandbox.id, "engine")
        controls = probe.judge(seen, limits, spec.runtime or facts.default_runtime, channel)
        return ProbeReport(engine=facts.describe(), controls=controls)

    async def _not_enforced(self, spec: SandboxSpec, image_id: str) -> tuple[Control, ...]:
        report = await self._probe(spec, image_id)
        missing = tuple(control for control in report.not_enforced if _demanded(control, spec))
        if missing and spec.strict:
            words = "; ".join(f"{control.name}: {control.reason}" for control in missing)
            raise Unenforceable(
                f"not enforced on this engine: {words}", hint="`kinfold doctor` lists them; strict=False goes without"
            )
        return missing

    # --- connect, list, destroy -------------------------------------------------------------------------------------

    async def connect(self, ref: SandboxRef) -> Sandbox:
        """See `Provider.connect`. What it gives back is borrowed: closing it leaves the sandbox alive."""
        found = (await self.records.list(id=ref.id)).records
        if not found or found[0].state == "released":
            raise SandboxLost(f"sandbox {ref.id} is not known here any more", hint="`kinfold sandbox list`")
        if ref.handle and found[0].handle and ref.handle != found[0].handle:
            raise SandboxLost(f"sandbox {ref.id} was replaced by another container", hint="`kinfold sandbox list`")
        return await self._connect(found[0], borrowed=True)

    async def _connect(self, record: SandboxRecord, *, borrowed: bool) -> Sandbox:
        await self._living(record.id, record.handle)
        spec = SandboxSpec.model_validate(record.spec)
        not_enforced = await self._not_enforced(spec.model_copy(update={"strict": False}), record.image)
        if spec.detached and spec.idle_ttl is not None:
            await self.records.renew(record.id, _lease(spec, record.created_at, time.time()))
        if borrowed:
            spec = spec.model_copy(update={"detached": True})
        sandbox = Sandbox(provider=self, ref=self._ref(record, "running"), spec=spec, not_enforced=not_enforced)
        await sandbox.open()
        return sandbox

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxRef]:
        """See `Provider.list`. A sandbox whose container has gone is listed as `missing`."""
        containers = await self._containers()
        wanted = dict(labels or {})
        refs: list[SandboxRef] = []
        for record in (await self.records.list()).records:
            ours = record.instance == self.instance and record.provider == self.name and record.state != "released"
            if ours and wanted.items() <= record.labels.items():
                found = containers.get(record.id)
                word = state.state_word(found["State"]) if found is not None else "missing"
                refs.append(self._ref(record, "creating" if record.state == "intended" and found is None else word))
        return refs

    async def _containers(self) -> dict[str, dict[str, Any]]:
        """Our containers by sandbox id, running or not, as the engine lists them."""
        filters = {"label": [f"{labels.INSTANCE}={self.instance}", f"{labels.ROLE}={labels.ROLE_SANDBOX}"]}
        found = await self.engine.call("list containers", lambda api: api.containers(all=True, filters=filters))
        return {str(item["Labels"].get(labels.SANDBOX, "")): item for item in found}

    async def destroy(self, ref: SandboxRef) -> None:
        """See `Provider.destroy`. Raises `EngineUnavailable`; the record then stays for the reaper."""
        found = (await self.records.list(id=ref.id)).records
        record = found[0] if found else None
        await self._remove_container(ref.handle or labels.container_name(ref.id), ref.id)
        self._channels.pop(ref.id, None)
        if record is not None and record.state != "released":
            await self._finish(record, keep=float(record.spec.get("keep", 0.0)))

    async def _remove_container(self, ident: str, sandbox_id: str) -> None:
        """Remove it if it is ours, and wait until it is gone."""
        container = await state.inspect(self.engine, ident)
        if container is None or not container.is_sandbox(sandbox_id, self.instance):
            return
        try:
            await self.engine.call(
                "remove the container",
                lambda api: api.remove_container(container.id, force=True, v=True),
                deadline=REMOVE_DEADLINE,
                settle=True,
            )
        except EngineRefused as error:
            if error.status not in (404, 409):
                raise
            if error.status == 409:
                await self._await_removal(container.id)

    async def _await_removal(self, container_id: str) -> None:
        """Somebody else is removing it."""
        try:
            await self.engine.call(
                "wait for the container's end",
                lambda api: api.wait(container_id, timeout=REMOVE_DEADLINE, condition="removed"),
                deadline=REMOVE_DEADLINE,
            )
        except EngineRefused as error:
            if error.status != 404:
                raise

    async def _finish(self, record: SandboxRecord, *, keep: float) -> None:
        """The container is gone: remove what is ours on the host, release the record."""
        keeps = record.made and keep > 0
        left = await anyio.to_thread.run_sync(lambda: self.workspaces.remove(record.id, workspace=not keeps))
        if not record.made:
            await anyio.to_thread.run_sync(workspaces.remove_scratch, record.workspace)
        if left:
            logger.warning("sandbox %s: left on the host: %s", record.id, "; ".join(left[:5]))
            await self.records.release(record.id, keep_until=time.time() + (keep if keeps else 0.0))
            return
        await self.records.release(record.id, keep_until=time.time() + keep if keeps else None)

    # --- the channel ------------------------------------------------------------------------------------------------

    async def open_stream(self, ref: SandboxRef) -> ByteStream:
        """See `Provider.open_stream`."""
        kind = self._channels.get(ref.id, self._channel)
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
            await self._living(ref.id, ref.handle)
            raise

    async def _dialled(self, ref: SandboxRef) -> ByteStream | None:
        """The supervisor's own connection to us; None where it does not come and the engine's stream may do."""
        facts = await self.engine.facts()
        dial = self.workspaces.layout(ref.id).dial
        try:
            async with Listener(dial, peer_uids=_peer_uids(facts)) as listener:
                stream = await listener.accept(SOCKET_TIMEOUT)
        except (StartFailed, OSError) as error:
            await self._living(ref.id, ref.handle)
            if self._channel == "socket":
                raise StartFailed(
                    f"the supervisor did not dial the local socket: {error}", hint="use the engine's stream"
                ) from error
            return None
        self._channels[ref.id] = "socket"
        return stream

    async def _living(self, sandbox_id: str, handle: str) -> None:
        """Raise `SandboxLost`, with the reason, unless this very container runs."""
        container = await state.inspect(self.engine, handle or labels.container_name(sandbox_id))
        if container is None:
            raise SandboxLost(f"the container of sandbox {sandbox_id} is gone", hint="somebody removed it")
        if not container.is_sandbox(sandbox_id, self.instance):
            raise SandboxLost(f"the container of sandbox {sandbox_id} was replaced", hint="`kinfold sandbox list`")
        if container.word == "paused":
            raise SandboxError(
                f"the container of sandbox {sandbox_id} is paused", hint=f"docker unpause {container.id[:12]}"
            )
        if container.word != "running":
            reason = await state.death_reason(self.engine, container)
            raise SandboxLost(f"sandbox {sandbox_id} ended: {reason}", hint="look at limits.memory_bytes, or the host")

    def _ref(self, record: SandboxRecord, word: state.Word) -> SandboxRef:
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


async def prove_workspace(sandbox: Sandbox, layout: Layout) -> None:
    """Prove that both sides see one tree, and that the agent may write to it.

    Raises `StartFailed` where the container sees another tree, `ConfigError` where the workspace cannot be written.
    """
    name = f"marker-{secrets.token_hex(8)}"
    content = secrets.token_hex(16).encode()
    try:
        await anyio.to_thread.run_sync(workspaces.write_marker, str(layout.workspace), name, content)
    except OSError as error:
        raise _not_writable(sandbox, layout, f"by this user ({error.strerror})") from error
    try:
        seen = await sandbox.read(f"{SCRATCH}/{name}")
    except PathError as error:
        seen = error.reason.encode()
    finally:
        await anyio.to_thread.run_sync(workspaces.remove_marker, str(layout.workspace), name)
    if seen != content:
        raise StartFailed(
            f"the container does not see the workspace {layout.workspace}: a marker written there is not in it",
            hint=_REMOTE_HINT,
        )
    if not probe.workspace_writable(sandbox):
        raise _not_writable(sandbox, layout, f"by the agent (uid {sandbox.agent_uid})")


def _not_writable(sandbox: Sandbox, layout: Layout, who: str) -> ConfigError:
    return ConfigError(
        f"the workspace {layout.workspace} cannot be written {who}",
        hint=f"`chown -R {sandbox.agent_uid} {layout.workspace}`, or work on a copy of it (`--copy`)",
    )


def _check_runtime(spec: SandboxSpec, facts: EngineFacts) -> None:
    if spec.runtime is not None and spec.runtime not in facts.runtimes:
        raise Unenforceable(
            f"the engine has no runtime {spec.runtime!r}; it has {', '.join(facts.runtimes) or 'none that it names'}",
            hint="install it in the engine's configuration, or leave `runtime` out",
        )


def _demanded(control: Control, spec: SandboxSpec) -> bool:
    if control.name == "network_none":
        return spec.network == "none"
    return control.name != "read_only_root" or spec.read_only_root


def _start_failed(error: EngineRefused) -> StartFailed:
    words = error.explanation
    if "bind source path does not exist" in words or "bind mount source" in words:
        return StartFailed(f"the engine cannot mount the sandbox's directories: {words}", hint=_REMOTE_HINT)
    if "exec format error" in words:
        return StartFailed(
            "the engine's machine has another processor than the supervisor was built for",
            hint="build it for that machine and set KINFOLD_SUPERVISOR",
        )
    return StartFailed(f"the container did not start: {words}", hint="`kinfold doctor` checks the engine")


def _without_ulimits(plan: Plan) -> Plan:
    return Plan(
        spec=plan.spec,
        limits=plan.limits,
        image_id=plan.image_id,
        layout=plan.layout,
        volume=plan.volume,
        labels=plan.labels,
        ulimits=False,
    )


def _peer_uids(facts: EngineFacts) -> frozenset[int] | None:
    """As whom the supervisor (uid 0 inside) appears on the host; None where that cannot be said."""
    return None if facts.rootless else frozenset({facts.uid_base[0]})


def _lease(spec: SandboxSpec, created: float, now: float) -> float | None:
    """When a detached sandbox may be reaped; an owned one has no lease."""
    if not spec.detached:
        return None
    ends = [created + (spec.ttl if spec.ttl is not None else DETACHED_TTL)]
    if spec.idle_ttl is not None:
        ends.append(now + spec.idle_ttl)
    return min(ends)
