"""What an agent and a model say to each other, and what a finished run hands back.

Everything here crosses a boundary (the model's API, the event log, HTTP), so every class is a frozen pydantic model.
Python is snake_case; the wire is camelCase for kinfold's own shapes (`fsType`, `modifiedAt`) through aliases. The
blocks keep the field names of the Messages API, which are snake_case on the wire too.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

RunKind = Literal["main", "subagent"]
Status = Literal["completed", "aborted", "error"]
EndedBy = Literal[
    "complete", "text", "stop_condition",
    "step_limit", "timeout", "no_progress", "budget", "cancelled",
    "empty", "refusal", "context", "model_error", "sandbox_lost", "interrupted", "internal_error",
]  # fmt: skip
FsType = Literal["file", "directory", "symlink"]
Change = Literal["created", "modified", "unchanged", "unknown"]
SkipReason = Literal[
    "missing", "outside_workspace", "symlink_escape", "unreadable", "not_regular", "too_large", "duplicate", "invalid"
]
StopReason = Literal[
    "end_turn", "tool_use", "max_tokens", "stop_sequence", "pause_turn", "refusal", "model_context_window_exceeded"
]

STATUS_OF: dict[EndedBy, Status] = {
    "complete": "completed", "text": "completed", "stop_condition": "completed",
    "step_limit": "aborted", "timeout": "aborted", "no_progress": "aborted", "budget": "aborted",
    "cancelled": "aborted",
    "empty": "error", "refusal": "error", "context": "error", "model_error": "error", "sandbox_lost": "error",
    "interrupted": "error", "internal_error": "error",
}  # fmt: skip
"""The one table from how a run ended to its status (design §5)."""


class Frozen(BaseModel):
    """Base of the snake_case shapes."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Wire(BaseModel):
    """Base of the shapes that are camelCase outside Python; `dump()` writes them so."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=to_camel, validate_by_name=True, validate_by_alias=True
    )

    def dump(self) -> dict[str, Any]:
        """The JSON-ready dict: camelCase keys, absent where None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


# --- blocks and messages -------------------------------------------------------------------------------------------


class TextBlock(Frozen):
    """Plain text."""

    type: Literal["text"] = "text"
    text: str


class ImageBlock(Frozen):
    """A picture, base64 in `data` (as the Messages API takes it)."""

    type: Literal["image"] = "image"
    media_type: Literal["image/png", "image/jpeg"]
    data: str


class ThinkingBlock(Frozen):
    """The model's reasoning; echoed verbatim, signature included."""

    type: Literal["thinking"] = "thinking"
    thinking: str
    signature: str = ""


class RedactedThinkingBlock(Frozen):
    """Encrypted reasoning; echoed verbatim."""

    type: Literal["redacted_thinking"] = "redacted_thinking"
    data: str


class ToolCall(Frozen):
    """One request of the model to run a tool (`tool_use` on the wire)."""

    type: Literal["tool_use"] = "tool_use"
    id: str
    name: str
    input: dict[str, Any] = Field(default_factory=dict)
    input_error: str | None = None
    """Why the raw input was not valid JSON of an object; such a call is answered with this and never run."""


