"""The tool `todo_write`: an agent's own list of what is to do."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from kinfold.tools import words
from kinfold.tools.base import Todo, Tool, ToolContext, ToolOutcome

MAX_ITEMS = 100
MARKS = {"pending": "[ ]", "in_progress": "[>]", "completed": "[x]"}


class TodoItem(BaseModel):
    """One line of the list."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    content: str = Field(min_length=1, max_length=500, description="What is to do, in a few words.")
    status: Literal["pending", "in_progress", "completed"] = "pending"


class TodoWriteArguments(BaseModel):
    """The whole list, in the order of doing."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    todos: list[TodoItem] = Field(max_length=MAX_ITEMS, description="The whole list; it replaces the one before.")


async def _call(context: ToolContext, arguments: TodoWriteArguments) -> ToolOutcome:
    context.state.todos[:] = [Todo(content=item.content, status=item.status) for item in arguments.todos]
    return ToolOutcome.of(render(context.state.todos))


def render(todos: list[Todo]) -> str:
    """The list as the agent reads it."""
    if not todos:
        return "The list is empty."
    done = sum(todo.status == "completed" for todo in todos)
    lines = [f"{MARKS.get(todo.status, '[ ]')} {' '.join(todo.content.split())}" for todo in todos]
    return "\n".join([f"{done} of {len(todos)} done", *lines])


TOOL = Tool(key="todo_write", words=words.beside(__file__), arguments=TodoWriteArguments, call=_call, recover=_call)
