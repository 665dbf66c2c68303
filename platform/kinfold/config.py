"""Settings: defaults < `kinfold.toml` of the current directory < environment (`KINFOLD_*`) < flags; one frozen object.

The library's functions take arguments and read no file; only `Settings.load`, which the command line and the server
call, looks around. The state directory is the exception: everybody asks `state_dir()`.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from kinfold.errors import ConfigError

FILE_NAME = "kinfold.toml"
STATE_VARIABLE = "KINFOLD_STATE"


def state_dir(environ: Mapping[str, str] | None = None) -> Path:
    """Where kinfold keeps what outlives a process: `$KINFOLD_STATE`, else `$XDG_STATE_HOME/kinfold`. Not created here.

    Always absolute. A relative `XDG_STATE_HOME` is ignored, as its standard says.
    """
    environ = os.environ if environ is None else environ
    if named := environ.get(STATE_VARIABLE):
        return Path(named).absolute()
    base = Path(environ.get("XDG_STATE_HOME") or "")
    if not base.is_absolute():
        base = Path(environ.get("HOME") or Path.home()) / ".local" / "state"
    return base / "kinfold"


class Settings(BaseModel):
    """What an operator can set once for all commands."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    state_dir: Path = Field(default_factory=state_dir)
    """Absolute; `KINFOLD_STATE` in the environment."""
    model: str | None = None
    """The main agent's model, as `models.resolve` takes it; None: nothing was named."""
    image: str = "kinfold/base"
    network: str = "none"
    """`none`, `open`, or `allow:HOST[:PORT],…`."""
    max_steps: int | None = Field(default=None, ge=1, le=10_000)
    """Of the main agent."""
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds, for the whole task."""
    budget: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """US dollars, for the whole task."""
    user: str | None = Field(default=None, pattern=r"^\d+(:\d+)?$")
    """`UID` or `UID:GID` of the agent inside the container."""
    user_id: str = Field(default="local", min_length=1, max_length=200)
    """Whose task it is, for records and bills."""
    agents: str | None = None
    """A file or directory of definitions, `store`, or `none`; None: the shipped ones."""
    engine_host: str | None = None
    """The container engine's address (`unix://…`, `tcp://…`); None: as the engine's own client finds it."""
    timezone: str = "UTC"

    @field_validator("state_dir")
    @classmethod
    def _absolute(cls, path: Path) -> Path:
        return path.expanduser().absolute()

    @field_validator("network")
    @classmethod
    def _network(cls, text: str) -> str:
        if text not in ("none", "open") and not text.startswith("allow:"):
            raise ValueError("none, open, or allow:HOST[:PORT],HOST…")
        return text

    @classmethod
    def load(
        cls, flags: Mapping[str, Any] = {}, *, cwd: Path | None = None, environ: Mapping[str, str] | None = None
    ) -> Settings:
        """The merged settings; a flag that is None was not given.

        Raises `ConfigError` that names the file and line, the variable or the flag that is wrong.
        """
        environ = os.environ if environ is None else environ
        path = (cwd or Path.cwd()) / FILE_NAME
        layers = (
            _Layer({"state_dir": state_dir(environ)}, lambda name: STATE_VARIABLE),
            _file_layer(path),
            _Layer(_from_environment(environ), _variable),
            _Layer({k: v for k, v in flags.items() if v is not None}, lambda name: f"--{name.replace('_', '-')}"),
        )
        values: dict[str, Any] = {}
        origin: dict[str, str] = {}
        for layer in layers:
            for name, value in layer.values.items():
                values[name], origin[name] = value, layer.place(name)
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            raise _wrong_value(error, origin) from None


class _Layer:
    """One source of values, and how to tell a person where a value of it stands."""

    def __init__(self, values: Mapping[str, Any], place: Any) -> None:
        self.values = values
        self.place = place


def _file_layer(path: Path) -> _Layer:
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return _Layer({}, str)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", hint=f"mend or remove {FILE_NAME}") from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}", hint="the file is TOML: `key = value` lines") from None

    def place(name: str) -> str:
        return f"{path}:{_line_of(text, name)}"

    for name in values:
        if name not in Settings.model_fields:
            raise ConfigError(f"{place(name)}: unknown key {name!r}", hint=_did_you_mean(name))
    return _Layer(values, place)


def _line_of(text: str, name: str) -> int:
    """The line on which a top-level key is set, or its table begins; 1 where it is written in some odd way."""
    wanted = re.compile(rf"""^\s*(\[+\s*)?["']?{re.escape(name)}["']?\s*[\].=]""")
    numbers = (number for number, line in enumerate(text.splitlines(), 1) if wanted.match(line))
    return next(numbers, 1)


def _did_you_mean(name: str) -> str:
    near = get_close_matches(name, Settings.model_fields, n=1)
    known = "known keys: " + ", ".join(sorted(Settings.model_fields))
    return f"did you mean {near[0]!r}? {known}" if near else known


def _variable(name: str) -> str:
    return STATE_VARIABLE if name == "state_dir" else f"KINFOLD_{name.upper()}"


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The set and non-empty KINFOLD_* variables that name a setting; others belong to other parts of kinfold."""
    found = {name: environ.get(_variable(name), "") for name in Settings.model_fields}
    return {name: value for name, value in found.items() if value}


def _wrong_value(error: ValidationError, origin: Mapping[str, str]) -> ConfigError:
    first = error.errors(include_url=False, include_context=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return ConfigError(f"{origin[name]}: unknown setting {name!r}", hint=_did_you_mean(name))
    reason = first["msg"].removeprefix("Value error, ")
    return ConfigError(f"{origin.get(name, name)}: {name}: {reason}", hint=f"got {first['input']!r}")
