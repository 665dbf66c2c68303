"""The tool `ask_user_question`: the main agent asks a person, and goes on by its own assumption if nobody answers."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kinfold.tools import words
from kinfold.tools.base import Tool, ToolContext, ToolOutcome
from kinfold.tools.people import Asked, ask, deadline_of

MAX_CHOICES = 10


class AskUserQuestionArguments(BaseModel):
    """One question, what may be chosen, and what holds without an answer."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    question: str = Field(min_length=1, max_length=2_000, description="One question, complete in itself.")
    options: list[str] = Field(
        default=[], max_length=MAX_CHOICES, description="Answers to choose from; the person may give another."
    )
    assumption: str = Field(
        min_length=1, max_length=500, description="The answer that you will assume if nobody answers in time."
    )

    @field_validator("question", "assumption")
    @classmethod
    def _says_something(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("must not be blank")
        return text

    @field_validator("options")
    @classmethod
    def _usable(cls, options: list[str]) -> list[str]:
        if any(not option.strip() or len(option) > 200 for option in options):
            raise ValueError("must be of 1 to 200 characters each")
        if len(set(options)) < len(options):
            raise ValueError("must differ from each other")
        return options


async def _call(context: ToolContext, arguments: AskUserQuestionArguments) -> ToolOutcome:
    asked = Asked(
        id=context.call_id,
        kind="question",
        text=arguments.question,
        choices=tuple(arguments.options),
        assumption=arguments.assumption,
        timeout=deadline_of(context),
    )
    answer = await ask(context, asked)
    if answer is None:
        return ToolOutcome.of(
            f"Nobody answered (at most {asked.timeout:g} s were waited). Go on with your assumption, and say in your "
            f"summary that you made it: {arguments.assumption}"
        )
    who = "The user answered" if answer.by == "person" else "A policy of the operator answered, no person"
    return ToolOutcome.of(f"{who}: {answer.text}")


TOOL = Tool(
    key="ask_user_question", words=words.beside(__file__), arguments=AskUserQuestionArguments, call=_call, recover=_call
)
