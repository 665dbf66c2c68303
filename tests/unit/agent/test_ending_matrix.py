"""Every ending of design §5, of a main agent and of a subagent: nothing of what it says may be untrue.

Each run does the same first: it says something, writes a file, and calls a tool that fails. Then it ends in one of the
fifteen ways. All on a clock that jumps, so the limits are the real ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from tests.unit.agent.stage import ROOT, calls, sha256, tool
from tests.unit.agent.test_delegation import GENERAL, House, work
from tests.unit.agent.virtual_clock import BACKEND

from kinfold.agent.run import RunResult
from kinfold.definitions import text_matches
from kinfold.errors import ModelError, ToolError
from kinfold.events import RunEnded, StepStarted
from kinfold.messages import STATUS_OF, EndedBy, RunKind, Status, Usage
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.tools.base import ToolContext, ToolOutcome

pytestmark = pytest.mark.anyio
USAGE = Usage(input_tokens=100, output_tokens=10)
"""Of each reply."""
FINALISATION = "what there is"
KINDS: tuple[RunKind, ...] = ("main", "subagent")


@pytest.fixture
def anyio_backend() -> Any:
    return BACKEND


def said(text: str = "", **more: Any) -> ScriptedReply:
    return ScriptedReply(text=text, usage=USAGE, **more)


def acted(*named: tuple[str, dict[str, Any]], text: str = "") -> ScriptedReply:
    return calls(*named, text=text, usage=USAGE)


FIRST = acted(("write_file", {"path": "a.txt", "content": "A"}), ("fail", {}), text="on it")
CLOSING = acted(("complete", {"summary": FINALISATION, "paths": ["a.txt"]}))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One way to end, from the second reply on, and what is true then."""

    replies: tuple[Any, ...]
    """The second reply and those after it; a function is called with the stop of the run under test."""
    steps: int = 2
    paid: int = 2
    """Replies that came to their end, so whose tokens count."""
    summary: str = "on it"
    last_text: str = "on it"
    delivered: bool = False
    limits: dict[str, Any] = field(default_factory=dict)
    error: str | None = None
    finalised: bool = False
    tool_error: str = "fail: the disk is made of cheese"
    change: str = "created"


def stopped(reason: EndedBy) -> Callable[[Stoppable], Any]:
    async def reply(under_test: Stoppable) -> ScriptedReply:
        under_test.stop(reason)
        await anyio.sleep_forever()
        raise AssertionError

    return reply


async def overloaded(under_test: Stoppable) -> ScriptedReply:
    raise ModelError("overloaded", kind="overloaded", hint="later")


LATER = said("late", delay=10_000)
CASES: dict[EndedBy, Case] = {
    "complete": Case(
        replies=(acted(("complete", {"summary": "made it", "paths": ["a.txt"]})),), summary="made it", delivered=True
    ),
    "text": Case(replies=(said("that is all"),), summary="that is all", last_text="that is all"),
    "stop_condition": Case(
        replies=(said("enough"),), summary="enough", last_text="enough",
        limits={"stop_conditions": (text_matches("^enough"),)},
    ),
    "step_limit": Case(
        replies=(CLOSING,), limits={"max_steps": 1}, summary=FINALISATION, delivered=True, finalised=True,
    ),
    "timeout": Case(
        replies=(LATER, CLOSING), limits={"timeout": 120.0}, steps=3, summary=FINALISATION, delivered=True,
        finalised=True,
    ),
    "no_progress": Case(replies=(LATER, CLOSING), steps=3, summary=FINALISATION, delivered=True, finalised=True),
    "budget": Case(
        replies=(acted(("read_file", {"path": "a.txt"}), text="and on"),), limits={"budget": 1.0}, summary="and on",
        last_text="and on",
    ),
    "cancelled": Case(replies=(stopped("cancelled"),), paid=1),
    "empty": Case(replies=(said(), said(" ")), steps=3, paid=3, error="empty"),
    "refusal": Case(
        replies=(said("I will not", stop_reason="refusal"),), summary="I will not", last_text="I will not",
        error="refusal",
    ),
    "context": Case(
        replies=(said("so lo", stop_reason="model_context_window_exceeded"), said("no gist at all " * 500)), paid=3,
        summary="so lo", last_text="so lo", error="context",
    ),
    "model_error": Case(replies=(overloaded,), paid=1, error="model_error"),
    "sandbox_lost": Case(
        replies=(acted(("lose", {}), text="and on"),), summary="and on", last_text="and on", error="sandbox_lost",
        change="unknown",
    ),
    "interrupted": Case(replies=(stopped("interrupted"),), paid=1),
    "internal_error": Case(
        replies=(acted(("broken", {}), text="and on"),), summary="and on", last_text="and on", error="internal_error"
    ),
}  # fmt: skip


