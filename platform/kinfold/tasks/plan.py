"""What a parent task will run, checked in full before any container exists; everything wrong is a `ConfigError`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kinfold import models
from kinfold.config import check_timezone
from kinfold.definitions.definition import SubagentDefinition
from kinfold.errors import ConfigError
from kinfold.models.base import Model
from kinfold.models.cassette import ReplayModel
from kinfold.models.families import why_refused
from kinfold.sandbox.base import SandboxSpec
from kinfold.tools import registry
from kinfold.tools import task as task_tool
from kinfold.tools.base import Tool
from kinfold.tools.people import People

StrPath = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The checked arguments of a task."""

    prompt: str
    model: Model
    named_models: dict[str, Model]
    """What the definitions name, by name."""
    definitions: tuple[SubagentDefinition, ...]
    tools: tuple[Tool, ...]
    tool_keys: tuple[str, ...]
    """Of the main agent: all there is."""
    task_extras: bool
    append_constraints: bool
    spec: SandboxSpec
    user_id: str
    timezone: str
    people: People | None

    def model_named(self, name: str) -> Model:
        """A definition's model."""
        return self.named_models[name]


def make_plan(
    *,
    prompt: str,
    model: Model | str,
    definitions: Sequence[SubagentDefinition],
    tools: Sequence[Tool],
    spec: SandboxSpec | None,
    workspace: StrPath | None,
    user_id: str,
    timezone: str,
    task_extras: bool = False,
    append_constraints: bool = False,
    people: People | None = None,
) -> Plan:
    """Check and resolve everything that can be known now. Raises `ConfigError`."""
    if not prompt.strip():
        raise ConfigError("the prompt is empty", hint="say what the agent is to do")
    if not user_id.strip():
        raise ConfigError("the user id is empty", hint="leave it out, or name whose task this is")
    main = models.resolve(model) if isinstance(model, str) else model
    if people is not None and not people.deadline > 0:
        raise ConfigError(f"people.deadline is {people.deadline:g} s", hint="give more than 0 seconds to answer")
    shipped = [key for key in registry.SHIPPED if people is not None or key not in registry.ASKING]
    keys = (*shipped, task_tool.KEY, *(tool.key for tool in tools))
    registry.select(keys, definitions=definitions, extra=tools)
    for definition in definitions:
        with _in(definition):
            registry.select(definition.tool_keys, extra=tools)
    named = _named_models(main, definitions)
    for definition in definitions:
        with _in(definition):
            _check_reasoning(named.get(definition.model, main), definition)
    return Plan(
        prompt=prompt,
        model=main,
        named_models=named,
        definitions=tuple(definitions),
        tools=tuple(tools),
        tool_keys=keys,
        task_extras=task_extras,
        append_constraints=append_constraints,
        spec=_spec(spec, workspace),
        user_id=user_id,
        timezone=_known_timezone(timezone),
        people=people,
    )


def _known_timezone(name: str) -> str:
    try:
        return check_timezone(name)
    except ValueError as error:
        raise ConfigError(str(error), hint="pass timezone='UTC', or a zone of the IANA database") from None


def _named_models(main: Model, definitions: Sequence[SubagentDefinition]) -> dict[str, Model]:
    if getattr(main, "overrides_definitions", False):
        return {}
    named: dict[str, Model] = {}
    for definition in definitions:
        for name in (definition.model, definition.compaction_model):
            if name is not None and name != "inherit" and name not in named:
                with _in(definition):
                    named[name] = _named(main, name)
    return named


def _named(main: Model, name: str) -> Model:
    """A definition's model; where a recording is replayed, that recording, which needs no key."""
    if isinstance(main, ReplayModel):
        kind, _, rest = models.full_name(name).partition(":")
        return main.stand_in(rest if kind == "anthropic" else kind)
    return models.resolve(name)


def _check_reasoning(model: Model, definition: SubagentDefinition) -> None:
    """Raises `ConfigError` for what the model would refuse in the middle of the task."""
    if refused := why_refused(model.name, definition.effort, definition.thinking):
        field, reason = refused
        raise ConfigError(f"{field!r}: {reason}", hint=f"change {field!r} of {definition.type!r}, or its model")


@contextmanager
def _in(definition: SubagentDefinition) -> Iterator[None]:
    """Lets a `ConfigError` name the definition that it is about."""
    try:
        yield
    except ConfigError as error:
        where = definition.source or f"definition {definition.type!r}"
        raise ConfigError(f"{where}: {error.message}", hint=error.hint) from None


def _spec(spec: SandboxSpec | None, workspace: StrPath | None) -> SandboxSpec:
    spec = spec or SandboxSpec()
    if workspace is None:
        return spec
    named = os.fspath(workspace)
    if spec.workspace is not None and Path(spec.workspace) != Path(named):
        raise ConfigError(f"two workspaces: {named!r}, and {spec.workspace!r} in the spec", hint="name one")
    return SandboxSpec.model_validate({**spec.model_dump(), "workspace": named})
