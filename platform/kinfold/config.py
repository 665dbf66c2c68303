"""Settings: defaults < `kinfold.toml` of the current directory < environment (`KINFOLD_*`) < flags; one frozen object.

The library's functions take arguments and read no file; only `Settings.load`, which the command line and the server
call, looks around. The state directory is the exception: everybody asks `state_dir()`.
"""

from __future__ import annotations

import itertools
import os
import re
import tomllib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from kinfold.errors import ConfigError

FILE_NAME = "kinfold.toml"
STATE_VARIABLE = "KINFOLD_STATE"
RESUME_TTL = 3600.0
"""Seconds that a task's sandbox waits for a resume, where nothing else is said."""
TABLES = ("tiers", "users")
"""What only the file can set."""


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


def check_timezone(name: str) -> str:
    """`name` where it is a known IANA time zone; raises `ValueError`."""
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"unknown time zone {name!r}: use an IANA name such as Europe/Berlin or UTC") from None
    return name


class Tier(BaseModel):
    """What the tasks of some users may use: `[tiers.NAME]`. What is left out is not limited by the tier."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str | None = Field(default=None, min_length=1)
    """The main agent's."""
    subagent_model: str | None = Field(default=None, min_length=1)
    """Every subagent's, whatever its definition names."""
    compaction_model: str | None = Field(default=None, min_length=1)
    """Every subagent's, too."""
    max_steps: int | None = Field(default=None, ge=1, le=10_000)
    """Of the main agent, at most."""
    subagent_max_steps: int | None = Field(default=None, ge=1, le=1_000)
    """Of each subagent, at most."""
    concurrency: int | None = Field(default=None, ge=1, le=100)
    """Subagents of one task at once; a further one waits."""
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds, for one task, at most."""
    budget: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """US dollars, for one task, at most."""
    credits: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """US dollars that all tasks of one user may cost in a calendar month (UTC)."""
    name: str = ""
    """For the errors that speak of it; of one from a file, that of its table."""


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
    resume_ttl: float = Field(default=RESUME_TTL, ge=0, allow_inf_nan=False)
    """Seconds that the sandbox of a killed task waits for `kinfold resume`; 0: it is reaped at once."""
    timezone: str = "UTC"
    tier: str | None = None
    """Whose limits hold; None: what `users` says of `user_id`, else none."""
    tiers: dict[str, Tier] = {}
    """`[tiers.NAME]`."""
    users: dict[str, str] = {}
    """User id → the name of a tier."""

    @property
    def tier_name(self) -> str | None:
        """The tier of this task."""
        return self.tier or self.users.get(self.user_id)

    @field_validator("timezone")
    @classmethod
    def _timezone(cls, name: str) -> str:
        return check_timezone(name)

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
            _Layer({"state_dir": state_dir(environ)}, lambda name, *_: STATE_VARIABLE),
            _file_layer(path),
            _Layer(_from_environment(environ), lambda name, *_: _variable(name)),
            _Layer({k: v for k, v in flags.items() if v is not None}, lambda name, *_: f"--{name.replace('_', '-')}"),
        )
        values: dict[str, Any] = {}
        origin: dict[str, _Layer] = {}
        for layer in layers:
            for name, value in layer.values.items():
                values[name], origin[name] = value, layer
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
        return _Layer({}, lambda *_: str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}", hint=f"mend or remove {FILE_NAME}") from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: {error}", hint="the file is TOML: `key = value` lines") from None

    def place(*names: str) -> str:
        return f"{path}:{_line_of(text, *names)}"

    for name in values:
        if name not in Settings.model_fields:
            raise ConfigError(f"{place(name)}: unknown key {name!r}", hint=_did_you_mean(name))
    return _Layer(values, place)


def _line_of(text: str, name: str, *below: str) -> int:
    """The line on which a key is set, of the top or of a table below it; else where its table begins; else 1."""
    lines = list(enumerate(text.splitlines(), 1))
    for depth in range(len(below), 0, -1):
        header = ".".join((name, *below[:depth]))
        starts = [number for number, line in lines if _header(line) == header]
        if starts:
            return _line_in(lines[starts[0] :], below[depth] if depth < len(below) else None) or starts[0]
    starts = [number for number, line in lines if _header(line) == name]
    if starts and below:
        return _line_in(lines[starts[0] :], below[0]) or starts[0]
    wanted = re.compile(rf"""^\s*(\[+\s*)?["']?{re.escape(name)}["']?\s*[\].=]""")
    return next((number for number, line in lines if wanted.match(line)), 1)


def _header(line: str) -> str:
    """`a.b` of the line `[a.b]`, quotes and spaces left out; empty for any other line."""
    inner, closed, _ = line.strip().partition("]")
    return re.sub(r"""[\s"']""", "", inner[1:]) if closed and inner.startswith("[") else ""


def _line_in(lines: Sequence[tuple[int, str]], key: str | None) -> int | None:
    """The line of this table, whose header is just above, that sets the key."""
    for number, line in itertools.takewhile(lambda item: not _header(item[1]), lines):
        if key is not None and re.match(rf"""\s*["']?{re.escape(key)}["']?\s*=""", line):
            return number
    return None


def _did_you_mean(name: str) -> str:
    near = get_close_matches(name, Settings.model_fields, n=1)
    known = "known keys: " + ", ".join(sorted(Settings.model_fields))
    return f"did you mean {near[0]!r}? {known}" if near else known


def _variable(name: str) -> str:
    return STATE_VARIABLE if name == "state_dir" else f"KINFOLD_{name.upper()}"


def _from_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The set and non-empty KINFOLD_* variables that name a setting; others belong to other parts of kinfold."""
    found = {name: environ.get(_variable(name), "") for name in Settings.model_fields if name not in TABLES}
    return {name: value for name, value in found.items() if value}


def _wrong_value(error: ValidationError, origin: Mapping[str, _Layer]) -> ConfigError:
    first = error.errors(include_url=False, include_context=False)[0]
    name = str(first["loc"][0]) if first["loc"] else ""
    if first["type"] == "extra_forbidden":
        return _unknown(first["loc"], origin[name])
    reason = first["msg"].removeprefix("Value error, ")
    inner = [str(part) for part in first["loc"]]
    place = origin[name].place(*inner) if name in origin else name
    field = Settings.model_fields.get(name)
    default = "unset" if field is None or field.default is None else repr(field.get_default(call_default_factory=True))
    hint = f"write another value, or leave {'.'.join(inner)} out" + (
        "" if len(inner) > 1 else f" (then it is {default})"
    )
    return ConfigError(f"{place}: {'.'.join(inner)}: {reason} (got {first['input']!r})", hint=hint)


def _unknown(loc: tuple[int | str, ...], layer: _Layer) -> ConfigError:
    names = [str(part) for part in loc]
    place = layer.place(*names)
    if len(names) == 1:
        return ConfigError(f"{place}: unknown setting {names[0]!r}", hint=_did_you_mean(names[0]))
    known = ", ".join(sorted(Tier.model_fields))
    return ConfigError(f"{place}: unknown key {'.'.join(names)!r}", hint=f"a tier has: {known}")
