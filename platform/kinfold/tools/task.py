"""The tool `task`: hands a piece of work to a subagent and gives back its checked delivery, never its transcript.

Its schema is built from a task's definitions. It validates and asks; slots, depth and the run itself lie behind the one
upward callable, `ToolContext.spawn`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator

from kinfold.definitions import SubagentDefinition
from kinfold.errors import ConfigError, ToolError
from kinfold.messages import Artifact, TaskOutput
from kinfold.tools import words
from kinfold.tools.base import SpawnRequest, Tool, ToolContext, ToolOutcome
from kinfold.tools.names import shown
from kinfold.tools.patterns import MAX_PATTERN, Pattern

KEY = "task"
LABEL_LIMIT = 80
"""Characters of `description`."""
RESULT_BUDGET = 65_536
MAX_OUTPUTS = 50
ExpectedOutput = Annotated[str, Field(min_length=1, max_length=MAX_PATTERN)]
FILES_SHOWN = 20
"""Touched files of a run that did not complete, named to the parent."""


class TaskArguments(BaseModel):
    """What every `task` call holds; `build` adds `subagent_type`, which depends on the definitions."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    description: str = Field(
        max_length=LABEL_LIMIT,
        description="A label of 3 to 7 words for people and the log.",
    )
    prompt: str = Field(
        description="The whole delegation: goal, context, files to deliver, bounds.",
    )

    @field_validator("description", "prompt")
    @classmethod
    def _says_something(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("must not be blank")
        return text


class Extras(TaskArguments):
    """What the call may hold besides, where `task_extras` is on."""

    expected_outputs: tuple[ExpectedOutput, ...] = Field(
        default=(),
        max_length=MAX_OUTPUTS,
        description="Globs, relative to the workspace, of files that must exist before its completion is accepted.",
    )

    @field_validator("expected_outputs")
    @classmethod
    def _are_globs(cls, patterns: tuple[str, ...]) -> tuple[str, ...]:
        for pattern in patterns:
            Pattern(pattern)
        return patterns


def build(definitions: Sequence[SubagentDefinition], *, extras: bool = False) -> Tool | None:
    """The tool for these definitions; None when there are none: an agent without subagents never hears of `task`.

    Raises `ConfigError` when two definitions have one type.
    """
    if not definitions:
        return None
    types = [definition.type for definition in definitions]
    for name in types:
        if types.count(name) > 1:
            raise ConfigError(f"two subagent definitions have the type {name!r}", hint="give each its own type")
    listed = "\n".join(f"- {definition.type}: {definition.description.strip()}" for definition in definitions)
    choice = Field(description=f"Who does the work:\n{listed}")
    one_of: Any = Literal[tuple(types)]
    arguments: type[BaseModel] = create_model(
        "TaskCall", __base__=Extras if extras else TaskArguments, subagent_type=(one_of, choice)
    )
    return Tool(
        key=KEY,
        words=words.beside(__file__),
        arguments=arguments,
        call=_call,
        recover=_call,  # what it started is found by its call, and goes on or has its result
        parallel=True,
        result_budget=RESULT_BUDGET,
        compact=compact,
    )


async def _call(context: ToolContext, arguments: Any) -> ToolOutcome:
    if context.spawn is None:
        raise ToolError("a subagent cannot start subagents", hint="do this work yourself")
    output = await context.spawn(
        SpawnRequest(
            subagent_type=arguments.subagent_type,
            description=arguments.description,
            prompt=arguments.prompt,
            tool_call_id=context.call_id,
            expected_outputs=getattr(arguments, "expected_outputs", ()),
        )
    )
    return ToolOutcome.of(render_output(output), is_error=output.status == "error", data=output)


def render_output(output: TaskOutput) -> str:
    """What the parent's model reads: kinfold's own facts first; all after `summary:` is the subagent's word."""
    lines = _facts(output)
    if output.error is not None:
        lines.append(f"error: {output.error.code}: {_one_line(output.error.message)}")
        lines += [f"hint: {_one_line(output.error.hint)}"] if output.error.hint else []
    lines += _touched(output)
    lines += _unattributed(output)
    if output.warnings:
        lines += ["warnings:", *(f"- {_one_line(warning)}" for warning in output.warnings)]
    lines += ["summary:", output.summary.strip() or "(none)"]
    return "\n".join(lines)


def compact(outcome: ToolOutcome) -> str:
    """What stays of a `task` result when the context is compacted: every delivered path can still be read."""
    output = outcome.data
    if not isinstance(output, TaskOutput):
        return "\n".join(block.text for block in outcome.content if block.type == "text")
    return "\n".join([*_facts(output), "summary:", output.summary.strip() or "(none)"])


def _facts(output: TaskOutput) -> list[str]:
    steps = f"{output.steps} step{'' if output.steps == 1 else 's'}"
    lines = [f"status: {output.status} (ended by {output.ended_by}, {steps}, {output.run_id})"]
    if output.artifacts:
        lines += [f"artifacts ({len(output.artifacts)}):", *(_artifact(artifact) for artifact in output.artifacts)]
    else:
        lines.append("artifacts: none")
    if output.skipped:
        lines += [f"skipped ({len(output.skipped)} claimed, not delivered):"]
        lines += [f"- {shown(skipped.path)}: {skipped.reason}" for skipped in output.skipped]
    return lines


def _artifact(artifact: Artifact) -> str:
    entries = "" if artifact.entries is None else f", {artifact.entries} files"
    return f"- {shown(artifact.path)} ({artifact.size} bytes{entries}, {artifact.fs_type}, {artifact.change})"


def _touched(output: TaskOutput) -> list[str]:
    """The files that an incomplete run left, so that its work is not lost with it."""
    salvage = output.salvage
    if salvage is None or output.status == "completed":
        return []
    files = salvage.files_touched
    lines = [f"files it touched, not checked ({len(files)}):"] if files else []
    lines += [f"- {shown(file.path)} ({file.change})" for file in files[:FILES_SHOWN]]
    if len(files) > FILES_SHOWN:
        lines.append(f"- and {len(files) - FILES_SHOWN} more")
    if salvage.last_tool_error:
        lines.append(f"last tool error: {_one_line(salvage.last_tool_error)}")
    return lines


def _unattributed(output: TaskOutput) -> list[str]:
    """Changes that may be this run's or that of another which ran programs at the same time."""
    if output.unattributed is None:
        return []
    files, runs = output.unattributed.files, ", ".join(output.unattributed.runs)
    lines = [f"files changed meanwhile by a program of one of {runs} ({len(files)}):"]
    lines += [f"- {shown(file.path)} ({file.change})" for file in files[:FILES_SHOWN]]
    return lines + ([f"- and {len(files) - FILES_SHOWN} more"] if len(files) > FILES_SHOWN else [])


def _one_line(text: str) -> str:
    return " ".join(text.split())
