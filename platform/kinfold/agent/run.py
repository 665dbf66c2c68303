"""One run of the agent loop: what it was given, what it may use, and what it has done so far."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import anyio

from kinfold.agent.context import RuntimeContext
from kinfold.agent.history import History
from kinfold.agent.kept import Journal, OpenStep
from kinfold.agent.limits import Purse
from kinfold.definitions.definition import FORBIDDEN_IN_SUBAGENTS, StopCondition, SubagentDefinition
from kinfold.events import EventBase, Warned
from kinfold.messages import (
    Artifact,
    EndedBy,
    ErrorInfo,
    Message,
    RunKind,
    Salvage,
    SkippedPath,
    Status,
    ToolSpec,
    Unattributed,
    Usage,
)
from kinfold.models.base import Effort, Model, Thinking
from kinfold.tools import registry
from kinfold.tools.base import Completion, RunState, Spawn, Tool, ToolContext
from kinfold.tools.people import People
from kinfold.tools.writers import Writers

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kinfold.agent.past import PastRun

CHUNK_TIMEOUT = 300.0
"""Seconds without a chunk of the model after which a run ends by `no_progress`."""
COMPACT_AT = 0.8
"""Of the model's window: a conversation that would fill more is compacted before its next request."""
TOOL_PATIENCE = 660.0
"""The same while tool calls run: a silent command has its own limit, at most 600 s, and must reach it first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """Who thinks, with what, and how long."""

    model: Model
    max_steps: int
    """Model replies; a finalisation step may come on top."""
    tool_keys: tuple[str, ...]
    """What is not here is absent from the schema and refused at dispatch; `complete` is always there."""
    stop_conditions: tuple[StopCondition, ...] = ()
    compactor: Model | None = None
    """Who summarises a conversation that no longer fits; None: `model`."""
    compact_at: float = COMPACT_AT
    timeout: float | None = None
    """Seconds of wall clock; None: no limit."""
    budget: float | None = None
    """US dollars, for this run and all that it starts."""
    effort: Effort | None = None
    thinking: Thinking | None = None
    definitions: tuple[SubagentDefinition, ...] = ()
    """What the `task` tool may start; empty: it is not registered."""
    extra_tools: tuple[Tool, ...] = ()
    chunk_timeout: float = CHUNK_TIMEOUT
    tool_patience: float = TOOL_PATIENCE
    writers: Writers = field(default_factory=Writers)
    """The record of the task that this run belongs to."""
    task_extras: bool = False
    """Whether the `task` tool takes `expected_outputs`, which the seed's schema does not know."""
    journal: Journal | None = None
    """Where each step is kept before the next begins; None: nowhere."""
    purse: Purse | None = None
    """The purse that pays, made by whoever also charges others to it; None: a new one with `budget`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopInput:
    """What this run is asked, and whose run it is."""

    kind: RunKind
    messages: tuple[Message, ...]
    extra_instructions: str = ""
    """Appended to the system prompt as a block of its own."""
    label: str | None = None
    subagent_type: str | None = None
    definition_version: int | None = None
    """Of a subagent: the version of its definition that it runs by."""
    parent_run_id: str | None = None
    tool_call_id: str | None = None
    """Of a subagent: the parent's call that started it."""
    expected_outputs: tuple[str, ...] = ()
    """Of a subagent: globs of the files that its parent waits for."""
    past: PastRun | None = None
    """What another process did of this run before it died; None: it begins."""
    spawn: Spawn | None = None
    """How a tool of this run starts a subagent. Never given to a subagent: the depth is 1."""
    people: People | None = None
    """Who answers this run's questions. Never given to a subagent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """How a run ended and what it leaves."""

    run_id: str
    status: Status
    ended_by: EndedBy
    steps: int
    summary: str
    artifacts: tuple[Artifact, ...] = ()
    skipped: tuple[SkippedPath, ...] = ()
    salvage: Salvage | None = None
    error: ErrorInfo | None = None
    usage: Usage
    """Of this run alone, without the subagents that it started."""
    cost: float | None = None
    """US dollars of this run and all that it started; None: a price is not known."""
    warnings: tuple[str, ...] = ()
    unattributed: Unattributed | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why the loop stopped; `finish` makes a `RunResult` of it."""

    ended_by: EndedBy
    text: str = ""
    """The final text, where the model ended by one."""
    completion: Completion | None = None
    error: ErrorInfo | None = None


