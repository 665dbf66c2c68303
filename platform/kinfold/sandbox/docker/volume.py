"""The named volume that brings the supervisor into any image: filled once per engine and version, digest checked.

The engine re-creates a missing volume *empty* when a container names it. So once a sandbox's container exists and holds
the volume in place, its content is read back before that container starts; again when the volume is another one.
Reading and filling go through a helper container that is never started: no code of anybody's has run in it. (Not
through the sandbox's own: a look into that leaves its mount points behind as directories.)
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import tarfile
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any

import anyio

from kinfold.errors import StartFailed
from kinfold.sandbox.docker import labels
from kinfold.sandbox.docker.client import Engine, EngineRefused
from kinfold.sandbox.docker.create import BIN, SUPERVISOR
from kinfold.sandbox.owner import Owner

if TYPE_CHECKING:
    from docker.api.client import APIClient

MAX_ARCHIVE = 16 << 20
"""Bytes of an archive from the engine that are looked at."""
FILL_DEADLINE = 60.0
PREFIX = "kinfold-supervisor-"
_NAME = SUPERVISOR.rpartition("/")[2]


class SupervisorVolume:
    """The volume of one supervisor binary on one engine."""

    def __init__(self, engine: Engine, binary: bytes, instance: str) -> None:
        self._engine = engine
        self._binary = binary
        self._instance = instance
        self._lock = anyio.Lock()
        self._verified = ""
        """When the volume was made whose content we have read back; a re-created one has another birth."""
        self.digest = hashlib.sha256(binary).hexdigest()
        self.name = f"{PREFIX}{self.digest[:20]}"
        self.labels = {labels.ROLE: labels.ROLE_SUPERVISOR, labels.DIGEST: self.digest, labels.INSTANCE: instance}
        """Whoever names the volume first makes it, so every mount carries them."""

    async def ensure(self, image_id: str) -> None:
        """Make sure that a container which is created, and not started, will run our binary; `image_id` is any image.

        Raises `StartFailed` where the volume stays wrong.
        """
        born = await self._born()
        if self._verified and born == self._verified:
            return
        async with self._lock:
            async with self._helper(image_id) as helper:
                if not await self._holds(helper):
                    await self._fill(helper)
                    if not await self._holds(helper):
                        raise StartFailed(
                            f"the volume {self.name} does not hold the supervisor after it was filled",
                            hint=f"`docker volume rm {self.name}` and try again",
                        )
            self._verified = born

    async def _born(self) -> str:
        found = await self._engine.call("look at the supervisor's volume", lambda api: api.inspect_volume(self.name))
        return str(found.get("CreatedAt") or "")

    async def _holds(self, container: str) -> bool:
        digest = await self._engine.call(
            "read the supervisor back", lambda api: _digest_in(api, container), deadline=FILL_DEADLINE
        )
        return digest == self.digest

    async def _fill(self, helper: str) -> None:
        await self._engine.call(
            "fill the supervisor's volume",
            lambda api: api.put_archive(helper, BIN, _packed(self._binary)),
            deadline=FILL_DEADLINE,
        )

    @contextlib.asynccontextmanager
    async def _helper(self, image_id: str) -> AsyncIterator[str]:
        config = self._filler(image_id)
        made = await self._engine.call(
            "create the volume's helper", lambda api: api.create_container_from_config(config), settle=True
        )
        ident = str(made["Id"])
        try:
            yield ident
        finally:
            with anyio.CancelScope(shield=True):
                await self._engine.call(
                    "remove the volume's helper",
                    lambda api: api.remove_container(ident, force=True, v=True),
                    settle=True,
                )

    def _filler(self, image_id: str) -> dict[str, Any]:
        return {
            "Image": image_id,
            "Entrypoint": [SUPERVISOR],
            "Cmd": ["--version"],
            "User": "0:0",
            "Healthcheck": {"Test": ["NONE"]},
            "Labels": {
                labels.INSTANCE: self._instance,
                labels.ROLE: labels.ROLE_FILLER,
                labels.CREATED: str(int(time.time())),
                labels.OWNER: Owner.current().model_dump_json(),
            },
            "HostConfig": {
                "NetworkMode": "none",
                "CapDrop": ["ALL"],
                "LogConfig": {"Type": "none", "Config": {}},
                "Mounts": [
                    {
                        "Type": "volume",
                        "Source": self.name,
                        "Target": BIN,
                        "VolumeOptions": {"NoCopy": True, "Labels": self.labels},
                    }
                ],
            },
        }


def _packed(binary: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo(_NAME)
        member.size = len(binary)
        member.mode = 0o755
        archive.addfile(member, io.BytesIO(binary))
    return buffer.getvalue()


def _digest_in(api: APIClient, container: str) -> str | None:
    """sha256 of the supervisor as the container would see it; None where there is none."""
    import docker.errors

    try:
        pieces, _ = api.get_archive(container, SUPERVISOR)
    except docker.errors.NotFound:
        return None
    buffer = io.BytesIO()
    for piece in pieces:
        buffer.write(piece)
        if buffer.tell() > MAX_ARCHIVE:
            return None
    buffer.seek(0)
    try:
        with tarfile.open(fileobj=buffer, mode="r:") as archive:
            member = archive.next()
            content = archive.extractfile(member) if member is not None and member.isreg() else None
            return hashlib.sha256(content.read()).hexdigest() if content is not None else None
    except tarfile.TarError:
        return None


async def outdated(engine: Engine, instance: str, current: str) -> list[str]:
    """The volumes that this installation made for other versions of the supervisor."""
    filters = {"label": [f"{labels.ROLE}={labels.ROLE_SUPERVISOR}", f"{labels.INSTANCE}={instance}"]}
    found = await engine.call("list volumes", lambda api: api.volumes(filters=filters))
    names = (str(volume["Name"]) for volume in found.get("Volumes") or ())
    return sorted(name for name in names if name.startswith(PREFIX) and name != current)


async def remove_unused(engine: Engine, name: str) -> bool:
    """Remove a volume; False where a container uses it."""
    try:
        await engine.call("remove a volume", lambda api: api.remove_volume(name))
    except EngineRefused as error:
        if error.status == 404:
            return True
        if error.status == 409:
            return False
        raise
    return True
