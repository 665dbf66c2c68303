"""ParentTask: owns one sandbox and everything that runs in it, from the first check to the last close."""

from __future__ import annotations

import functools
import hashlib
import logging
import secrets
import signal
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack, aclosing
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import anyio
import anyio.abc

from kinfold.agent.past import Past
from kinfold.config import RESUME_TTL, Tier
from kinfold.config import state_dir as default_state_dir
from kinfold.definitions import DEFAULT, SubagentDefinition
from kinfold.errors import NotFound, PathError, SandboxError, StoreError
from kinfold.events import Egress, Event, SandboxChanged, TaskEnded, TaskStarted, Warned
from kinfold.messages import Artifact
from kinfold.models.base import Model
from kinfold.models.cassette import Writer
from kinfold.sandbox.allowlist import Allowlist
from kinfold.sandbox.base import EgressAttempt, Provider, SandboxSpec
from kinfold.sandbox.link import Change
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tasks import tier as tiers
from kinfold.tasks.closing import copied_out, not_enforced, result_of, result_of_bug
from kinfold.tasks.journal import StoreJournal
from kinfold.tasks.log import EventLog, Step
from kinfold.tasks.main_run import MainRun
from kinfold.tasks.opening import create_apart
from kinfold.tasks.out import OutDirectory
from kinfold.tasks.plan import Plan, StrPath, make_plan
from kinfold.tasks.result import RunLimits, TaskResult
from kinfold.tasks.setup import setup_of
from kinfold.tasks.signals import interrupted_by_sigterm
from kinfold.tasks.store.door import Store
from kinfold.tasks.store.sandboxes import all_records
from kinfold.tasks.store.tasks import StoredTasks
from kinfold.tasks.taping import begin_tape, hide_from_replay, tape_warnings
from kinfold.tools import apart
from kinfold.tools.base import Tool
from kinfold.tools.people import People

log = logging.getLogger(__name__)

T = TypeVar("T")

STOPPING = 120.0
"""Seconds that a stopped main run may take to close itself; then it is left behind, with whatever holds it up."""

CLOSING = 90.0
"""Seconds that closing may take, the sandbox's own minute included; the reaper finishes what is left then."""


