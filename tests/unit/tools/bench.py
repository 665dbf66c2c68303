"""A tool's surroundings without a sandbox: what it emits is kept, and files live in a dict."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kinfold.errors import PathError
from kinfold.events import EventBase
from kinfold.messages import TextBlock, ToolCall
from kinfold.sandbox.base import FileStat
from kinfold.sandbox.workspace import normalize
from kinfold.tools.base import Completion, RunState, Spawn, Tool, ToolContext, ToolOutcome
from kinfold.tools.people import People
from kinfold.tools.registry import SHIPPED, dispatch


@dataclass
class FakeSandbox:
    """Files in memory and prepared answers; counts the round trips of `stat`."""

    files: dict[str, bytes] = field(default_factory=dict)
    stats: dict[str, FileStat | PathError] = field(default_factory=dict)
    stat_calls: list[list[str]] = field(default_factory=list)
    write_error: PathError | None = None

    async def write(self, path: str, data: bytes, **_: Any) -> FileStat:
        if self.write_error is not None:
            raise self.write_error
        self.files[normalize(path)] = data
        return a_stat(normalize(path), size=len(data), sha256=hashlib.sha256(data).hexdigest())

    async def stat(
        self, paths: Iterable[str], *, digest: bool = False, claim: bool = False
    ) -> list[FileStat | PathError]:
        assert digest
        assert claim
        self.stat_calls.append(list(paths))
        return [self.stats.get(path, PathError("not_found", path)) for path in self.stat_calls[-1]]


def a_stat(path: str, **values: Any) -> FileStat:
    defaults: dict[str, Any] = {
        "type": "file", "size": 3, "mode": 0o644, "mtime_ns": 1_700_000_000_123_456_789, "ctime_ns": 5, "inode": 7,
    }  # fmt: skip
    return FileStat(path=path, **{**defaults, **values})


class Bench:
    """One run's context over a sandbox, and what came out of it."""

    def __init__(self, sandbox: Any, run_id: str = "run_1") -> None:
        self.sandbox = sandbox
        self.state = RunState()
        self.events: list[Any] = []
        self.run_id = run_id
        self.on_event: Callable[[EventBase], None] = self.events.append

    async def _emit(self, event: EventBase) -> None:
        self.on_event(event)

    def make(
        self, *, spawn: Spawn | None = None, people: People | None = None, failed_siblings: int = 0, **fields: Any
    ) -> ToolContext:
        """The context of one call of the run."""
        return ToolContext(
            task_id="task_1",
            run_id=self.run_id,
            call_id="call_1",
            sandbox=self.sandbox,
            state=self.state,
            emit=self._emit,
            event_fields={"task_id": "task_1", "run_id": self.run_id, **fields},
            spawn=spawn,
            people=people,
            failed_siblings=failed_siblings,
        )

    async def answer(
        self, tools: Mapping[str, Tool], name: str, arguments: Mapping[str, Any], **values: Any
    ) -> ToolOutcome:
        """Dispatch one call that does not complete the run."""
        call = ToolCall(id="call_1", name=name, input=dict(arguments))
        return await dispatched(tools, call, self.make(**values))

    async def text(self, name: str, **arguments: Any) -> str:
        """What a shipped tool answers when all is well."""
        outcome = await self.answer(SHIPPED, name, arguments)
        assert not outcome.is_error, text_of(outcome)
        return text_of(outcome)

    async def refusal(self, name: str, **arguments: Any) -> str:
        """What a shipped tool answers to a mistake."""
        outcome = await self.answer(SHIPPED, name, arguments)
        assert outcome.is_error, text_of(outcome)
        return text_of(outcome)


async def dispatched(tools: Mapping[str, Tool], call: ToolCall, context: ToolContext) -> ToolOutcome:
    """Dispatch a call that does not complete the run."""
    result = await dispatch(tools, call, context)
    assert isinstance(result, ToolOutcome), result
    return result


def text_of(result: ToolOutcome | Completion) -> str:
    """The text blocks that the model reads."""
    assert isinstance(result, ToolOutcome), result
    return "\n".join(block.text for block in result.content if isinstance(block, TextBlock))
