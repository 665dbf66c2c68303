"""Answers without a person: `deny`, `default`, or a file of answers by pattern.

    otherwise = "deny"        # or "default"; for what no pattern fits. Left out: deny

    [[answer]]
    match = "(?i)which year"  # a regular expression, sought in the question
    answer = "2011"           # of a confirmation: "yes" or "no"

`deny` refuses confirmations and leaves questions without an answer; `default` answers a question by what the agent said
it would assume, and refuses confirmations. The first pattern that fits answers.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kinfold.definitions.definition import RegularExpression
from kinfold.errors import ConfigError
from kinfold.tools.people import Answer, Asked

Otherwise = Literal["deny", "default"]


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    match: RegularExpression
    answer: str = Field(min_length=1, max_length=10_000)


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    otherwise: Otherwise = "deny"
    answer: tuple[_Entry, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """An `Answerer`: `People(answer=Policy(…))`."""

    otherwise: Otherwise = "deny"
    answers: tuple[tuple[str, str], ...] = ()
    """Pattern and answer."""

    async def __call__(self, asked: Asked) -> Answer | None:
        """The policy's answer; None: it has none, which the agent reads as nobody."""
        for pattern, text in self.answers:
            if re.search(pattern, asked.text):
                return Answer(text=_as_confirmation(text) if asked.kind == "confirm" else text, by="policy")
        if asked.kind == "confirm":
            return Answer(text="no", by="policy")
        return Answer(text=asked.assumption, by="policy") if self.otherwise == "default" else None


def load(name: str) -> Policy:
    """`deny`, `default`, or the file of that name. Raises `ConfigError` for a file that cannot be used."""
    if name in ("deny", "default"):
        return Policy(otherwise="deny" if name == "deny" else "default")
    path = Path(name)
    hint = "--answers takes deny, default, or a TOML file with [[answer]] tables of `match` and `answer`"
    try:
        parsed = _File.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint=hint) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: is not TOML: {error}", hint=hint) from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{path}: {where}: {first['msg'].removeprefix('Value error, ')}", hint=hint) from None
    return Policy(otherwise=parsed.otherwise, answers=tuple((entry.match, entry.answer) for entry in parsed.answer))


def _as_confirmation(text: str) -> str:
    """Only a plain yes is one."""
    return "yes" if text.strip().lower() in ("yes", "y", "true") else "no"
