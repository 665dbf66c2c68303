"""`run` and `run_sync`: a whole parent task in one call."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import anyio

from kinfold.config import Tier
from kinfold.definitions import DEFAULT, SubagentDefinition
from kinfold.models.base import Model
from kinfold.sandbox.base import Provider, SandboxSpec
from kinfold.tasks.plan import StrPath
from kinfold.tasks.result import RunLimits, TaskResult
from kinfold.tasks.task import ParentTask
from kinfold.tools.base import Tool
from kinfold.tools.people import People


async def run(
    prompt: str,
    *,
    model: Model | str,
    workspace: StrPath | None = None,
    definitions: Sequence[SubagentDefinition] = DEFAULT,
    spec: SandboxSpec | None = None,
    tools: Sequence[Tool] = (),
    user_id: str = "local",
    timezone: str = "UTC",
    limits: RunLimits | None = None,
    out: StrPath | None = None,
    provider: Provider | None = None,
    people: People | None = None,
    task_extras: bool = False,
    append_constraints: bool = False,
    record: StrPath | None = None,
    tier: Tier | None = None,
) -> TaskResult:
    """Run a prompt in a sandbox of its own, wait for the end, close the sandbox; the arguments are `ParentTask`'s.

    Raises `ConfigError` and `SandboxError` before the first step; after that every ending is a result. A SIGTERM that
    nobody else handles ends the task by `interrupted`; a cancellation or Ctrl-C closes it and passes on.
    """
    task = ParentTask(
        prompt,
        model=model,
        workspace=workspace,
        definitions=definitions,
        spec=spec,
        tools=tools,
        user_id=user_id,
        timezone=timezone,
        limits=limits,
        out=out,
        provider=provider,
        people=people,
        task_extras=task_extras,
        append_constraints=append_constraints,
        record=record,
        tier=tier,
    )
    async with task:
        await task.start()
        await task.wait()
    return task.result


def run_sync(
    prompt: str,
    *,
    model: Model | str,
    workspace: StrPath | None = None,
    definitions: Sequence[SubagentDefinition] = DEFAULT,
    spec: SandboxSpec | None = None,
    tools: Sequence[Tool] = (),
    user_id: str = "local",
    timezone: str = "UTC",
    limits: RunLimits | None = None,
    out: StrPath | None = None,
    provider: Provider | None = None,
    people: People | None = None,
    task_extras: bool = False,
    append_constraints: bool = False,
    record: StrPath | None = None,
    tier: Tier | None = None,
) -> TaskResult:
    """`run` for a program without an event loop. Ctrl-C closes the task and raises `KeyboardInterrupt`."""
    call = functools.partial(
        run,
        prompt,
        model=model,
        workspace=workspace,
        definitions=definitions,
        spec=spec,
        tools=tools,
        user_id=user_id,
        timezone=timezone,
        limits=limits,
        out=out,
        provider=provider,
        people=people,
        task_extras=task_extras,
        append_constraints=append_constraints,
        record=record,
        tier=tier,
    )
    return anyio.run(call)
