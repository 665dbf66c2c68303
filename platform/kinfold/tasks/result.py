"""What is asked of a parent task as limits, and what it hands back."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from kinfold.messages import (
    Artifact,
    EndedBy,
    ErrorInfo,
    Salvage,
    SkippedPath,
    Status,
    SubagentRecord,
    Usage,
    Wire,
)

MAX_STEPS = 60
"""Steps of a main agent, where no limit was named."""


class RunLimits(BaseModel):
    """Ceilings of one parent task."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    max_steps: int = Field(default=MAX_STEPS, ge=1, le=10_000)
    """Of the main agent; a subagent's are its definition's."""
    concurrency: int | None = Field(default=None, ge=1, le=100)
    """Subagents at once; None: six. A further one waits."""
    timeout: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """Seconds, from the main agent's start; its subagents end with it."""
    budget: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """US dollars, of the main agent and all subagents together; holds for models whose price is known."""


class TaskResult(Wire):
    """How a parent task ended and what it leaves. Its `workspace` is for a person to look into."""

    task_id: str
    status: Status
    ended_by: EndedBy
    summary: str
    artifacts: tuple[Artifact, ...] = ()
    """What the main agent delivered; a subagent's are in its own `run_ended`."""
    skipped: tuple[SkippedPath, ...] = ()
    steps: int
    """Of the main agent."""
    usage: Usage = Usage()
    """Of the main agent and all subagents together."""
    cost: float | None = None
    """US dollars of all; None: a price is not known."""
    records: tuple[SubagentRecord, ...] = ()
    warnings: tuple[str, ...] = ()
    salvage: Salvage | None = None
    error: ErrorInfo | None = None
    workspace: str = ""
    out: tuple[str, ...] = ()
    """The files that `out=` wrote, absolute, on this machine."""
