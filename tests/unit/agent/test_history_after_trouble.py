"""The history's invariants after a cancel, an interruption, a bug, a lost sandbox and a caller that was cancelled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.agent.stage import Stage, hang, tool
from tests.unit.agent.test_calls import check_history, reply

from kinfold.agent.run import Run
from kinfold.events import ToolEnded, ToolStarted
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedCall, ScriptedModel, ScriptedReply
from kinfold.tools.base import ToolContext, ToolOutcome

QUICK, SLOW, STRIKE = (ScriptedCall(tool=name, input={}) for name in ("quick", "slow", "strike"))
LAST = {
    "in a request": (),
    "in the first call": (STRIKE, QUICK, QUICK),
    "behind another": (QUICK, STRIKE, ScriptedCall(tool="complete", input={"summary": "x"})),
    "beside others": (SLOW, STRIKE, SLOW),
}
"""The calls of the step in which the trouble comes."""


class Troubled:
    """A run that plays a script and then gets into trouble."""

    def __init__(self, script: list[ScriptedReply], trouble: str, where: str) -> None:
        self._trouble = trouble
        self._queue = [replace(r, calls=tuple(call for call in r.calls if call.tool != "slow")) for r in script]
        self._queue += [ScriptedReply(calls=LAST[where])] if LAST[where] else []
        self.stage = Stage()
        self.context = self.stage.context()
        self.outside = anyio.CancelScope()
        self.struck = False

    async def _strike(self) -> None:
        self.struck = True
        match self._trouble:
            case "cancelled" | "interrupted":
                self.context.lifeline.stop(self._trouble)
            case "outside":
                self.outside.cancel()
            case "lost":
                self.stage.sandbox.lost = True
                await self.stage.sandbox.read("a")
            case _:
                raise KeyError("surprise")
        await anyio.sleep_forever()

    async def _answer(self, request: ModelRequest) -> ScriptedReply:
        if not self._queue:
            await self._strike()
        return self._queue.pop(0)

    async def _struck(self, context: ToolContext, arguments: Any) -> ToolOutcome:
        await self._strike()
        raise AssertionError

    async def _quick(self, context: ToolContext, arguments: Any) -> ToolOutcome:
        return ToolOutcome.of("quick")

    async def run(self) -> None:
        tools = (
            tool("quick", self._quick), tool("fails", self._quick), tool("slow", hang, parallel=True),
            tool("strike", self._struck),
        )  # fmt: skip
        with self.outside:
            await self.stage.run(model=ScriptedModel(self._answer), tools=tools, max_steps=9, context=self.context)


@given(
    script=st.lists(reply, max_size=3),
    trouble=st.sampled_from(["cancelled", "interrupted", "outside", "lost", "bug"]),
    where=st.sampled_from(sorted(LAST)),
)
@settings(max_examples=120, deadline=None)
def test_each_call_is_answered_once_and_ended_once_whatever_ends_the_run_and_wherever(
    script: list[ScriptedReply], trouble: str, where: str
) -> None:
    runs: list[Run] = []
    begin = Run.begin

    def kept(*arguments: Any) -> Run:
        runs.append(begin(*arguments))
        return runs[-1]

    async def play() -> Troubled:
        troubled = Troubled(script, trouble, where)
        await troubled.run()
        return troubled

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "begin", kept)
        troubled = anyio.run(play)
    (run,) = runs
    check_history(run.history.messages)
    stage = troubled.stage
    assert sorted(e.call_id for e in stage.of(ToolStarted)) == sorted(e.call_id for e in stage.of(ToolEnded))
    if troubled.struck:
        expected = {"outside": "cancelled", "lost": "sandbox_lost", "bug": "internal_error"}.get(trouble, trouble)
        assert stage.only_ending().ended_by == expected
    if troubled.struck and LAST[where]:  # the step that it came in is in the history, each of its calls answered
        assert [call.name for call in run.history.messages[-2].tool_calls] == [call.tool for call in LAST[where]]
