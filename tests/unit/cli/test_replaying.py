"""`--replay` stands for the model, and nothing may stand beside it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from tests.unit.tasks.house import MemoryProvider

from kinfold import People, run
from kinfold.cli.run import RunOptions, people_of
from kinfold.errors import ConfigError
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.tools import policy


def test_a_replay_is_the_model() -> None:
    assert RunOptions(prompt="x").replayed is None
    assert RunOptions(prompt="x", replay=Path("a.cassette"), flags={"model": None}).replayed == "cassette:a.cassette"


@pytest.mark.parametrize(
    ("more", "words"),
    [({"flags": {"model": "sonnet"}}, "--replay and --model"), ({"record": Path("b")}, "--replay and --record")],
)
def test_a_replay_beside_a_model_or_a_recording_is_refused(more: dict[str, object], words: str) -> None:
    options = RunOptions(prompt="x", replay=Path("a.cassette"), **more)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=words) as caught:
        _ = options.replayed
    assert "leave out one" in caught.value.hint


@pytest.mark.anyio
@pytest.mark.parametrize("asking", [True, False])
async def test_a_replay_has_people_to_ask_where_the_recorded_run_had(tmp_path: Path, asking: bool) -> None:
    path = tmp_path / "a.cassette"
    common: Any = {"provider": MemoryProvider(), "model": ScriptedModel(lambda request: ScriptedReply(text="done"))}
    live = await run("x", record=path, people=People(answer=policy.load("default")) if asking else None, **common)
    by_name: dict[str, Any] = {"flags": {"model": f"cassette:{path}"}}
    for more in ({"replay": path}, {"replay": path, "answers": "default"}, by_name):  # without a terminal
        people = people_of(RunOptions(prompt="x", **more), contextlib.nullcontext)
        assert (people is not None) is asking
        again = await run("x", **{**common, "model": f"cassette:{path}"}, people=people)
        assert (again.summary, again.error) == (live.summary, None)
