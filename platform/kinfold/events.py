"""What the outside sees of a task: one frozen discriminated union, numbered per parent task.

Producers build an event without a number (`seq=0`, `at=""`) and hand it to the task's event log, which numbers and
stamps it. Every run ends in exactly one `run_ended`, every task in exactly one `task_ended`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, TypeAdapter

from kinfold.messages import (
    Artifact,
    EndedBy,
    ErrorInfo,
    RunKind,
    Salvage,
    SkippedPath,
    Status,
    Unattributed,
    Usage,
    Wire,
)


class EventBase(Wire):
    """The fields that every event has."""

    model_config = ConfigDict(extra="ignore")

    seq: int = 0
    """1, 2, 3 … within the task; 0 before the log numbered it."""
    at: str = ""
    """RFC 3339, UTC, milliseconds."""
    task_id: str
    run_id: str = ""
    """Empty only on events of the task itself."""
    parent_run_id: str | None = None
    label: str | None = None
    """A subagent's description; None for the main agent."""
    tool_call_id: str | None = None
    """Of a subagent's event: the parent's `task` call. Of a tool event of the main agent: the call itself."""


class TaskStarted(EventBase):
    type: Literal["task_started"] = "task_started"
    prompt: str
    model: str
    sandbox_id: str | None = None
    workspace: str | None = None


class RunStarted(EventBase):
    type: Literal["run_started"] = "run_started"
    kind: RunKind
    definition: str | None = None
    definition_version: int | None = None
    model: str
    max_steps: int


class StepStarted(EventBase):
    type: Literal["step_started"] = "step_started"
    step: int
    """1-based."""
    usage: Usage = Usage()
    """The run's tokens before this step."""


RequestEnd = Literal["ok", "failed", "retried", "cancelled"]


class ModelRequested(EventBase):
    """One attempt at one request to a model, when it has ended: a row of the ledger."""

    type: Literal["model_request"] = "model_request"
    step: int
    attempt: int = 1
    purpose: Literal["step", "finalisation", "compaction"] = "step"
    model: str
    """The one that answered, else the one that was asked."""
    ended: RequestEnd
    error: str | None = None
    message_id: str = ""
    """The service's; empty where it gave none."""
    request_id: str | None = None
    """By which the service knows this attempt, for whoever must ask it."""
    stop_reason: str | None = None
    """Of a reply; None: there was none."""
    usage: Usage = Usage()
    """What the service reported of this attempt, with its detail."""
    estimated: bool = False
    """Nothing was reported (`cancelled`): `usage` is an estimate, and charged to nobody."""
    cost: float | None = None
    """US dollars by list prices; None: not known."""
    seconds: float = 0.0
    sent_tokens: int = 0
    """Everything that the request held, estimated."""
    card_tokens: int = 0
    """Of that, what was said, asked of tools and answered."""
    results: dict[str, int] = Field(default_factory=dict)
    """By call id, what each call that this request is the first to answer adds to the conversation, estimated."""


class TextDelta(EventBase):
    type: Literal["text_delta"] = "text_delta"
    text: str


class ThinkingDelta(EventBase):
    type: Literal["thinking_delta"] = "thinking_delta"
    text: str


class ToolStarted(EventBase):
    type: Literal["tool_started"] = "tool_started"
    tool: str
    call_id: str
    """The model's id of this very call."""
    input: dict[str, Any]


class ToolOutput(EventBase):
    """A chunk of a running tool's output (a command's, mostly); bounded per call."""

    type: Literal["tool_output"] = "tool_output"
    call_id: str
    stream: Literal["stdout", "stderr"]
    text: str


class ToolEnded(EventBase):
    type: Literal["tool_ended"] = "tool_ended"
    tool: str
    call_id: str
    is_error: bool
    duration: float
    preview: str
    """The result's first 500 characters."""


class Waiting(EventBase):
    """A subagent waits for a slot."""

    type: Literal["waiting"] = "waiting"
    running: int
    limit: int


class Retrying(EventBase):
    type: Literal["retrying"] = "retrying"
    attempt: int
    delay: float
    reason: str


class Compacted(EventBase):
    type: Literal["compacted"] = "compacted"
    tokens_before: int
    tokens_after: int


class Warned(EventBase):
    type: Literal["warning"] = "warning"
    code: str
    message: str


class Question(EventBase):
    """The main agent asks a person. Exactly one `answered` follows, unless the run is ended meanwhile."""

    type: Literal["question"] = "question"
    question: str
    choices: tuple[str, ...] = ()
    call_id: str = ""
    kind: Literal["question", "confirm"] = "question"
    assumption: str = ""
    """What holds when nobody answers."""
    timeout: float | None = None
    """Seconds that it waits."""


class Answered(EventBase):
    type: Literal["answered"] = "answered"
    call_id: str
    answer: str
    """By `nobody`: the assumption."""
    by: Literal["person", "policy", "nobody"]


class Heartbeat(EventBase):
    type: Literal["heartbeat"] = "heartbeat"
    elapsed: float
    """Seconds since the run began."""
    since_progress: float
    """Seconds since its last completed block or tool result."""


class SandboxChanged(EventBase):
    type: Literal["sandbox_changed"] = "sandbox_changed"
    sandbox_id: str
    state: Literal["creating", "ready", "degraded", "paused", "closing", "closed", "lost"]
    detail: str = ""


class Egress(EventBase):
    """A program's try to reach the world through an allowlist, when it has ended."""

    type: Literal["egress"] = "egress"
    method: str = ""
    host: str
    port: int
    allowed: bool
    sent: int = 0
    """Bytes that left."""
    received: int = 0
    reason: str = ""
    """Empty where all went well; else one word."""


class RunEnded(EventBase):
    type: Literal["run_ended"] = "run_ended"
    status: Status
    ended_by: EndedBy
    steps: int
    summary: str
    artifacts: tuple[Artifact, ...] = ()
    skipped: tuple[SkippedPath, ...] | None = None
    salvage: Salvage | None = None
    error: ErrorInfo | None = None
    usage: Usage = Usage()
    warnings: tuple[str, ...] = ()
    unattributed: Unattributed | None = None


class TaskEnded(EventBase):
    type: Literal["task_ended"] = "task_ended"
    status: Status
    ended_by: EndedBy
    steps: int
    usage: Usage = Usage()
    error: ErrorInfo | None = None


Event = Annotated[
    TaskStarted | RunStarted | StepStarted | ModelRequested | TextDelta | ThinkingDelta
    | ToolStarted | ToolOutput | ToolEnded | Waiting | Retrying | Compacted | Warned | Question | Answered
    | Heartbeat | SandboxChanged | Egress | RunEnded | TaskEnded,
    Field(discriminator="type"),
]  # fmt: skip

EVENT: TypeAdapter[Event] = TypeAdapter(Event)
"""Reads a stored or streamed event back; unknown fields are ignored, so old tasks always open."""


def timestamp() -> str:
    """Now, as events and records write it: RFC 3339, UTC, milliseconds."""
    return datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


Emit = Callable[[EventBase], Awaitable[None]]
"""How anything below the task layer makes an event: sideways, never upward."""
