"""What a task has to do with cassettes: its models recorded, or its secrets hidden from a replay as they were then."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from kinfold.errors import ConfigError
from kinfold.models.base import Model
from kinfold.models.cassette import RecordingModel, ReplayModel, Writer
from kinfold.tasks.plan import Plan
from kinfold.tasks.redaction import Redaction

MOST_NAMED = 5


def begin_tape(plan: Plan, path: Path, secrets: Sequence[str]) -> tuple[Plan, Writer]:
    """The plan with every model recorded to a new file at `path`. Raises `ConfigError` where none can be made."""
    if isinstance(plan.model, ReplayModel):
        raise ConfigError("a replay is not recorded", hint="copy the cassette, or record with the model itself")
    workspace = plan.spec.workspace
    if workspace is not None and path.expanduser().resolve().is_relative_to(Path(workspace).expanduser().resolve()):
        raise ConfigError(f"{path} lies inside the workspace", hint="record to where the agents cannot write")
    tape = Writer(path, hide=Redaction(secrets).whole)
    models: dict[str, Model] = {name: RecordingModel(model, tape) for name, model in plan.named_models.items()}
    return dataclasses.replace(plan, model=RecordingModel(plan.model, tape), named_models=models), tape


def hide_from_replay(plan: Plan, secrets: Sequence[str]) -> None:
    """Let a replayed model compare what it is asked without these."""
    if isinstance(plan.model, ReplayModel):
        plan.model.hiding(Redaction(secrets).whole)


def tape_warnings(plan: Plan, tape: Writer | None) -> tuple[str, ...]:
    """What a person must know of a recording that failed, or of one that was replayed in part."""
    if tape is not None and (problem := tape.close()) is not None:
        return (f"nothing was recorded: {tape.path}: {problem}",)
    if isinstance(plan.model, ReplayModel) and (unasked := plan.model.unasked):
        more = f" and {len(unasked) - MOST_NAMED} more" if len(unasked) > MOST_NAMED else ""
        return (f"the recording goes on: not asked for were {'; '.join(unasked[:MOST_NAMED])}{more}",)
    return ()
