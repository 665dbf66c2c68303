"""`--replay` stands for the model, and nothing may stand beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinfold.cli.run import RunOptions
from kinfold.errors import ConfigError


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
