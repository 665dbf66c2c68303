"""What the engine says of one container: whether it is the one we mean, how it stands, and why it died."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from kinfold.sandbox.docker import labels, sameness
from kinfold.sandbox.docker.client import Engine, EngineRefused

if TYPE_CHECKING:
    from docker.api.client import APIClient

Word = Literal["creating", "running", "paused", "exited", "missing"]
_WORDS: dict[str, Word] = {
    "created": "creating",
    "running": "running",
    "restarting": "running",
    "paused": "paused",
    "removing": "exited",
    "exited": "exited",
    "dead": "exited",
}


def state_word(status: str) -> Word:
    """The engine's word for a container's state, in ours."""
    return _WORDS.get(status, "exited")


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """One container as it was inspected."""

    id: str
    status: str
    labels: Mapping[str, str]
    created_at: str
    exit_code: int
    oom_killed: bool
    error: str
    pid: int
    parts: Mapping[str, str]
    """How it is made, as a digest per part."""

    @property
    def word(self) -> Word:
        """Its state, in our words."""
        return state_word(self.status)

    def is_sandbox(self, sandbox_id: str, instance: str) -> bool:
        """Whether it carries our labels for this sandbox."""
        own = self.labels
        return own.get(labels.SANDBOX) == sandbox_id and own.get(labels.INSTANCE) == instance


async def inspect(engine: Engine, ident: str) -> Container | None:
    """The container with this id or name; None where there is none."""
    try:
        found = await engine.call("look at the container", lambda api: api.inspect_container(ident))
    except EngineRefused as error:
        if error.status == 404:
            return None
        raise
    return read_container(found)


def read_container(found: Mapping[str, Any]) -> Container:
    """The engine's answer to an inspect."""
    state = found.get("State") or {}
    return Container(
        id=str(found["Id"]),
        status=str(state.get("Status") or "unknown"),
        labels=dict((found.get("Config") or {}).get("Labels") or {}),
        created_at=str(found.get("Created") or ""),
        exit_code=int(state.get("ExitCode") or 0),
        oom_killed=bool(state.get("OOMKilled")),
        error=str(state.get("Error") or ""),
        pid=int(state.get("Pid") or 0),
        parts=sameness.parts_of(found),
    )


async def death_reason(engine: Engine, container: Container) -> str:
    """Why a container that does not run ended, from what the engine kept of it."""
    if container.status == "created":
        return f"it was never started{': ' + container.error if container.error else ''}"
    if container.oom_killed or (container.exit_code == 137 and await _ran_out_of_memory(engine, container)):
        return f"its supervisor was killed when the sandbox ran out of memory (exit code {container.exit_code})"
    if container.exit_code == 137:
        return "its supervisor was killed from outside (exit code 137)"
    if container.exit_code == 143 or container.exit_code == 0:
        return f"it was stopped (exit code {container.exit_code})"
    words = f": {container.error}" if container.error else ""
    return f"its supervisor ended with exit code {container.exit_code}{words}"


async def _ran_out_of_memory(engine: Engine, container: Container) -> bool:
    """`State.OOMKilled` stays false on cgroup v1 where a child was killed first: the engine's events remember."""
    try:
        began = int(datetime.fromisoformat(container.created_at[:19] + "+00:00").timestamp())
    except ValueError:
        began = int(time.time()) - 3600

    def ask(api: APIClient) -> bool:
        filters = {"container": container.id, "event": "oom"}
        events: Any = api.events(since=began, until=int(time.time()) + 1, filters=filters, decode=True)
        return any(True for _ in events)

    return await engine.call("ask for the container's end", ask, deadline=10.0)
