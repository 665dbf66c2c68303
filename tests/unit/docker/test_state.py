"""Why a container died is read from what the engine kept of it."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kinfold.sandbox.docker.client import Engine
from kinfold.sandbox.docker.state import death_reason, read_container


class Events:
    """An engine that remembers these out-of-memory events, and nothing else."""

    def __init__(self, *events: dict[str, str]) -> None:
        self._events = events
        self.asked: dict[str, Any] = {}

    async def call(self, what: str, function: Any, **_: Any) -> Any:
        """As `Engine.call`, in this thread."""
        return function(self)

    def events(self, **question: Any) -> Any:
        """As the SDK's."""
        self.asked = question
        return iter(self._events)


async def _reason(engine: Events, **state: Any) -> str:
    found = {"Id": "abc", "Created": "2026-01-02T03:04:05.123456789Z", "Config": {"Labels": None}, "State": state}
    return await death_reason(cast(Engine, engine), read_container(found))


@pytest.mark.anyio
async def test_an_out_of_memory_kill_is_known_from_the_state_or_from_the_events() -> None:
    said = await _reason(Events(), Status="exited", ExitCode=137, OOMKilled=True)
    remembered = Events({"Action": "oom"})
    assert await _reason(remembered, Status="exited", ExitCode=137, OOMKilled=False) == said
    assert "ran out of memory" in said
    assert remembered.asked["since"] == 1767323045
    assert remembered.asked["filters"] == {"container": "abc", "event": "oom"}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({"Status": "exited", "ExitCode": 137}, "killed from outside (exit code 137)"),
        ({"Status": "exited", "ExitCode": 143}, "it was stopped (exit code 143)"),
        ({"Status": "exited", "ExitCode": 0}, "it was stopped (exit code 0)"),
        ({"Status": "exited", "ExitCode": 2, "Error": "no such device"}, "exit code 2: no such device"),
        ({"Status": "created", "ExitCode": 127, "Error": "exec failed"}, "never started: exec failed"),
    ],
)
async def test_every_other_end_is_named_as_what_it_was(state: dict[str, Any], words: str) -> None:
    assert words in await _reason(Events(), **state)
