"""RuntimeContext: what a run knows of the world around it, and exactly which of it a subagent inherits."""

from __future__ import annotations

import secrets
from datetime import datetime
from zoneinfo import ZoneInfo

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kinfold.agent.limits import Lifeline
from kinfold.config import check_timezone
from kinfold.events import Emit, EventBase
from kinfold.messages import Message, SubagentRecord, TextBlock
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tools.base import Todo

INHERITED = ("task_id", "user_id", "sandbox", "workspace", "timezone")
"""All that a subagent gets of its parent's context. What is not named here is never passed on."""


def new_run_id() -> str:
    """A fresh `run_…` id."""
    return f"run_{secrets.token_hex(8)}"


async def discard(event: EventBase) -> None:
    """The writer of a run that nobody watches."""


class RuntimeContext(BaseModel):
    """One run's surroundings. Always built by validation; a subagent's never by copying its parent's."""

    model_config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True)

    task_id: str = Field(min_length=1)
    user_id: str = Field(min_length=1)
    sandbox: Sandbox
    """Borrowed: the parent task owns it."""
    workspace: str = Field(pattern=r"^/")
    """The workspace root as the container sees it."""
    timezone: str
    """An IANA name."""

    run_id: str = Field(default_factory=new_run_id)
    todos: list[Todo] = Field(default_factory=list)
    """This agent's own list."""
    reminders: list[str] = Field(default_factory=list)
    """Notes of the loop to the model; they travel at the end of the next user message."""
    writer: Emit = discard
    """This run's stream. A subagent's is a relay made for it, never the parent's own."""
    subagent_records: list[SubagentRecord] = Field(default_factory=list)
    """One entry for each subagent that this run started, for billing. Always empty in a subagent."""
    lifeline: Lifeline = Field(default_factory=Lifeline)

    @field_validator("timezone")
    @classmethod
    def _known_timezone(cls, name: str) -> str:
        return check_timezone(name)

    @classmethod
    def for_subagent(
        cls, parent: RuntimeContext, *, writer: Emit = discard, run_id: str | None = None
    ) -> RuntimeContext:
        """A fresh context over the parent's sandbox and workspace: the five inherited fields, nothing else.

        `run_id`: of a run that another process began.
        """
        inherited = {name: getattr(parent, name) for name in INHERITED}
        own = {"run_id": run_id or new_run_id(), "writer": writer, "lifeline": Lifeline(above=parent.lifeline)}
        return cls.model_validate({**inherited, **own})


def kickoff(prompt: str, timezone: str) -> Message:
    """The first user message of a run: the prompt, and the date as a line of its own (never in system: it changes)."""
    today = datetime.now(ZoneInfo(timezone)).date().isoformat()
    return Message(
        role="user", content=(TextBlock(text=prompt), TextBlock(text=f"Today's date: {today} ({timezone})."))
    )
