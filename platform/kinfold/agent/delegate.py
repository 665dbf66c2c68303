"""Delegation: the far side of the `task` tool. Slots, totals, models, the relay, heartbeats and records live here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import anyio

from kinfold.agent.blind_spot import missing_constraints
from kinfold.agent.context import RuntimeContext, kickoff
from kinfold.agent.kept import Journal
from kinfold.agent.limits import Purse
from kinfold.agent.loop import run_agent_loop
from kinfold.agent.past import Past, PastRun
from kinfold.agent.preflight import check_fits, first_request
from kinfold.agent.run import CHUNK_TIMEOUT, LoopConfig, LoopInput, RunResult
from kinfold.definitions.aliases import did_you_mean
from kinfold.definitions.definition import SubagentDefinition
from kinfold.errors import SandboxLost, ToolError
from kinfold.events import Emit, EventBase, Heartbeat, RunEnded, Waiting, Warned, timestamp
from kinfold.messages import STATUS_OF, DefinitionRef, EndedBy, Salvage, SubagentRecord, TaskOutput, Usage
from kinfold.models.base import Model
from kinfold.models.families import why_refused
from kinfold.tools.base import SpawnRequest, Tool
from kinfold.tools.writers import Writers

SLOTS = 6
"""Subagents of one task that run at the same time; further ones wait."""
TOTAL = 50
"""Subagents that one task may start in all."""
HEARTBEAT = 10.0
"""Seconds that the signs of life of one `task` call are apart at most, waiting for a slot or running."""
EARLY = 0.9
"""The part of it after which the next is sent, for a busy loop is late."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DelegationConfig:
    """What holds for all subagents of one task."""

    definitions: tuple[SubagentDefinition, ...]
    model: Model
    """The main agent's, and what `inherit` means."""
    resolve: Callable[[str], Model]
    """A model by name. Not asked when `model` overrides the definitions' (a scripted or replayed one)."""
    extra_tools: tuple[Tool, ...] = ()
    user_turns: tuple[str, ...] = ()
    """What the user said: a subagent sees none of it, so what its prompt lacks of it is warned of."""
    append_constraints: bool = False
    """Whether the user's words that a prompt lacks are also put at its end."""
    slots: int = SLOTS
    total: int = TOTAL
    heartbeat: float = HEARTBEAT
    chunk_timeout: float = CHUNK_TIMEOUT
    writers: Writers = field(default_factory=Writers)
    journal: Journal | None = None
    past: Past = field(default_factory=Past)
    """What another process did of this task before it died."""


@dataclass(slots=True, kw_only=True)
class _Child:
    """One subagent between its call and its result."""

    request: SpawnRequest
    definition: SubagentDefinition
    model: Model
    purse: Purse
    past: PastRun | None = None
    context: RuntimeContext = field(init=False)
    started_at: str = field(default_factory=timestamp)


