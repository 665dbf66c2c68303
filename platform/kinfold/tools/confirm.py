"""The tool `confirm`: the main agent has a person allow one action; without a yes it is not allowed."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kinfold.tools import words
from kinfold.tools.base import Tool, ToolContext, ToolOutcome
from kinfold.tools.people import Asked, ask, deadline_of


class ConfirmArguments(BaseModel):
    """What is to be allowed."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: str = Field(
        min_length=1, max_length=2_000, description="What you are about to do, and what cannot be undone of it."
    )

    @field_validator("action")
    @classmethod
    def _says_something(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("must not be blank")
        return text


async def _call(context: ToolContext, arguments: ConfirmArguments) -> ToolOutcome:
    asked = Asked(
        id=context.call_id,
        kind="confirm",
        text=arguments.action,
        choices=("yes", "no"),
        assumption="no",
        timeout=deadline_of(context),
    )
    answer = await ask(context, asked)
    if answer is None:
        return ToolOutcome.of(
            f"Nobody answered (at most {asked.timeout:g} s were waited), so it is not confirmed: do not do it."
        )
    who = "by the user" if answer.by == "person" else "by a policy of the operator, not by a person"
    if answer.text == "yes":
        return ToolOutcome.of(f"Confirmed {who}.")
    return ToolOutcome.of(f"Not confirmed {who}: do not do it. Find another way, or finish without it.")


TOOL = Tool(key="confirm", words=words.beside(__file__), arguments=ConfirmArguments, call=_call, recover=_call)
