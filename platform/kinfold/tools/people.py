"""The seam to people: how a main agent's question reaches somebody who answers, and how long it waits.

Whoever starts a task says who answers: a person at a terminal, a policy, or a function of the program's own. A subagent
has nobody to ask.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Literal

import anyio

from kinfold.errors import ToolError
from kinfold.events import Answered, Question
from kinfold.tools import apart
from kinfold.tools.base import ToolContext

DEADLINE = 300.0
"""Seconds that a question waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question, as whoever answers gets it."""

    id: str
    """The tool call's; the `question` event carries it as `call_id`."""
    kind: Literal["question", "confirm"]
    text: str
    choices: tuple[str, ...] = ()
    """What the agent offers; an answer may be another. Of a confirmation: yes and no."""
    assumption: str
    """What holds when nobody answers."""
    timeout: float
    """Seconds until nobody is waited for any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What was answered; of a confirmation, `yes` or `no`."""

    text: str
    by: Literal["person", "policy"] = "person"


Answerer = Callable[[Asked], Awaitable[Answer | None]]
"""Answers one question; None: nobody will. It is cancelled at the deadline, and when the task ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """Who answers a task's main agent."""

    answer: Answerer
    deadline: float = DEADLINE
    """Seconds for each question; the task's clocks stand still meanwhile."""
    waiting: Callable[[], AbstractContextManager[Any]] = nullcontext
    """Stops the run's clocks while somebody is waited for; the run sets it."""


async def ask(context: ToolContext, asked: Asked) -> Answer | None:
    """Put the question and wait, with its `question` and `answered` events; None: nobody answered in time.

    Raises `ToolError` where there is nobody to ask.
    """
    people = context.people
    if people is None:
        raise ToolError("there is nobody to ask here", hint="say what you assume, and go on")
    fields = context.event_fields
    await context.emit(
        Question(
            question=asked.text,
            choices=asked.choices,
            call_id=asked.id,
            kind=asked.kind,
            assumption=asked.assumption,
            timeout=asked.timeout,
            **fields,
        )
    )
    answer: Answer | None = None
    with people.waiting(), anyio.move_on_after(asked.timeout):
        answer = await apart.run(people.answer(asked), "who answers questions")
    by = "nobody" if answer is None else answer.by
    text = asked.assumption if answer is None else answer.text
    await context.emit(Answered(call_id=asked.id, answer=text, by=by, **fields))
    return answer


def deadline_of(context: ToolContext) -> float:
    """Seconds that a question of this run waits."""
    return DEADLINE if context.people is None else context.people.deadline