class Delegation:
    """Starts the subagents of one main run; its `spawn` is what that run's tools are given."""

    def __init__(self, parent: RuntimeContext, config: DelegationConfig, *, purse: Purse) -> None:
        self._parent = parent
        self._config = config
        self._purse = purse
        self._definitions = {definition.type: definition for definition in config.definitions}
        self._slots = anyio.Semaphore(config.slots)
        self._running = 0
        self._started = len(config.past.subagents)
        parent.subagent_records.extend(past.record for past in config.past.subagents if past.ended is not None)
        self._children: dict[str, _Child] = {}

    async def spawn(self, request: SpawnRequest) -> TaskOutput:
        """Run one subagent to its end and return what it delivers.

        Raises `ToolError` for an unknown type, a running twin and a total used up, `SandboxLost` when the sandbox died
        under the subagent. A failed subagent is a `TaskOutput`; it cancels nobody.
        """
        definition = self._definition(request.subagent_type)
        past = self._config.past.of_call(request.tool_call_id)
        if past is not None and past.ended is not None:
            return _output(past.result)
        lacking = missing_constraints(self._config.user_turns, request.prompt)
        if lacking and self._config.append_constraints:
            request = replace(request, prompt=f"{request.prompt}\n\nThe user also said: {_quoted(lacking)}.")
        uncounted = await self._check_start(request, definition) if past is None else None
        self._refuse_more(request, past)  # from here on nothing waits until the child is known
        self._started += past is None
        child = self._make(request, definition, past)
        self._children[child.context.run_id] = child
        try:
            warnings = await self._warn_of(child, lacking, uncounted)
            async with anyio.create_task_group() as group:
                group.start_soon(self._beat, child)
                result = await self._run_in_slot(child)
                group.cancel_scope.cancel()
        finally:
            del self._children[child.context.run_id]
        if result.ended_by == "sandbox_lost" and result.error is not None:
            raise SandboxLost(result.error.message, hint=result.error.hint)
        return _output(result, *warnings)

    def cancel(self, run_id: str, reason: EndedBy = "cancelled") -> bool:
        """End one subagent, waiting or running; its parent reads it as cancelled. False: no such subagent now."""
        child = self._children.get(run_id)
        if child is not None:
            child.context.lifeline.stop(reason)
        return child is not None

    @property
    def run_ids(self) -> tuple[str, ...]:
        """The subagents that wait or run now."""
        return tuple(self._children)

    async def _check_start(self, request: SpawnRequest, definition: SubagentDefinition) -> str | None:
        """Raises `ToolError` for what its model would refuse at once; returns why its start could not be counted."""
        model = self._model_of(definition)
        if refused := why_refused(model.name, definition.effort, definition.thinking):
            raise ToolError(f"{definition.type!r} cannot start: {refused[1]}", hint="use another type of subagent")
        first = first_request(definition, request.prompt, self._parent.timezone, self._config.extra_tools)
        return await check_fits(model, first)

    async def _warn_of(self, child: _Child, lacking: tuple[str, ...], uncounted: str | None) -> tuple[str, ...]:
        """Tell the outside, and by the result the parent's model, what is doubtful about this start."""
        found: list[tuple[str, str]] = [("count_failed", uncounted)] if uncounted else []
        if lacking:
            fate = "added to it" if self._config.append_constraints else "the subagent did not know it"
            found.append(("blind_spot", f"the prompt lacked what the user said: {_quoted(lacking)} ({fate})"))
        for code, message in found:
            await self._emit(child, Warned, code=code, message=message)
        return tuple(message for _, message in found)

    def _refuse_more(self, request: SpawnRequest, past: PastRun | None) -> None:
        """Raises `ToolError` when the total is used up, or one with the same label and prompt is on its way."""
        if past is None and self._started >= self._config.total:
            raise ToolError(
                f"all {self._config.total} subagents of this task were started already ({self._running} still run)",
                hint="do the rest yourself, with what the earlier ones delivered",
            )
        for run_id, child in self._children.items():
            if (child.request.description, child.request.prompt) == (request.description, request.prompt):
                raise ToolError(
                    f"{request.description!r} is already under way with the same prompt, as {run_id}",
                    hint="wait for its result; for other work write another prompt",
                )

    def _definition(self, wanted: str) -> SubagentDefinition:
        if (definition := self._definitions.get(wanted)) is not None:
            return definition
        near = did_you_mean(wanted, self._definitions)
        allowed = "allowed types: " + ", ".join(sorted(self._definitions))
        raise ToolError(f"unknown subagent type {wanted!r}{near}", hint=allowed)

    def _make(self, request: SpawnRequest, definition: SubagentDefinition, past: PastRun | None) -> _Child:
        child = _Child(
            request=request,
            definition=definition,
            model=self._model_of(definition),
            purse=Purse(limit=definition.budget, above=self._purse),
            past=past,
        )
        if past is not None:  # the purse above has it already
            child.purse.spent, child.purse.unpriced = past.cost, set(past.unpriced)
        child.context = RuntimeContext.for_subagent(
            self._parent, writer=self._relay(child), run_id=None if past is None else past.run_id
        )
        child.context.lifeline.start(timeout=None)  # for the age of what waits; its own clock starts with its run
        return child

    def _model_of(self, definition: SubagentDefinition) -> Model:
        main = self._config.model
        if definition.model == "inherit" or getattr(main, "overrides_definitions", False):
            return main
        return self._config.resolve(definition.model)

    def _compactor_of(self, definition: SubagentDefinition) -> Model | None:
        name = definition.compaction_model
        if name is None or getattr(self._config.model, "overrides_definitions", False):
            return None
        return self._config.model if name == "inherit" else self._config.resolve(name)

    def _relay(self, child: _Child) -> Emit:
        """The child's own stream: it forwards to the parent's, and takes the record from the one `run_ended`."""

        async def relay(event: EventBase) -> None:
            if isinstance(event, RunEnded):
                self._parent.subagent_records.append(_record(child, event))
            await self._parent.writer(event)

        return relay

    async def _run_in_slot(self, child: _Child) -> RunResult:
        if self._running >= self._config.slots:
            await self._emit(child, Waiting, running=self._running, limit=self._config.slots)
        try:
            with child.context.lifeline.alive() as verdict:
                await self._slots.acquire()
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):
                await self._never_ran(child)
            raise
        if verdict.ended_by is not None:
            return await self._never_ran(child)
        self._running += 1
        try:
            return await self._run(child)
        finally:
            self._running -= 1
            self._slots.release()

    async def _never_ran(self, child: _Child) -> RunResult:
        ended_by = child.context.lifeline.reason_from_outside()
        status = STATUS_OF[ended_by]
        summary = "It was ended while it waited for a slot; it did nothing."
        told: dict[str, Any] = {"status": status, "ended_by": ended_by, "steps": 0, "summary": summary}
        told |= {"salvage": Salvage(), "usage": Usage()}
        await self._emit(child, RunEnded, **told)
        return RunResult(run_id=child.context.run_id, **told)

    async def _run(self, child: _Child) -> RunResult:
        definition, request = child.definition, child.request
        config = LoopConfig(
            model=child.model,
            max_steps=definition.max_steps,
            tool_keys=definition.tool_keys,
            stop_conditions=definition.stop_conditions,
            compactor=self._compactor_of(definition),
            timeout=definition.timeout,
            budget=definition.budget,
            effort=definition.effort,
            thinking=definition.thinking,
            extra_tools=self._config.extra_tools,
            chunk_timeout=self._config.chunk_timeout,
            writers=self._config.writers,
            journal=self._config.journal,
            purse=child.purse,
        )
        asked = LoopInput(
            kind="subagent",
            messages=(kickoff(request.prompt, child.context.timezone),),
            extra_instructions=definition.instructions,
            label=request.description,
            subagent_type=definition.type,
            definition_version=definition.version,
            parent_run_id=self._parent.run_id,
            tool_call_id=request.tool_call_id,
            expected_outputs=request.expected_outputs,
            past=child.past,
        )
        # Its clock starts when it starts, not when it was asked for.
        child.started_at = child.past.started.at if child.past else timestamp()
        return await run_agent_loop(child.context, config, asked)

    async def _beat(self, child: _Child) -> None:
        """Say that the child lives, to the outside and to the parent's clock; never to the child's own."""
        while True:
            await anyio.sleep(self._config.heartbeat * EARLY)
            self._parent.lifeline.rearm()
            lifeline = child.context.lifeline
            await self._emit(child, Heartbeat, elapsed=lifeline.elapsed, since_progress=lifeline.since_progress)

    async def _emit(self, child: _Child, event: type[EventBase], **fields: Any) -> None:
        who: dict[str, Any] = {
            "task_id": self._parent.task_id,
            "run_id": child.context.run_id,
            "parent_run_id": self._parent.run_id,
            "label": child.request.description,
            "tool_call_id": child.request.tool_call_id,
        }
        await child.context.writer(event(**who, **fields))


def _record(child: _Child, ended: RunEnded) -> SubagentRecord:
    return SubagentRecord(
        definition=DefinitionRef(type=child.definition.type, version=child.definition.version),
        tool_call_id=child.request.tool_call_id,
        description=child.request.description,
        steps=ended.steps,
        usage=ended.usage,
        status=ended.status,
        started_at=child.started_at,
        completed_at=timestamp(),
        ended_by=ended.ended_by,
        cost_usd=child.purse.cost,
    )


def _quoted(texts: tuple[str, ...]) -> str:
    return ", ".join(f'"{text}"' for text in texts)


def _output(result: RunResult, *warnings: str) -> TaskOutput:
    return TaskOutput(
        summary=result.summary,
        artifacts=result.artifacts,
        skipped=result.skipped or None,
        status=result.status,
        steps=result.steps,
        ended_by=result.ended_by,
        salvage=result.salvage,
        error=result.error,
        usage=result.usage,
        run_id=result.run_id,
        warnings=(*warnings, *result.warnings),
        unattributed=result.unattributed,
    )
