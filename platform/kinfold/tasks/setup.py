"""What a task was asked, as data: all that a resume needs beside its steps. No secret and no code is in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from kinfold import models
from kinfold.definitions import SubagentDefinition
from kinfold.models.base import Model
from kinfold.sandbox.allowlist import Allowlist
from kinfold.sandbox.base import SandboxSpec
from kinfold.tasks.plan import Plan
from kinfold.tasks.result import RunLimits

_PATHS = ("workspace", "copy_from")


class Setup(BaseModel):
    """One task's; read back from the store, so unknown fields are ignored."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    spec: dict[str, Any] = {}
    """The `SandboxSpec`, without its secrets, and with paths as they are understood from any directory."""
    model: str | None = None
    """The main agent's as it was named; None: an object of the caller's, which must be given again."""
    definitions: tuple[SubagentDefinition, ...] = ()
    tools: tuple[str, ...] = ()
    """Keys of the caller's own tools, which must be given again."""
    people: bool = False
    """Whether there was somebody to ask; then there must be again."""
    task_extras: bool = False
    append_constraints: bool = False
    timezone: str = "UTC"
    limits: RunLimits = RunLimits()
    out: str | None = None
    recorded: bool = False
    """Whether its requests were being recorded; what a killed process had of that is lost."""
    secrets: tuple[str, ...] = ()
    """Names of the spec's secrets, whose values must be given again."""
    injects: bool = False
    """Whether its network had credentials to inject, which must be given again."""


def setup_of(plan: Plan, *, model: Model | str, limits: RunLimits, out: Path | None, recorded: bool) -> Setup:
    """The setup of a task that begins; `model` as its caller named it."""
    return Setup(
        spec=_spec(plan.spec),
        model=_whole(model) if isinstance(model, str) else None,
        definitions=plan.definitions,
        tools=tuple(tool.key for tool in plan.tools),
        people=plan.people is not None,
        task_extras=plan.task_extras,
        append_constraints=plan.append_constraints,
        timezone=plan.timezone,
        limits=limits,
        out=None if out is None else str(out.absolute()),
        recorded=recorded,
        secrets=tuple(sorted(plan.spec.secrets)),
        injects=injects(plan.spec),
    )


def injects(spec: SandboxSpec) -> bool:
    """Whether the spec's network has credentials."""
    return isinstance(spec.network, Allowlist) and bool(spec.network.secrets)


def _spec(spec: SandboxSpec) -> dict[str, Any]:
    paths = {name: str(Path(path).absolute()) for name in _PATHS if (path := getattr(spec, name)) is not None}
    return spec.model_copy(update=paths).model_dump(mode="json", exclude={"secrets"}, exclude_unset=True)


def _whole(name: str) -> str:
    """The name as it is understood from any directory."""
    kind, _, rest = models.full_name(name).partition(":")
    return f"{kind}:{Path(rest).absolute()}" if kind in ("scripted", "cassette") else name
