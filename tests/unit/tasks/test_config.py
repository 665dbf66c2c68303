"""Settings: which source wins, and what a wrong value says."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinfold.config import Settings, state_dir
from kinfold.errors import ConfigError


def test_flags_beat_the_environment_which_beats_the_file_which_beats_the_defaults(tmp_path: Path) -> None:
    (tmp_path / "kinfold.toml").write_text('model = "file"\nimage = "file"\nnetwork = "open"\n')
    environ = {"KINFOLD_MODEL": "environment", "KINFOLD_IMAGE": "environment", "KINFOLD_SUPERVISOR": "/other/part"}
    settings = Settings.load({"model": "flag", "timeout": None}, cwd=tmp_path, environ=environ)
    assert (settings.model, settings.image, settings.network, settings.max_steps) == (
        "flag",
        "environment",
        "open",
        None,
    )


def test_an_unknown_key_names_its_line_and_what_was_meant(tmp_path: Path) -> None:
    (tmp_path / "kinfold.toml").write_text('# mine\nmodel = "x"\n\nmax_stepps = 3\n')
    with pytest.raises(ConfigError, match=r"kinfold\.toml:4: unknown key 'max_stepps'") as error:
        Settings.load(cwd=tmp_path, environ={})
    assert "did you mean 'max_steps'" in error.value.hint


@pytest.mark.parametrize(
    ("text", "environ", "flags", "says"),
    [
        ("timeout = -1\n", {}, {}, r"kinfold\.toml:1: timeout"),
        ("", {"KINFOLD_MAX_STEPS": "many"}, {}, "KINFOLD_MAX_STEPS: max_steps"),
        ("", {}, {"network": "half"}, "--network: network"),
        ("", {}, {"colour": "red"}, "--colour: unknown setting"),
        ("model = \n", {}, {}, "line 1"),
        ("[model]\nname = 1\n", {}, {}, r"kinfold\.toml:1: model"),
    ],
)
def test_a_wrong_value_names_where_it_stands(
    text: str, environ: dict[str, str], flags: dict[str, str], says: str, tmp_path: Path
) -> None:
    (tmp_path / "kinfold.toml").write_text(text)
    with pytest.raises(ConfigError, match=says) as error:
        Settings.load(flags, cwd=tmp_path, environ=environ)
    assert error.value.hint


def test_the_state_directory_is_named_or_the_standards(tmp_path: Path) -> None:
    assert state_dir({"KINFOLD_STATE": "/s"}) == Path("/s")
    assert state_dir({"XDG_STATE_HOME": "/x", "HOME": "/h"}) == Path("/x/kinfold")
    assert state_dir({"XDG_STATE_HOME": "relative", "HOME": "/h"}) == Path("/h/.local/state/kinfold")
    assert Settings.load({"state_dir": "/flag"}, cwd=tmp_path, environ={"KINFOLD_STATE": "/s"}).state_dir == Path(
        "/flag"
    )