class Stoppable:
    """The run under test, on its stage, with its script."""

    def __init__(self, kind: RunKind, case: Case) -> None:
        self.kind = kind
        self._case = case
        self._script = [FIRST, *case.replies]
        self.asked: list[ModelRequest] = []
        own = (tool("fail", self._fail), tool("lose", self._lose), tool("broken", self._broken))
        keys = ("write_file", "read_file", *(each.key for each in own))
        if kind == "main":
            self.house = House([], self._answer, tools=own)
            self.loop = {"tool_keys": keys, "extra_tools": own, "max_steps": 10, **case.limits}
        else:
            general = GENERAL.model_copy(update={"tool_keys": keys, "max_steps": 10, **case.limits})
            after = said("my own end")
            self.house = House([calls(work("dig")), after, after], self._answer, tools=own, definitions=(general,))
        self.stage = self.house.stage

    async def run(self) -> RunResult:
        if self.kind == "subagent":
            return await self.house.run()
        return await self.stage.run(model=ScriptedModel(self._answer), context=self.house.context, **self.loop)

    def stop(self, reason: EndedBy) -> None:
        if self.kind == "main" or reason == "interrupted":
            self.house.context.lifeline.stop(reason)
        else:
            (run_id,) = self.house.delegation.run_ids
            assert self.house.delegation.cancel(run_id, reason)

    def _answer(self, request: ModelRequest) -> Any:
        self.asked.append(request)
        reply = self._script[len(self.asked) - 1]
        return reply if isinstance(reply, ScriptedReply) else reply(self)

    async def _fail(self, context: ToolContext, arguments: Any) -> ToolOutcome:
        raise ToolError("the disk is made of cheese")

    async def _lose(self, context: ToolContext, arguments: Any) -> ToolOutcome:
        self.stage.sandbox.lost = True
        await context.sandbox.read("a.txt")
        raise AssertionError

    async def _broken(self, context: ToolContext, arguments: Any) -> ToolOutcome:
        raise KeyError("surprise")

    def ended(self) -> RunEnded:
        """The one `run_ended` of the run under test."""
        (event,) = [event for event in self.stage.of(RunEnded) if (event.label == "dig") == (self.kind == "subagent")]
        assert isinstance(event, RunEnded)
        return event


def test_the_matrix_has_every_ending() -> None:
    assert set(CASES) == set(STATUS_OF)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ended_by", CASES)
async def test_an_ending_says_what_is_true(kind: RunKind, ended_by: EndedBy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinfold.agent.metered.cost_usd", lambda model, usage: 0.6)
    case, status = CASES[ended_by], STATUS_OF[ended_by]
    under_test = Stoppable(kind, case)
    result = await under_test.run()
    ended = under_test.ended()
    assert (ended.ended_by, ended.status, ended.steps) == (ended_by, status, case.steps)
    assert ended.summary == case.summary
    assert ended.usage == Usage(input_tokens=100 * case.paid, output_tokens=10 * case.paid)
    assert [artifact.path for artifact in ended.artifacts] == ([f"{ROOT}/a.txt"] if case.delivered else [])
    assert (ended.error.code if ended.error else None) == case.error
    check_salvage(ended, case, complete=ended_by == "complete")
    last = under_test.asked[-1]
    assert (last.purpose == "finalisation", last.tool_choice == "complete") == (case.finalised, case.finalised)
    assert last.tools == under_test.asked[0].tools
    assert len(under_test.stage.of(StepStarted, ended.run_id)) == case.steps
    if kind == "main":
        assert (result.ended_by, result.status, result.summary, result.salvage, result.usage, result.steps) == (
            ended_by, status, ended.summary, ended.salvage, ended.usage, ended.steps,
        )  # fmt: skip
    else:
        check_parent(under_test, ended, result)


def check_salvage(ended: RunEnded, case: Case, *, complete: bool) -> None:
    """The last text, each touched file by its digest, and the last tool error, on every ending but `complete`."""
    if complete:
        assert ended.salvage is None
        return
    assert ended.salvage is not None
    assert ended.salvage.last_text == case.last_text
    assert ended.salvage.last_tool_error == case.tool_error
    assert [(file.path, file.sha256, file.change) for file in ended.salvage.files_touched] == [
        (f"{ROOT}/a.txt", sha256(b"A"), case.change)
    ]


PARENTS: dict[EndedBy, tuple[EndedBy, Status]] = {
    "sandbox_lost": ("sandbox_lost", "error"),
    "interrupted": ("interrupted", "error"),
}
"""How the parent itself ends, where not by its own text."""


def check_parent(under_test: Stoppable, ended: RunEnded, result: RunResult) -> None:
    """The record for billing, and what the parent's model reads, say the same as the event."""
    (record,) = under_test.house.context.subagent_records
    assert (record.ended_by, record.status, record.steps, record.usage) == (
        ended.ended_by, ended.status, ended.steps, ended.usage,
    )  # fmt: skip
    assert (result.ended_by, result.status) == PARENTS.get(ended.ended_by, ("text", "completed"))
    if ended.ended_by in PARENTS:
        return
    (read,) = under_test.house.read_by_parent()
    steps = f"{ended.steps} steps"
    assert read.startswith(f"status: {ended.status} (ended by {ended.ended_by}, {steps}, {ended.run_id})")
    assert read.endswith(f"summary:\n{ended.summary}")
    if ended.status != "completed":
        assert f"{ROOT}/a.txt" in read
        assert "cheese" in read


async def test_a_finalisation_that_hangs_is_ended_after_a_minute() -> None:
    under_test = Stoppable("main", Case(replies=(LATER,), limits={"max_steps": 1}))
    await under_test.run()
    assert anyio.current_time() == pytest.approx(60.0, abs=0.1)
    assert "the finalisation step did not end within 60 s" in under_test.ended().warnings
