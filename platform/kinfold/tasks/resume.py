"""Goes on with a task whose process died: in the same container, from the last step that was kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import anyio.abc
from pydantic import ValidationError

from kinfold.agent.kept import StepRecord, conversation
from kinfold.agent.past import Past
from kinfold.errors import ConfigError, SandboxLost, StoreError
from kinfold.events import EVENT, SandboxChanged, Warned
from kinfold.models.base import Model
from kinfold.sandbox.base import Provider, SandboxRef, SandboxSpec
from kinfold.sandbox.owner import Owner
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tasks.log import EventLog
from kinfold.tasks.plan import Plan, StrPath, make_plan
from kinfold.tasks.result import TaskResult
from kinfold.tasks.setup import Setup
from kinfold.tasks.store.tasks import StoredTask
from kinfold.tasks.task import ParentTask
from kinfold.tools.base import Tool
from kinfold.tools.people import People

Inject = Mapping[str, Mapping[str, str]]


class ResumedTask(ParentTask):
    """A `ParentTask` that another process began and did not end; all its methods mean the same.

    `start` raises `NotFound` for an unknown id, `ConfigError` for a task that has ended, that still runs, or whose own
    tools and secrets were not given again, and `SandboxLost` where its container is gone; nothing has changed then.
    """

    def __init__(
        self,
        task_id: str,
        *,
        model: Model | None = None,
        tools: Sequence[Tool] = (),
        people: People | None = None,
        secrets: Mapping[str, str] | None = None,
        inject: Inject | None = None,
        provider: Provider | None = None,
        state_dir: StrPath | None = None,
    ) -> None:
        """What code or secret was given when it began must be given again; everything else is kept.

        `task_id`: whole, or its beginning. `model`: where it was an object of the caller's. `secrets` and `inject`: the
        spec's, and those of its allowlist. `people`: asked if there was somebody to ask.
        """
        super().__init__("-", model=model or "", tools=tools, people=people, provider=provider, state_dir=state_dir)
        self._wanted = task_id
        self._given = model
        self._tools = tuple(tools)
        self._people = people
        self._secrets = dict(secrets or {})
        self._inject = inject or {}
        self._row: StoredTask | None = None

    async def _make_plan(self) -> Plan:
        row = self._row = await self._tasks.get(self._wanted)
        _refuse(row)
        self.id = row.id
        setup = _setup(row.id, await self._tasks.setup(row.id))
        self._earlier, self._past = await self._read()
        self._limits, self._out_path = setup.limits, setup.out
        self._recorded = setup.recorded
        plan = self._plan_of(row, setup)
        self._model = setup.model or plan.model
        return plan

    async def _read(self) -> tuple[tuple[Any, ...], Past]:
        """The log and the steps. Raises `StoreError` for what cannot be understood."""
        try:
            events = tuple(EVENT.validate_python(event) for event in await self._tasks.events(self.id))
            steps = [(run, StepRecord.model_validate(kept)) for run, kept in await self._tasks.steps(self.id)]
            past = Past(events, steps)
            for run in past.runs:
                conversation(run.steps)
        except ValueError as error:
            raise StoreError(
                f"what is kept of {self.id} cannot be read: {str(error).splitlines()[0][:300]}",
                hint=f"`kinfold tasks export {self.id}` shows it; its files are where `kinfold tasks show` says",
                code="store_corrupt",
            ) from error
        return events, past

    def _plan_of(self, row: StoredTask, setup: Setup) -> Plan:
        model = self._given or setup.model
        if model is None:
            raise ConfigError("the model was an object of the caller's", hint="give it again: model=…")
        missing = [key for key in setup.tools if key not in {tool.key for tool in self._tools}]
        if missing:
            raise ConfigError(f"its own tools lack: {', '.join(missing)}", hint="give them again: tools=[…]")
        if setup.people and self._people is None:
            raise ConfigError("it had somebody to ask, and now has nobody", hint="give people=…, or --answers deny")
        return make_plan(
            prompt=row.prompt,
            model=model,
            definitions=setup.definitions,
            tools=[tool for tool in self._tools if tool.key in setup.tools],
            spec=self._spec(setup),
            workspace=None,
            user_id=row.user_id,
            timezone=setup.timezone,
            task_extras=setup.task_extras,
            append_constraints=setup.append_constraints,
            people=self._people if setup.people else None,
        )

    def _spec(self, setup: Setup) -> SandboxSpec:
        missing = [name for name in setup.secrets if name not in self._secrets]
        if missing:
            raise ConfigError(f"its secrets lack: {', '.join(missing)}", hint="give their values again: secrets={…}")
        if setup.injects and not self._inject:
            raise ConfigError("its allowlist added credentials", hint="give them again: inject={…}")
        data = {**setup.spec, "secrets": {name: self._secrets[name] for name in setup.secrets}}
        if setup.injects:
            data["network"] = {**data["network"], "inject": self._inject}
        elif self._inject:
            raise ConfigError("it has no allowlist that adds credentials", hint="leave inject out")
        return SandboxSpec.model_validate(data)

    async def _enter(self, events: EventLog, plan: Plan) -> None:
        row = self._opened(self._row)
        provider = self._provider = self._provider or await self._own_provider()
        try:
            await (await provider.connect(SandboxRef(id=row.sandbox_id, provider=provider.name))).aclose()
        except SandboxLost as error:
            raise SandboxLost(
                f"{row.id} cannot go on: {error.message}",
                hint=f"its files are in {row.workspace}; `kinfold run --workspace` there goes on by hand",
            ) from error
        await self._tasks.take(row)

    async def _open_sandbox(self, group: anyio.abc.TaskGroup, spec: SandboxSpec) -> Sandbox:
        """The one it had, taken over by its name. A new one in its place would be another task."""
        sandbox = await super()._open_sandbox(group, spec)
        if sandbox.id != self._opened(self._row).sandbox_id:
            raise SandboxLost(f"{self.id} cannot go on: its sandbox went just now")
        return sandbox

    async def _announce(self, events: EventLog, sandbox: Sandbox, plan: Plan) -> None:
        if not self._earlier:  # it died before anything was kept but that it would begin
            await super()._announce(events, sandbox, plan)
            return
        detail = f"taken over by {Owner.current().describe()}"
        await events.append(SandboxChanged(task_id=self.id, sandbox_id=sandbox.id, state="ready", detail=detail))
        if self._recorded:
            message = "its requests were being recorded; that ended with the process that died"
            await events.append(Warned(task_id=self.id, code="recording_ended", message=message))


async def resume(
    task_id: str,
    *,
    model: Model | None = None,
    tools: Sequence[Tool] = (),
    people: People | None = None,
    secrets: Mapping[str, str] | None = None,
    inject: Inject | None = None,
    provider: Provider | None = None,
    state_dir: StrPath | None = None,
) -> TaskResult:
    """Go on with a task whose process died, wait for its end, close its sandbox; the arguments are `ResumedTask`'s.

    Raises `NotFound`, `ConfigError` and `SandboxError` before its next step; after that every ending is a result.
    """
    task = ResumedTask(
        task_id,
        model=model,
        tools=tools,
        people=people,
        secrets=secrets,
        inject=inject,
        provider=provider,
        state_dir=state_dir,
    )
    async with task:
        await task.start()
        await task.wait()
    return task.result


def _refuse(row: StoredTask) -> None:
    """Raises `ConfigError` for a task that is not one to resume."""
    if row.status != "running":
        raise ConfigError(f"{row.id} has ended ({row.ended_by})", hint=f"`kinfold tasks show {row.id}`")
    fate = row.owner.fate()
    if fate == "alive":
        raise ConfigError(f"{row.id} still runs, in {row.owner.describe()}", hint="wait for it, or end it there")
    if fate == "unknown":
        raise ConfigError(
            f"whether {row.id} still runs cannot be told here: {row.owner.describe()} ran it",
            hint="resume it on that machine, outside of any container",
        )
    if not row.sandbox_id:
        raise ConfigError(f"{row.id} had no sandbox yet: there is nothing to resume", hint="run it anew")


def _setup(task_id: str, text: str | None) -> Setup:
    try:
        setup = Setup.model_validate_json(text or "")
    except ValidationError as error:
        raise StoreError(
            f"what {task_id} was asked cannot be read: {error.error_count()} errors",
            hint=f"`kinfold tasks export {task_id}` shows it; run it anew",
            code="store_corrupt",
        ) from error
    if not setup.spec:
        raise ConfigError(f"{task_id} was begun by an older kinfold, which kept too little", hint="run it anew")
    return setup