@dataclass(slots=True, kw_only=True)
class Run:
    """The moving parts of one run; made by `begin`, never shared between runs."""

    context: RuntimeContext
    config: LoopConfig
    input: LoopInput
    tools: Mapping[str, Tool]
    specs: tuple[ToolSpec, ...]
    history: History
    state: RunState
    purse: Purse
    env: dict[str, str] = field(default_factory=dict)
    """What every exec of this run gets: its own TMPDIR, the task's time zone."""
    steps: int = 0
    usage: Usage = field(default_factory=Usage)
    warnings: list[str] = field(default_factory=list)
    carried: str = ""
    """Text of turns that were cut off and went on in the next."""
    said: list[str] = field(default_factory=list)
    """The pieces of a reply that is still coming."""
    last_reply: str = ""
    """The text of the latest reply that had any."""
    nudged: bool = False
    kept: dict[str, str] = field(default_factory=dict)
    """Id of a call → what its tool says must stay of the result when the conversation is compacted."""
    carried_over: list[str] = field(default_factory=list)
    """The same, of results that a summary replaced."""
    scale: float = 1.0
    """Tokens that the model's service counts for each estimated one."""
    window_said: bool = False
    outgrown: bool = False
    """Whether the latest reply was cut by the window's end, and room was made for another."""
    compacted_to: int = 0
    """Estimated tokens that the last compaction left."""
    pauses: int = 0
    unrun: int = 0
    """Replies in a row whose calls were refused, because the model did not stop for them."""
    open: OpenStep | None = None
    """The reply that is being settled."""
    resuming: bool = False
    """Whether that reply came to a process that died while its calls ran."""
    keeping: anyio.Lock = field(default_factory=anyio.Lock)
    """Held while a step is kept."""

    @classmethod
    def begin(cls, context: RuntimeContext, config: LoopConfig, input: LoopInput) -> Run:
        """Everything that a run needs before its first request. Raises `ValueError` for a subagent that may ask."""
        if input.kind == "subagent" and (input.spawn is not None or config.definitions):
            raise ValueError("a subagent cannot start subagents: the depth is 1")
        if input.kind == "subagent" and (input.people is not None or FORBIDDEN_IN_SUBAGENTS & {*config.tool_keys}):
            raise ValueError(f"a subagent never has {', '.join(sorted(FORBIDDEN_IN_SUBAGENTS))}, nor people to ask")
        tools = registry.select(
            config.tool_keys, definitions=config.definitions, extra=config.extra_tools, task_extras=config.task_extras
        )
        config.writers.begin(context.run_id, input.label)
        return cls(
            context=context,
            config=config,
            input=input,
            tools=tools,
            specs=registry.specs(tools),
            history=History(input.messages),
            state=RunState(todos=context.todos),
            purse=config.purse or Purse(limit=config.budget),
        )

    @property
    def event_fields(self) -> dict[str, Any]:
        """What every event of this run carries."""
        return {
            "task_id": self.context.task_id,
            "run_id": self.context.run_id,
            "parent_run_id": self.input.parent_run_id,
            "label": self.input.label,
            "tool_call_id": self.input.tool_call_id,
        }

    async def emit(self, event: type[EventBase], **fields: Any) -> None:
        """Make an event of this run and hand it to its stream."""
        await self.context.writer(event(**{**self.event_fields, **fields}))

    async def warn(self, code: str, message: str) -> None:
        """Say something that the parent and the operator must read: in the log now, in the result at the end."""
        self.warnings.append(message)
        await self.emit(Warned, code=code, message=message)

    def tool_context(self, call_id: str, *, failed_siblings: int = 0) -> ToolContext:
        """What one call may touch."""
        fields = self.event_fields
        if self.input.kind == "main":
            fields["tool_call_id"] = call_id
        return ToolContext(
            task_id=self.context.task_id,
            run_id=self.context.run_id,
            call_id=call_id,
            exec_id=self._exec_id(call_id),
            sandbox=self.context.sandbox,
            state=self.state,
            emit=self.context.writer,
            event_fields=fields,
            timezone=self.context.timezone,
            env=self.env,
            spawn=self.input.spawn,
            people=self._people,
            writers=self.config.writers,
            expected_outputs=self.input.expected_outputs,
            failed_siblings=failed_siblings,
            why_cut=self.context.lifeline.why_cut,
        )

    def _exec_id(self, call_id: str) -> str:
        """The same for the same call of the same step, also in a process that resumes this run."""
        whose = f"{self.context.run_id}\0{self.steps}\0{call_id}".encode("utf-8", "surrogatepass")
        return f"exec_{hashlib.sha256(whose).hexdigest()[:16]}"

    @property
    def _people(self) -> People | None:
        """Those who answer, wired to this run's clocks: waiting for a person is nobody's time."""
        people = self.input.people
        return people and replace(people, waiting=self.context.lifeline.waiting_for_person)

    def final_tool(self) -> Tool:
        """The tool that ends the run."""
        return next(tool for tool in self.tools.values() if tool.final)

    def remember(self, text: str) -> None:
        """Note the text of a whole reply."""
        self.said.clear()
        if text.strip():
            self.last_reply = text

    @property
    def last_text(self) -> str:
        """The latest that the model said, also in a reply that never ended."""
        half = "".join(self.said)
        return half if half.strip() else self.last_reply

    def final_text(self, text: str) -> str:
        """A closing text together with the cut-off turns that it continues."""
        return (self.carried + text).strip()
