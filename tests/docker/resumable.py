"""A program that begins a task, or goes on with one: `resumable.py STATE IMAGE [TASK]`. One JSON line an event.

Every command of its agents does the same thing however often it is run, and appends its own name to `log`: who ran
twice is seen there. What is told as unknown is done once more.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio

from kinfold import ParentTask, ResumedTask, SandboxSpec, SubagentDefinition
from kinfold.messages import ToolResult
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedCall, ScriptedModel, ScriptedReply

Call = tuple[str, dict[str, Any]]


def command(name: str, line: str) -> Call:
    """A command that leaves its name."""
    return "bash", {"command": f"echo {name} >> log; sleep 0.1; {line}"}


def part(name: str) -> Call:
    """A delegation."""
    return "task", {"subagent_type": "general", "description": name, "prompt": f"make {name}"}


def done(*paths: str) -> list[Call]:
    """The last step."""
    return [("complete", {"summary": f"made {', '.join(paths)}", "paths": list(paths)})]


PLANS: dict[str, list[list[Call]]] = {
    "main": [
        [("write_file", {"path": "notes.txt", "content": "one\ntwo\n"}), command("first", "echo 1 > first.txt")],
        [part("left"), part("right")],
        [command("join", "cat left.txt right.txt > both.txt"), ("read_file", {"path": "notes.txt"})],
        [("edit_file", {"path": "notes.txt", "old_string": "two", "new_string": "2"})],
        done("both.txt", "first.txt", "notes.txt"),
    ],
    "left": [
        [command("left-a", "echo a > left.txt"), command("left-b", "echo b >> left.txt.b")],
        [command("left-c", "echo c > left.txt")],
        done("left.txt"),
    ],
    "right": [
        [("write_file", {"path": "right.txt", "content": "r"})],
        [command("right-a", "wc -c right.txt")],
        done("right.txt"),
    ],
}


def answer(request: ModelRequest) -> ScriptedReply:
    """The next step of the plan; of a step in which something is unknown, that once more."""
    plan, finished, again = PLANS[request.label or "main"], 0, list[Call]()
    for place, message in enumerate(request.messages):
        results = [block for block in message.content if isinstance(block, ToolResult)]
        if results:
            calls = {call.id: call for call in request.messages[place - 1].tool_calls}
            unknown = [calls[result.tool_use_id] for result in results if "outcome unknown" in result.text]
            again = [(call.name, call.input) for call in unknown]
            finished += not again
    return ScriptedReply(calls=tuple(ScriptedCall(tool=name, input=given) for name, given in again or plan[finished]))


async def main(*words: str) -> None:
    """Run it to its end."""
    state, image, *task_id = words
    model = ScriptedModel(answer)
    task = (
        ResumedTask(*task_id, model=model, state_dir=Path(state))
        if task_id
        else ParentTask(
            "make both",
            model=model,
            definitions=[SubagentDefinition(type="general", description="anything")],
            spec=SandboxSpec(image=image, pull="never"),
            state_dir=Path(state),
        )
    )
    async with task:
        await task.start()
        async for event in task.follow():
            print(json.dumps(event.dump()), flush=True)
    print(json.dumps({"type": "result", **task.result.dump()}), flush=True)


if __name__ == "__main__":
    anyio.run(main, *sys.argv[1:])