class ToolResult(Frozen):
    """The one answer to one `ToolCall`."""

    type: Literal["tool_result"] = "tool_result"
    tool_use_id: str
    content: tuple[Annotated[TextBlock | ImageBlock, Field(discriminator="type")], ...] = ()
    is_error: bool = False

    @property
    def text(self) -> str:
        """The text blocks joined."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextBlock))


class OpaqueBlock(Frozen):
    """A block that kinfold does not interpret (server tools, future kinds); echoed verbatim."""

    type: Literal["opaque"] = "opaque"
    raw: dict[str, Any]


Block = Annotated[
    TextBlock | ImageBlock | ThinkingBlock | RedactedThinkingBlock | ToolCall | ToolResult | OpaqueBlock,
    Field(discriminator="type"),
]


class Message(Frozen):
    """One turn."""

    role: Literal["user", "assistant"]
    content: tuple[Block, ...]

    @classmethod
    def user(cls, text: str) -> Message:
        """A user turn of one text block."""
        return cls(role="user", content=(TextBlock(text=text),))

    @property
    def text(self) -> str:
        """The text blocks joined; no thinking, no tool input."""
        return "\n".join(block.text for block in self.content if isinstance(block, TextBlock))

    @property
    def tool_calls(self) -> tuple[ToolCall, ...]:
        """The tool calls, in call order."""
        return tuple(block for block in self.content if isinstance(block, ToolCall))


class ToolSpec(Frozen):
    """What a model is told of a tool."""

    name: str
    description: str
    input_schema: dict[str, Any]


class Usage(Wire):
    """Tokens of one request, or the sum of several (`+`). The prompt's size is input + cache_creation + cache_read."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_tokens: int = 0
    """Written to the service's cache, for whatever time."""
    cache_creation_hour_tokens: int = 0
    """Of these, the ones in entries that live an hour; the others live five minutes."""
    cache_read_tokens: int = 0
    detail: UsageDetail | None = None
    """Of one request: what else the service told of its bill. A sum has none."""

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            cache_creation_tokens=self.cache_creation_tokens + other.cache_creation_tokens,
            cache_creation_hour_tokens=self.cache_creation_hour_tokens + other.cache_creation_hour_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
        )

    @property
    def prompt_tokens(self) -> int:
        """All tokens that were sent."""
        return self.input_tokens + self.cache_creation_tokens + self.cache_read_tokens

    @property
    def context_tokens(self) -> int:
        """The prompt that the model saw last: where a service took several rounds, the last of them."""
        rounds = self.detail.iterations if self.detail else ()
        return next((one.usage.prompt_tokens for one in reversed(rounds) if one.kind == "message"), self.prompt_tokens)

    @property
    def cache_hit_rate(self) -> float:
        """Of what was sent, the share that came out of the service's cache; 0.0 where nothing was sent."""
        return self.cache_read_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def total_tokens(self) -> int:
        """Sent and received."""
        return self.prompt_tokens + self.output_tokens


class Iteration(Wire):
    """One of the rounds that a service took for one request."""

    kind: str
    """`message`, `compaction`, or what else the service calls it."""
    model: str | None = None
    """None: the one that was asked."""
    usage: Usage


class UsageDetail(Wire):
    """What a service told of one request's bill beside the counts."""

    service_tier: str | None = None
    """`standard`, `priority` or `batch`."""
    server_tool_use: dict[str, int] = {}
    """By kind of call (`web_search_requests`), how many the service made by itself."""
    iterations: tuple[Iteration, ...] = ()
    """The counts are their sum, where there are any."""


# --- what a run hands back -----------------------------------------------------------------------------------------


class Artifact(Wire):
    """A delivered path that was checked inside the container."""

    path: str
    """Absolute in the container, links not resolved."""
    size: int
    """Bytes; of a directory the sum of the regular files beneath, of a symlink its target's."""
    fs_type: FsType
    modified_at: str | None = None
    """RFC 3339, UTC."""
    sha256: str | None = None
    """Of a directory: sha256 of the sorted lines of path and sha256. None over 4 GiB."""
    change: Change = "unknown"
    """Against the snapshot taken at the run's start."""
    entries: int | None = None
    """Regular files beneath; directories only."""
    target: str | None = None
    """Symlinks only."""


class SkippedPath(Wire):
    """A claimed path that was not delivered, verbatim, and why."""

    path: str
    reason: SkipReason


class FileTouched(Wire):
    """A file that a run changed."""

    path: str
    sha256: str | None = None
    change: Change


class Salvage(Wire):
    """What is left of a run that did not end by `complete`."""

    last_text: str = ""
    files_touched: tuple[FileTouched, ...] = ()
    last_tool_error: str | None = None


class Unattributed(Wire):
    """What changed in the workspace while a run was live and no tool call explains: some program wrote it."""

    files: tuple[FileTouched, ...]
    runs: tuple[str, ...]
    """The labels of the runs that had programs running meanwhile, this one among them."""


class ErrorInfo(Wire):
    """An error as data."""

    code: str
    message: str
    hint: str = ""


class TaskOutput(Wire):
    """What the `task` tool returns to the parent (the seed's shape, plus the design's fields)."""

    summary: str
    artifacts: tuple[Artifact, ...] = ()
    skipped: tuple[SkippedPath, ...] | None = None
    """None (absent on the wire) when nothing was skipped."""
    status: Status
    steps: int
    ended_by: EndedBy
    salvage: Salvage | None = None
    error: ErrorInfo | None = None
    usage: Usage = Usage()
    run_id: str
    warnings: tuple[str, ...] = ()
    unattributed: Unattributed | None = None


class DefinitionRef(Wire):
    """Which definition a record speaks of."""

    type: str
    version: int = 1


class SubagentRecord(Wire):
    """One subagent run, for billing."""

    definition: DefinitionRef = Field(alias="def")
    tool_call_id: str
    description: str
    steps: int
    usage: Usage
    status: Status
    started_at: str
    completed_at: str
    ended_by: EndedBy
    cost_usd: float | None = None
