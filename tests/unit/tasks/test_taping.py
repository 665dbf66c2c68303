"""What a task says of the cassette that it records or replays."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path

import pytest
from tests.unit.agent.stage import calls, complete
from tests.unit.tasks.house import MemoryProvider

from kinfold import ConfigError, TaskResult, run
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedModel, ScriptedReply

pytestmark = pytest.mark.anyio


def writer(request: ModelRequest) -> ScriptedReply:
    if request.step == 1:
        return calls(("write_file", {"path": "a.txt", "content": request.messages[0].text}))
    return complete("written", "a.txt")


async def record(path: Path, prompt: str = "do it") -> TaskResult:
    return await run(prompt, model=ScriptedModel(writer), provider=MemoryProvider(), record=path)


async def test_a_replay_does_the_same_and_costs_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.cassette"
    live = await record(path)
    again = await run("do it", model=f"cassette:{path}", provider=MemoryProvider())
    assert (again.status, again.summary, again.warnings) == ("completed", live.summary, live.warnings)
    assert [artifact.sha256 for artifact in again.artifacts] == [artifact.sha256 for artifact in live.artifacts]
    assert (again.cost, again.usage) == (0.0, live.usage)


async def test_a_stray_ends_the_task_by_a_diff_and_the_rest_of_the_recording_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.cassette"
    await record(path)
    strayed = await run("do that", model=f"cassette:{path}", provider=MemoryProvider())
    assert strayed.ended_by == "model_error"
    assert strayed.error is not None
    assert "\n-do it\n+do that\n" in strayed.error.message
    assert "--record" in strayed.error.hint
    assert re.search("the recording goes on: not asked for were .*step 1; .*step 2", " ".join(strayed.warnings))


async def test_a_recording_that_fails_is_a_warning_and_no_end_of_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    live = await record(tmp_path / "a.cassette")
    assert live.status == "completed"
    assert any("nothing was recorded" in warning and "No space left" in warning for warning in live.warnings)
    assert not list(tmp_path.glob("*cassette*"))


async def test_a_replay_is_not_recorded_again(tmp_path: Path) -> None:
    path, other = tmp_path / "a.cassette", tmp_path / "b.cassette"
    await record(path)
    with pytest.raises(ConfigError, match="a replay is not recorded"):
        await run("do it", model=f"cassette:{path}", provider=MemoryProvider(), record=other)
    assert list(tmp_path.glob("b.cassette*")) == []


async def test_a_task_that_never_began_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no sandbox"):
        await run(
            "x",
            model=ScriptedModel(writer),
            provider=MemoryProvider(ValueError("no sandbox")),
            record=tmp_path / "a.cassette",
        )
    assert not list(tmp_path.glob("*cassette*"))


async def test_a_recording_inside_of_the_workspace_is_refused_before_there_is_a_sandbox(tmp_path: Path) -> None:
    provider = MemoryProvider()
    (tmp_path / "ws").mkdir()
    with pytest.raises(ConfigError, match="lies inside the workspace"):
        await run(
            "x", model=ScriptedModel(writer), provider=provider, workspace=tmp_path / "ws", record=tmp_path / "ws" / "a"
        )
    assert provider.made == []