class ParentTask:
    """A prompt run by a main agent in a sandbox of its own.

        async with ParentTask("…", model="claude-sonnet-5") as task:
            await task.start()
            async for event in task.follow():
                ...
            result = await task.wait()
            data = await task.read(result.artifacts[0])

    `start` raises `ConfigError` and `SandboxError`; once it has returned, every ending is a `TaskResult`. Leaving the
    block ends what still runs and closes the sandbox, also on an exception, a cancellation, Ctrl-C and SIGTERM.
    """

    def __init__(
        self,
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
        state_dir: StrPath | None = None,
        people: People | None = None,
        task_extras: bool = False,
        append_constraints: bool = False,
        record: StrPath | None = None,
        tier: Tier | None = None,
    ) -> None:
        """Nothing happens before `start`.

        `tier`: what the task's user may use; `limits` and definitions are brought within it, what is over is refused.

        `definitions`: what the main agent may delegate to; empty: it does not have the `task` tool.
        `out`: a directory of this machine that the main agent's artifacts are copied to, digests checked.
        `provider`: None means a `DockerProvider` that lives as long as this task.
        `task_extras`: the `task` tool takes `expected_outputs` too, globs of files to wait for.
        `record`: a new file that all requests to models and their answers are kept in, secrets hidden, to be replayed
        by `model="cassette:FILE"`.
        `append_constraints`: what the prompt says and a delegation's lacks is put at the delegation's end, too.
        `people`: who answers the main agent's questions; None: nobody, and it has no tool to ask.
        `state_dir`: where the store with the task's row, events and sandbox record is; None: `config.state_dir()`.
        """
        self.id = f"task_{secrets.token_hex(8)}"
        self._planned = functools.partial(
            make_plan, prompt=prompt, model=model,
            definitions=tiers.definitions_of(tier or Tier(), definitions), tools=tools, spec=spec,
            workspace=workspace, user_id=user_id, timezone=timezone, people=people,
            task_extras=task_extras, append_constraints=append_constraints,
        )  # fmt: skip
        self._model = model
        self._limits = limits or RunLimits()
        self._tier = tier or Tier()
        self._out_path = out
        self._record_path = record
        self._tape: Writer | None = None
        self._provider = provider
        self._state_dir = default_state_dir() if state_dir is None else Path(state_dir)
        self._unpriced = 0
        self._past = Past()
        self._earlier: tuple[Event, ...] = ()
        self._stack = AsyncExitStack()
        self._group: anyio.abc.TaskGroup | None = None
        self._starting: anyio.CancelScope | None = None
        self._signal: int | None = None
        self._store = Store(self._state_dir)
        self._tasks = StoredTasks(self._store)
        self._log: EventLog | None = None
        self._sandbox: Sandbox | None = None
        self._main: MainRun | None = None
        self._out: OutDirectory | None = None
        self._done = anyio.Event()
        self._result: TaskResult | None = None
        self._result_kept = False
        self._working: anyio.CancelScope | None = None

    async def __aenter__(self) -> Self:
        self._stack.enter_context(interrupted_by_sigterm(self.interrupt))
        self._group = await anyio.create_task_group().__aenter__()
        return self

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.aclose()
        finally:
            if self._group is not None:
                # Without the exception: the group would wrap it, and its tasks have ended.
                await self._group.__aexit__(None, None, None)

    async def start(self) -> None:
        """Check everything, open the sandbox and start the main agent.

        Raises `ConfigError` and `StoreError` before any container exists, `SandboxError` when there is none to be had.
        A SIGTERM meanwhile ends the process as its default action would, after what was begun is cleaned up.
        """
        if self._group is None or self._starting is not None:
            raise RuntimeError("a ParentTask is started once, inside of its `async with` block")
        self._stack.push_async_callback(self._store.aclose)
        with anyio.CancelScope() as self._starting:
            plan = await self._make_plan()
            self._out = self._open_out(plan.spec)
            plan = self._open_tape(plan)
            self._log = await self._open_log(self._group, plan)
            self._sandbox = await self._open_sandbox(self._group, plan.spec)
            self._sandbox.watch(functools.partial(self._on_change, self._group, self._sandbox.id))
            self._sandbox.on_egress(self._on_egress)
            await self._announce(self._log, self._sandbox, plan)
            journal = StoreJournal(self.id, self._log)
            self._main = MainRun(
                plan,
                task_id=self.id,
                limits=self._limits,
                sandbox=self._sandbox,
                log=self._log,
                journal=journal,
                past=self._past,
            )
            self._group.start_soon(self._work, self._main, plan)
        if self._main is None:  # only `interrupt` cancels this scope
            raise SystemExit(128 + (self._signal or signal.SIGTERM))
        if self._signal is not None:  # it came when nothing was left to be cancelled
            self._main.stop("interrupted")

    @property
    def earlier(self) -> int:
        """The number of the last event that another process left of this task; 0 where it begins here."""
        return len(self._earlier)

    async def follow(self, after: int = 0) -> AsyncGenerator[Event, None]:
        """The events numbered above `after`, from the first to `task_ended`; any number of followers at any time."""
        events = self._opened(self._log).follow(after)
        async with aclosing(events):
            async for event in events:
                yield event

    async def wait(self) -> TaskResult:
        """The result, when the main agent has ended. Cancelling the wait ends nothing; leaving the block does."""
        self._opened(self._main)
        await self._done.wait()
        return self.result

    @property
    def result(self) -> TaskResult:
        """The result of an ended task. Raises `NotFound` while it runs."""
        if self._result is None:
            raise NotFound("the task has no result yet", hint="`await task.wait()` first")
        return self._result

    async def cancel(self, run_id: str | None = None) -> None:
        """End the task, or one of its runs; `wait` then has the result. Raises `NotFound` for a run not running now."""
        main = self._opened(self._main)
        if run_id is None:
            main.stop("cancelled")
        else:
            main.cancel(run_id)

    def interrupt(self, signum: int = signal.SIGTERM) -> None:
        """End the task by `interrupted`, or the start that is under way; safe to call from a signal handler.

        SIGTERM comes here by itself, where the program left that signal alone.
        """
        self._signal = signum
        if self._main is not None:
            self._main.stop("interrupted")
        elif self._starting is not None:
            self._starting.cancel()

    async def read(self, artifact: Artifact | str) -> bytes:
        """A file of the workspace; an artifact's content is checked against its digest.

        Raises `PathError`, with `conflict` for an artifact that changed since it was delivered.
        """
        sandbox = self._opened(self._sandbox)
        path = artifact if isinstance(artifact, str) else artifact.path
        data = await sandbox.read(path)
        if isinstance(artifact, Artifact) and artifact.sha256 is not None and _sha256(data) != artifact.sha256:
            raise PathError("conflict", path, "changed since it was delivered")
        return data

    async def aclose(self) -> None:
        """End what runs, close the sandbox, release everything. Shielded and bounded; safe to call twice."""
        with anyio.CancelScope(shield=True):
            if self._main is not None and not self._done.is_set():
                self._main.stop("cancelled")
                with anyio.move_on_after(STOPPING):
                    await self._done.wait()  # the run closes itself within its own limits, as far as it is ours
                if not self._done.is_set() and self._working is not None:
                    self._working.cancel()
                    await self._done.wait()
            with anyio.move_on_after(CLOSING) as bound:
                try:
                    await self._stack.aclose()
                except SandboxError as error:
                    log.exception("closing task %s failed", self.id)
                    self._note_late(f"closing was not clean: {error.message}; run `kinfold reap`")
        if bound.cancelled_caught:
            self._note_late(f"the sandbox did not close within {CLOSING:.0f} s; `kinfold reap` removes what is left")

    async def _within_credits(self, user_id: str) -> RunLimits:
        """Of several tasks that run at once each sees what the others have spent by its own start."""
        if self._tier.credits is None:
            return self._limits
        spent, self._unpriced = await self._tasks.spent(user_id, tiers.month_start())
        return tiers.within_credits(self._tier, self._limits, user_id=user_id, spent=spent)

    # --- opening ---------------------------------------------------------------------------------------------------

    async def _make_plan(self) -> Plan:
        if isinstance(self._model, str):
            tiers.model_of(self._tier, self._model)
        self._limits = tiers.limits_within(self._tier, self._limits)
        plan = self._planned()
        self._limits = await self._within_credits(plan.user_id)
        own: dict[str, Any] = (
            {} if plan.spec.name else {"name": self.id}
        )  # by which a process that resumes it finds the sandbox
        if "resume_ttl" not in plan.spec.model_fields_set:
            own["resume_ttl"] = RESUME_TTL
        return replace(plan, spec=plan.spec.model_copy(update=own))

    def _open_out(self, spec: SandboxSpec) -> OutDirectory | None:
        if self._out_path is None:
            return None
        out = OutDirectory(Path(self._out_path), workspace=Path(spec.workspace) if spec.workspace else None)
        self._stack.callback(out.close)
        return out

    def _open_tape(self, plan: Plan) -> Plan:
        hide_from_replay(plan, _secrets(plan.spec))
        if self._record_path is None:
            return plan
        plan, self._tape = begin_tape(plan, Path(self._record_path), _secrets(plan.spec))
        self._stack.callback(self._tape.close)
        return plan

    async def _open_sandbox(self, group: anyio.abc.TaskGroup, spec: SandboxSpec) -> Sandbox:
        labelled = spec.model_copy(update={"labels": {"task": self.id, **spec.labels}})
        provider = self._provider or await self._own_provider()
        return await create_apart(
            group, provider, labelled, lambda sandbox: self._stack.push_async_callback(sandbox.aclose)
        )

    async def _own_provider(self) -> Provider:
        from kinfold.sandbox.docker.provider import DockerProvider

        records = all_records(self._store, self._state_dir)
        return await self._stack.enter_async_context(DockerProvider(state_dir=self._state_dir, records=records))

    async def _open_log(self, group: anyio.abc.TaskGroup, plan: Plan) -> EventLog:
        """The task's row, and its log, kept from now on. Raises `StoreError`: what cannot be kept does not begin."""
        events = EventLog(self._keep_events, secrets=_secrets(plan.spec), earlier=self._earlier)
        await self._enter(events, plan)
        writing = anyio.CancelScope()

        async def write_behind() -> None:
            with writing:
                await events.write_behind()

        async def close() -> None:
            writing.cancel()
            await events.flush()
            if not events.events:
                await self._forget()
            elif self._result is not None and not self._result_kept:
                await self._keep_result(self._result, events)  # the store may take it by now

        self._stack.push_async_callback(close)
        group.start_soon(write_behind)
        return events

    async def _enter(self, events: EventLog, plan: Plan) -> None:
        """The task's row."""
        out = None if self._out_path is None else Path(self._out_path)
        recorded = self._tape is not None
        setup = setup_of(plan, model=self._model, limits=self._limits, out=out, recorded=recorded).model_dump_json()
        prompt = events.hidden(plan.prompt)
        await self._tasks.begin(self.id, user_id=plan.user_id, prompt=prompt, model=plan.model.name, setup=setup)

    async def _keep_events(self, events: Sequence[Event], step: Step | None) -> None:
        await self._tasks.append(self.id, events, step)

    async def _forget(self) -> None:
        """Nothing ever happened: nothing is kept."""
        try:
            await self._tasks.discard(self.id)
        except StoreError as error:
            log.warning("task %s never began, but its row stays: %s", self.id, error)

    async def _announce(self, events: EventLog, sandbox: Sandbox, plan: Plan) -> None:
        workspace = sandbox.ref.workspace
        await self._tasks.opened(self.id, sandbox_id=sandbox.id, workspace=workspace)
        begun = TaskStarted(
            task_id=self.id, prompt=plan.prompt, model=plan.model.name, sandbox_id=sandbox.id, workspace=workspace
        )
        await events.append(begun)
        await events.append(SandboxChanged(task_id=self.id, sandbox_id=sandbox.id, state="ready"))
        for message in not_enforced(sandbox):
            await events.append(Warned(task_id=self.id, code="not_enforced", message=message))
        if self._unpriced:
            message = f"the price of {self._unpriced} requests of this month is not known: no credits went for them"
            await events.append(Warned(task_id=self.id, code="price_unknown", message=message))

    def _on_change(self, group: anyio.abc.TaskGroup, sandbox_id: str, state: Change, detail: str) -> None:
        """The connection to the sandbox came to grief, or is well again: those who watch the task are told."""
        if not self._done.is_set():
            changed = SandboxChanged(task_id=self.id, sandbox_id=sandbox_id, state=state, detail=detail)
            group.start_soon(self._opened(self._log).append, changed)

    def _on_egress(self, attempt: EgressAttempt) -> None:
        self._opened(self._log).add(Egress(task_id=self.id, **asdict(attempt)))

    # --- running ---------------------------------------------------------------------------------------------------

    async def _work(self, main: MainRun, plan: Plan) -> None:
        # Shielded: whoever cancels us leaves the block, and `aclose` stops the run in order.
        try:
            with anyio.CancelScope(shield=True) as self._working:
                try:
                    await self._run_to_end(main, plan)
                except Exception as error:
                    log.exception("task %s failed", self.id)
                    await self._end_by_bug(main, error)
            if self._working.cancelled_caught:
                with anyio.CancelScope(shield=True):
                    late = TimeoutError(f"the main run did not end within {STOPPING:.0f} s of being told to")
                    await self._end_by_bug(main, late)
        finally:
            self._done.set()

    async def _run_to_end(self, main: MainRun, plan: Plan) -> None:
        sandbox = self._opened(self._sandbox)
        run = await apart.run(main.run(), "the main run")  # its model and tools may be the caller's own
        await sandbox.end_egress()
        copied = await copied_out(self._out, run.artifacts, sandbox)
        taped = tape_warnings(plan, self._tape)
        self._result = result_of(self.id, run, main, sandbox, copied=copied, taped=taped)
        await self._append_end(self._result)

    async def _end_by_bug(self, main: MainRun, error: Exception) -> None:
        self._result = result_of_bug(self.id, main, self._opened(self._sandbox), error)
        await self._append_end(self._result)

    async def _append_end(self, result: TaskResult) -> None:
        ended = TaskEnded(
            task_id=self.id,
            status=result.status,
            ended_by=result.ended_by,
            steps=result.steps,
            usage=result.usage,
            error=result.error,
        )
        events = self._opened(self._log)
        await events.append(ended)
        kept = await events.flush() and await self._keep_result(result, events)
        if not kept and events.failure is not None:
            self._note_late(f"the task's record is not complete: {events.failure.message}")

    async def _keep_result(self, result: TaskResult, events: EventLog) -> bool:
        try:
            wire = events.hidden(result.dump())
            await self._tasks.end(self.id, status=result.status, ended_by=result.ended_by, result=wire)
        except StoreError as error:
            events.failure = error
            return False
        self._result_kept = True
        return True

    def _note_late(self, message: str) -> None:
        """A warning from closing, when the log has ended already: it goes into the result."""
        log.warning("task %s: %s", self.id, message)
        if self._result is not None:
            self._result = self._result.model_copy(update={"warnings": (*self._result.warnings, message)})

    @staticmethod
    def _opened(part: T | None) -> T:
        if part is None:
            raise RuntimeError("`await task.start()` first")
        return part


def _secrets(spec: SandboxSpec) -> list[str]:
    """What the log must not show."""
    injected = spec.network.secrets if isinstance(spec.network, Allowlist) else ()
    return [*spec.secrets.values(), *injected, *(value.split()[-1] for value in injected if value.strip())]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
