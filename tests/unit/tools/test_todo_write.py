"""An agent's own list."""

from __future__ import annotations

import pytest
from tests.unit.tools.bench import Bench

from kinfold.tools.base import Todo

pytestmark = pytest.mark.anyio


async def test_each_call_replaces_the_whole_list(bench: Bench) -> None:
    items = [
        {"content": "look", "status": "completed"},
        {"content": "do\nit", "status": "in_progress"},
        {"content": "x"},
    ]
    assert await bench.text("todo_write", todos=items) == "1 of 3 done\n[x] look\n[>] do it\n[ ] x"
    assert bench.state.todos[0] == Todo(content="look", status="completed")
    assert await bench.text("todo_write", todos=[]) == "The list is empty."
    assert bench.state.todos == []


async def test_a_wrong_item_says_which_and_what_is_allowed(bench: Bench) -> None:
    refused = await bench.refusal("todo_write", todos=[{"content": "a"}, {"content": "b", "status": "done"}])
    assert "`todos.1.status` must be one of 'pending', 'in_progress' or 'completed' (got 'done')" in refused
    assert "`todos.0.content` must not be empty" in await bench.refusal("todo_write", todos=[{"content": ""}])
    assert "`todos.0.prio` is not known" in await bench.refusal("todo_write", todos=[{"content": "a", "prio": 1}])
    assert "at most 100 items" in await bench.refusal("todo_write", todos=[{"content": "a"}] * 101)
