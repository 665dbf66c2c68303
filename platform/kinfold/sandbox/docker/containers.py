"""The containers of one instance on one engine: run, found, checked and removed; nothing else is ever touched."""

from __future__ import annotations

import dataclasses
from typing import Any

from kinfold.errors import SandboxError, SandboxLost, StartFailed
from kinfold.sandbox.binary import supervisor_path
from kinfold.sandbox.docker import labels, sameness, state
from kinfold.sandbox.docker.client import Engine, EngineRefused
from kinfold.sandbox.docker.create import Plan, engine_config
from kinfold.sandbox.docker.intent import DETACHED_TTL
from kinfold.sandbox.docker.proof import REMOTE_HINT
from kinfold.sandbox.docker.volume import SupervisorVolume
from kinfold.sandbox.records import SandboxRecord

START_DEADLINE = 60.0
REMOVE_DEADLINE = 30.0


class Containers:
    """What kinfold does with containers. A container is ours when its labels name this instance and the sandbox."""

    def __init__(self, engine: Engine, instance: str) -> None:
        self._engine = engine
        self._instance = instance
        self._volume: SupervisorVolume | None = None
        self._set_ulimits = True
        """Off once the engine has said that it may not set them (rootless, with low limits of its own)."""

    async def run(self, plan: Plan, record: SandboxRecord) -> str:
        """Create, check what it will run, start. Raises `StartFailed`."""
        plan = plan if self._set_ulimits else dataclasses.replace(plan, ulimits=False)
        try:
            container_id = await self._create_container(plan, record)
            await self.volume().ensure(plan.image_id)
            await self._engine.call(
                "start the container", lambda api: api.start(container_id), deadline=START_DEADLINE, settle=True
            )
        except EngineRefused as error:
            if plan.ulimits and "rlimit" in error.explanation:
                self._set_ulimits = False
                await self.remove(record.id)
                return await self.run(plan, record)
            raise _start_failed(error) from error
        return container_id

    async def _create_container(self, plan: Plan, record: SandboxRecord) -> str:
        config = engine_config(plan)
        made: dict[str, Any] = await self._engine.call(
            "create the container",
            lambda api: api.create_container_from_config(config, labels.container_name(record.id)),
            deadline=START_DEADLINE,
            settle=True,
        )
        return str(made["Id"])

    def volume(self) -> SupervisorVolume:
        """Where this kinfold's supervisor is on the engine."""
        if self._volume is None:
            self._volume = SupervisorVolume(self._engine, supervisor_path().read_bytes(), self._instance)
        return self._volume

    def labels_of(self, record: SandboxRecord) -> dict[str, str]:
        """What stands on the container of this record."""
        return labels.to_engine(record.labels) | {
            labels.INSTANCE: self._instance,
            labels.SANDBOX: record.id,
            labels.ROLE: labels.ROLE_SANDBOX,
            labels.SPEC: record.spec_hash,
            labels.NAME: record.name,
            labels.IMAGE: record.image,
            labels.CREATED: str(int(record.created_at)),
            labels.OWNER: "" if record.detached else record.owner.model_dump_json(),
            labels.UNTIL: until(record),
        }

    async def remove(self, sandbox_id: str, handle: str = "") -> None:
        """Remove it if it is ours, and wait until it is gone."""
        container = await state.inspect(self._engine, handle or labels.container_name(sandbox_id))
        if container is None or not container.is_sandbox(sandbox_id, self._instance):
            return
        try:
            await self._engine.call(
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
            await self._engine.call(
                "wait for the container's end",
                lambda api: api.wait(container_id, timeout=REMOVE_DEADLINE, condition="removed"),
                deadline=REMOVE_DEADLINE,
            )
        except EngineRefused as error:
            if error.status != 404:
                raise

    async def parts(self, handle: str) -> dict[str, str]:
        """How this container is made, for its record. Raises `StartFailed` where it is gone already."""
        container = await state.inspect(self._engine, handle)
        if container is None:
            raise StartFailed("the container was removed while it started", hint="`kinfold doctor` checks the engine")
        return dict(container.parts)

    async def check_same(self, record: SandboxRecord) -> None:
        """Raise `SandboxLost` unless the record's very container runs and is what it was when it was noted."""
        container = await self.check_alive(record.id, record.handle)
        if not record.parts:
            raise SandboxLost(
                f"sandbox {record.id} was never ready, or is an older kinfold's: how it was made is not noted",
                hint=f"`kinfold sandbox destroy {record.name or record.id}`",
            )
        changed = sameness.changed_parts(record.parts, container.parts)
        if changed:
            raise SandboxLost(
                f"sandbox {record.id} is not what was made: its container's {', '.join(changed[:5])} changed",
                hint=f"somebody changed or restarted it; `kinfold sandbox destroy {record.name or record.id}`",
            )

    async def check_alive(self, sandbox_id: str, handle: str) -> state.Container:
        """Raise `SandboxLost`, with the reason, unless this very container runs."""
        container = await state.inspect(self._engine, handle or labels.container_name(sandbox_id))
        if container is None:
            raise SandboxLost(f"the container of sandbox {sandbox_id} is gone", hint="somebody removed it")
        if not container.is_sandbox(sandbox_id, self._instance):
            raise SandboxLost(f"the container of sandbox {sandbox_id} was replaced", hint="`kinfold sandbox list`")
        if container.word == "paused":
            raise SandboxError(
                f"the container of sandbox {sandbox_id} is paused", hint=f"docker unpause {container.id[:12]}"
            )
        if container.word != "running":
            reason = await state.death_reason(self._engine, container)
            hint = "raise limits.memory_bytes" if "out of memory" in reason else "see the engine's log and events"
            raise SandboxLost(f"sandbox {sandbox_id} ended: {reason}", hint=hint)
        return container

    async def log_driver(self, handle: str) -> str:
        """What the engine does with the container's own output, as it says itself."""
        found: dict[str, Any] = await self._engine.call(
            "look at the container", lambda api: api.inspect_container(handle)
        )
        return str(((found.get("HostConfig") or {}).get("LogConfig") or {}).get("Type") or "")

    async def listed(self) -> dict[str, dict[str, Any]]:
        """Our containers by sandbox id, running or not, as the engine lists them."""
        filters = {"label": [f"{labels.INSTANCE}={self._instance}", f"{labels.ROLE}={labels.ROLE_SANDBOX}"]}
        found = await self._engine.call("list containers", lambda api: api.containers(all=True, filters=filters))
        return {str(item["Labels"].get(labels.SANDBOX, "")): item for item in found}


def until(record: SandboxRecord) -> str:
    """The end of its `ttl`, for a label; a detached one always has one."""
    ttl = record.spec.get("ttl") or (DETACHED_TTL if record.detached else None)
    return "" if ttl is None else str(int(record.created_at + float(ttl)))


def _start_failed(error: EngineRefused) -> StartFailed:
    words = error.explanation
    if "bind source path does not exist" in words or "bind mount source" in words:
        return StartFailed(f"the engine cannot mount the sandbox's directories: {words}", hint=REMOTE_HINT)
    if "exec format error" in words:
        return StartFailed(
            "the engine's machine has another processor than the supervisor was built for",
            hint="build it for that machine and set KINFOLD_SUPERVISOR",
        )
    return StartFailed(f"the container did not start: {words}", hint="`kinfold doctor` checks the engine")
