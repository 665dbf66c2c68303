"""Every way a run can end: its `ended_by`, its status, what it leaves, and one `run_ended`."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import anyio
import pytest
from tests.unit.agent.stage import ROOT, MemorySandbox, Stage, calls, complete, hang, sha256, tool

from kinfold.agent import finish
from kinfold.definitions import has_tool_call, text_matches, tokens_over
from kinfold.errors import ModelError, PathError, ToolError
from kinfold.events import StepStarted, ToolEnded, ToolStarted, Warned
from kinfold.messages import STATUS_OF, EndedBy, ToolResult, Usage
from kinfold.models.base import ModelEvent, ModelRequest, TextChunk
from kinfold.models.scripted import ScriptedCall, ScriptedModel, ScriptedReply
from kinfold.sandbox.base import OwnerEnd, Snapshot
from kinfold.tools.base import ToolContext, ToolOutcome

pytestmark = pytest.mark.anyio
WRITE_A = calls(("write_file", {"path": "a.txt", "content": "A"}))


def raising(error: Exception) -> Any:
    """A model that fails."""

    class Failing:
        name = "failing"

        async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
            yield TextChunk(text="half a ")
            raise error

    return Failing()


async def test_complete_delivers_what_was_checked_and_leaves_no_salvage() -> None:
    stage = Stage()
    result = await stage.run(WRITE_A, complete("made it", "a.txt", "b.txt"))
    assert (result.ended_by, result.status, result.steps) == ("complete", "completed", 2)
    assert result.summary == "made it"
    (artifact,) = result.artifacts
    assert (artifact.path, artifact.change, artifact.sha256) == (f"{ROOT}/a.txt", "created", sha256(b"A"))
    assert [(skip.path, skip.reason) for skip in result.skipped] == [("b.txt", "missing")]
    assert result.salvage is None
    ended = stage.only_ending()
    assert (ended.ended_by, ended.artifacts, ended.skipped) == ("complete", result.artifacts, result.skipped)


async def test_a_main_agent_may_end_by_text_and_its_files_are_salvaged() -> None:
    stage = Stage()
    stage.sandbox.files[f"{ROOT}/old.txt"] = b"old"
    result = await stage.run(WRITE_A, "that is all")
    assert (result.ended_by, result.status, result.summary) == ("text", "completed", "that is all")
    assert result.artifacts == ()
    assert result.salvage is not None
    (touched,) = result.salvage.files_touched
    assert (touched.path, touched.change, touched.sha256) == (f"{ROOT}/a.txt", "created", sha256(b"A"))


@pytest.mark.parametrize(
    "condition", [has_tool_call("write_file"), tokens_over(1), text_matches("writ.ng")], ids=lambda c: str(c.type)
)
async def test_a_stop_condition_ends_the_run_after_its_step(condition: Any) -> None:
    stage = Stage()
    step = calls(("write_file", {"path": "a.txt", "content": "A"}), text="writing")
    result = await stage.run(step, stop_conditions=(condition,))
    assert (result.ended_by, result.status, result.summary) == ("stop_condition", "completed", "writing")
    assert f"{ROOT}/a.txt" in stage.sandbox.files


async def test_at_the_step_limit_one_more_step_may_only_complete() -> None:
    stage = Stage()
    result = await stage.run(WRITE_A, complete("half of it", "a.txt"), max_steps=1)
    assert (result.ended_by, result.status, result.steps) == ("step_limit", "aborted", 2)
    assert result.summary == "half of it"
    assert [artifact.path for artifact in result.artifacts] == [f"{ROOT}/a.txt"]
    assert result.salvage is not None
    assert [request.tool_choice for request in stage.requests] == [None, "complete"]
    assert stage.requests[0].tools == stage.requests[1].tools
    last = stage.requests[1].messages[-1]
    assert [block.type for block in last.content] == ["tool_result", "text"]


async def test_a_run_is_reminded_once_when_few_steps_are_left() -> None:
    stage = Stage()
    await stage.run(*[WRITE_A] * 5, complete("done"), max_steps=6)
    reminded = [request.step for request in stage.requests if "Reminder" in request.messages[-1].text]
    assert reminded == [5]
    last = stage.requests[4].messages[-1]
    assert [block.type for block in last.content] == ["tool_result", "text"]


async def test_a_finalisation_is_accepted_though_none_of_its_claims_holds() -> None:
    result = await Stage().run(WRITE_A, complete("little came of it", "b.txt"), max_steps=1)
    assert (result.ended_by, result.summary) == ("step_limit", "little came of it")
    assert [(skip.path, skip.reason) for skip in result.skipped] == [("b.txt", "missing")]
    assert any("accepted although" in warning for warning in result.warnings)


async def test_a_refused_finalisation_still_keeps_the_work() -> None:
    stage = Stage()
    other = calls(("write_file", {"path": "late.txt", "content": "no"}), text="I would rather write")
    result = await stage.run(WRITE_A, other, max_steps=1)
    assert (result.ended_by, result.summary) == ("step_limit", "I would rather write")
    assert f"{ROOT}/late.txt" not in stage.sandbox.files
    assert result.salvage is not None
    assert [file.path for file in result.salvage.files_touched] == [f"{ROOT}/a.txt"]


async def test_a_run_out_of_time_ends_its_calls_and_finalises() -> None:
    stage = Stage()
    hanging = calls(("hang", {}), ("write_file", {"path": "a.txt", "content": "A"}))
    result = await stage.run(hanging, complete("as far as I came"), tools=(tool("hang", hang),), timeout=0.05)
    assert (result.ended_by, result.status, result.summary) == ("timeout", "aborted", "as far as I came")
    answers = stage.requests[1].messages[-1].content
    assert [getattr(block, "is_error", None) for block in answers] == [True, True, None]


async def test_a_silent_model_is_no_progress_and_gets_its_finalisation() -> None:
    stage = Stage()
    result = await stage.run(ScriptedReply(text="x", delay=30), complete("woke up"), chunk_timeout=0.05)
    assert (result.ended_by, result.summary) == ("no_progress", "woke up")


async def test_a_tool_that_never_answers_is_no_progress() -> None:
    replies, tools = (calls(("hang", {})), complete("it hung")), (tool("hang", hang),)
    result = await Stage().run(*replies, tools=tools, chunk_timeout=0.1, tool_patience=0.15)
    assert (result.ended_by, result.summary) == ("no_progress", "it hung")


async def test_a_silent_tool_has_more_time_than_a_silent_model() -> None:
    async def silent(context: ToolContext, arguments: Any) -> ToolOutcome:
        await anyio.sleep(0.3)
        return ToolOutcome.of("here I am")

    replies, tools = (calls(("silent", {})), complete()), (tool("silent", silent),)
    result = await Stage().run(*replies, tools=tools, chunk_timeout=0.1, tool_patience=30)
    assert result.ended_by == "complete"


async def test_a_finalisation_that_hangs_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finish, "FINALISATION", 0.05)
    stage = Stage()
    result = await stage.run(WRITE_A, ScriptedReply(text="x", delay=30), max_steps=1)
    assert (result.ended_by, result.steps) == ("step_limit", 2)
    assert any("finalisation step did not end" in warning for warning in result.warnings)


async def test_a_finalisation_that_is_stopped_does_not_say_that_its_time_was_up() -> None:
    stage = Stage()
    context = stage.context()

    async def ask(request: ModelRequest) -> ScriptedReply:
        if request.tool_choice is not None:
            context.lifeline.stop("cancelled")
            await anyio.sleep_forever()
        return WRITE_A

    result = await stage.run(model=ScriptedModel(ask), max_steps=1, context=context)
    assert (result.ended_by, result.steps) == ("step_limit", 2)
    assert result.warnings == ("the finalisation step did not end before the run was stopped",)


async def test_an_empty_budget_ends_before_the_next_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinfold.agent.metered.cost_usd", lambda model, usage: 0.6)
    stage = Stage()
    result = await stage.run(WRITE_A, WRITE_A, budget=1.0)
    assert (result.ended_by, result.status, result.steps, result.cost) == ("budget", "aborted", 2, 1.2)


async def test_a_budget_for_a_model_without_a_price_is_said_not_to_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinfold.agent.metered.cost_usd", lambda model, usage: None)
    result = await Stage().run("hello", budget=1.0)
    assert result.cost is None
    assert any("price of scripted is not known" in warning for warning in result.warnings)


async def test_a_stopped_run_is_cancelled_with_all_calls_answered() -> None:
    stage = Stage()
    context = stage.context()

    async def stop(context_: ToolContext, arguments: Any) -> ToolOutcome:
        context.lifeline.stop("cancelled")
        context.lifeline.stop("interrupted")  # too late: the first reason stands
        await anyio.sleep_forever()
        raise AssertionError

    result = await stage.run(calls(("stop", {})), tools=(tool("stop", stop),), context=context)
    assert (result.ended_by, result.status, result.steps) == ("cancelled", "aborted", 1)
    assert stage.sandbox.ended_owners == [context.run_id]


async def test_a_cancellation_from_outside_passes_through_after_the_run_closed_itself() -> None:
    stage = Stage()
    with anyio.move_on_after(0.05) as scope:
        await stage.run(calls(("hang", {})), tools=(tool("hang", hang),))
    assert scope.cancelled_caught
    ended = stage.only_ending()
    assert (ended.ended_by, ended.status) == ("cancelled", "aborted")
    assert stage.sandbox.ended_owners == [ended.run_id]


async def test_an_empty_reply_is_nudged_once_and_then_the_end() -> None:
    stage = Stage()
    result = await stage.run(WRITE_A, ScriptedReply(), ScriptedReply(text=" "))
    assert (result.ended_by, result.status, result.steps) == ("empty", "error", 3)
    nudge = stage.requests[2].messages[-1]
    assert nudge.role == "user"
    assert "reply was empty" in nudge.text


async def test_a_nudged_model_can_still_complete() -> None:
    result = await Stage().run(ScriptedReply(), complete("after all"))
    assert (result.ended_by, result.summary) == ("complete", "after all")


async def test_a_refusal_runs_none_of_its_calls() -> None:
    stage = Stage()
    refused = calls(("write_file", {"path": "a.txt", "content": "A"}), text="no", stop_reason="refusal")
    result = await stage.run(refused)
    assert (result.ended_by, result.status) == ("refusal", "error")
    assert result.error is not None
    assert stage.sandbox.files == {}


async def test_a_full_context_window_is_an_ending_of_its_own() -> None:
    assert (
        await Stage().run(ScriptedReply(text="x", stop_reason="model_context_window_exceeded"))
    ).ended_by == "context"
    too_long = ModelError("prompt is too long", kind="context")
    assert (await Stage().run(model=raising(too_long))).ended_by == "context"


async def test_a_failed_model_is_a_model_error_and_its_half_text_is_salvaged() -> None:
    stage = Stage()
    result = await stage.run(model=raising(ModelError("overloaded", kind="overloaded", hint="later")))
    assert (result.ended_by, result.status) == ("model_error", "error")
    assert result.error is not None
    assert (result.error.message, result.error.hint) == ("overloaded", "later")
    assert result.salvage is not None
    assert result.salvage.last_text == "half a "


async def test_an_unknown_stop_reason_is_an_error_and_does_not_loop() -> None:
    result = await Stage().run(ScriptedReply(text="words", stop_reason="compaction_pause"))
    assert (result.ended_by, result.steps, result.summary) == ("model_error", 1, "words")


async def test_a_reply_with_an_unknown_stop_reason_runs_none_of_its_calls() -> None:
    stage = Stage()
    result = await stage.run(calls(("write_file", {"path": "a", "content": "A"}), stop_reason="novel"))
    assert (result.ended_by, stage.sandbox.files) == ("model_error", {})


async def test_an_unreadable_workspace_is_a_warning_and_not_our_bug() -> None:
    class Locked(MemorySandbox):
        async def snapshot(self, max_entries: int = 1_000_000) -> Snapshot:
            raise PathError("permission_denied", ".")

    result = await Stage(sandbox=Locked()).run(complete("done"))
    assert result.ended_by == "complete"
    assert any("cannot be told" in warning for warning in result.warnings)


async def test_a_lost_sandbox_ends_the_run_and_is_never_a_tool_result() -> None:
    stage = Stage()

    async def lose(context: ToolContext, arguments: Any) -> ToolOutcome:
        stage.sandbox.lost = True
        await context.sandbox.read("x")
        raise AssertionError

    result = await stage.run(calls(("lose", {})), tools=(tool("lose", lose),))
    assert (result.ended_by, result.status) == ("sandbox_lost", "error")
    assert result.error is not None
    assert result.error.code == "sandbox_lost"
    stage.only_ending()


async def test_our_own_bug_is_an_internal_error_with_its_traceback_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def broken(context: ToolContext, arguments: Any) -> ToolOutcome:
        raise KeyError("surprise")

    stage = Stage()
    with caplog.at_level(logging.ERROR, logger="kinfold"):
        result = await stage.run(calls(("broken", {})), tools=(tool("broken", broken),))
    assert (result.ended_by, result.status) == ("internal_error", "error")
    assert result.error is not None
    assert "KeyError" in result.error.message
    assert "in broken" in caplog.text
    stage.only_ending()


async def test_a_reply_cut_at_the_token_limit_is_never_executed() -> None:
    stage = Stage()
    cut = calls(("write_file", {"path": "a.txt", "content": "half"}), stop_reason="max_tokens")
    result = await stage.run(cut, complete("done"))
    assert stage.sandbox.files == {}
    (answer,) = stage.requests[1].messages[-1].content
    assert getattr(answer, "is_error", False)
    started, ended = stage.of(ToolStarted)[0], stage.of(ToolEnded)[0]
    assert (started.tool, ended.call_id, ended.is_error) == ("write_file", started.call_id, True)
    assert "cut off" in ended.preview
    assert result.ended_by == "complete"


@pytest.mark.parametrize("stop_reason", ["end_turn", "pause_turn", "stop_sequence"])
async def test_calls_that_the_model_did_not_stop_for_are_answered_and_never_run(stop_reason: str) -> None:
    stage = Stage()
    unasked = calls(("write_file", {"path": "a.txt", "content": "A"}), ("complete", {"summary": "no"}))
    result = await stage.run(replace(unasked, stop_reason=stop_reason), complete("done"))
    assert (result.ended_by, result.summary, stage.sandbox.files) == ("complete", "done", {})
    answers = [block for block in stage.requests[1].messages[-1].content if isinstance(block, ToolResult)]
    assert [answer.is_error for answer in answers] == [True, True]
    assert all(f"ended by `{stop_reason}`" in answer.text for answer in answers)


async def test_a_service_that_never_stops_for_its_calls_is_not_asked_for_ever() -> None:
    unasked = calls(("read_file", {"path": "a.txt"}), stop_reason="end_turn")
    between = [unasked, unasked, WRITE_A]  # a step that ran is no such reply
    result = await Stage().run(*between, *[unasked] * 3, max_steps=20)
    assert (result.ended_by, result.steps) == ("model_error", 6)
    assert result.error is not None
    assert "3 replies in a row" in result.error.message


@pytest.mark.parametrize("stop_reason", ["end_turn", "pause_turn", "max_tokens"])
async def test_a_finalisation_that_did_not_stop_for_its_call_completes_nothing(stop_reason: str) -> None:
    late = replace(complete("unasked", "a.txt"), text="my words", stop_reason=stop_reason)
    result = await Stage().run(WRITE_A, late, max_steps=1)
    assert (result.ended_by, result.summary, result.artifacts) == ("step_limit", "my words", ())


async def test_a_text_cut_at_the_token_limit_goes_on_in_the_next_turn() -> None:
    stage = Stage()
    result = await stage.run(ScriptedReply(text="one two ", stop_reason="max_tokens"), "three")
    assert (result.ended_by, result.summary) == ("text", "one two three")
    assert [message.role for message in stage.requests[1].messages] == ["user", "assistant", "user"]


async def test_a_cut_stream_keeps_what_was_complete() -> None:
    stage = Stage()
    cut = ScriptedReply(
        calls=(ScriptedCall(tool="write_file", input={"path": "a.txt", "content": "A"}),), incomplete=True
    )
    result = await stage.run(cut, ScriptedReply(text="so ", incomplete=True), "far")
    assert f"{ROOT}/a.txt" in stage.sandbox.files
    assert (result.ended_by, result.summary) == ("text", "so far")


async def test_a_paused_turn_is_sent_back_unchanged_and_not_for_ever() -> None:
    stage = Stage()
    pause = ScriptedReply(text="p", stop_reason="pause_turn")
    result = await stage.run(pause, "end")
    assert result.summary == "pend"
    assert [message.role for message in stage.requests[1].messages] == ["user", "assistant"]
    endless = await Stage().run(*[pause] * 11, max_steps=20)
    assert (endless.ended_by, endless.steps) == ("model_error", 11)


async def test_what_a_run_left_running_is_ended_and_named() -> None:
    stage = Stage()
    context = stage.context()
    ends = [OwnerEnd(exec_id=f"exec_{n}", killed=killed, survivors=0) for n, killed in ((1, 0), (2, 3))]
    stage.sandbox.left_running[context.run_id] = [*ends, OwnerEnd(exec_id="exec_3", killed=1, survivors=2)]
    result = await stage.run(complete("done"), context=context)
    gentle, hard, alive = result.warnings
    assert ("exec_1" in gentle, "exec_2" in hard, "3 of it by KILL" in hard) == (True, True, True)
    assert alive == "2 processes of exec_3 could not be killed"
    assert [event.code for event in stage.of(Warned)] == ["background_ended", "background_ended", "survivors"]


async def test_what_is_salvaged_is_looked_at_when_nothing_runs_any_more() -> None:
    class LastWords(MemorySandbox):
        async def end(self, owner: str, *, grace: float = 2.0) -> list[OwnerEnd]:
            await self.write("log.txt", b"last words")
            return await super().end(owner, grace=grace)

    result = await Stage(sandbox=LastWords()).run("done")
    assert result.salvage is not None
    (touched,) = result.salvage.files_touched
    assert (touched.path, touched.sha256) == (f"{ROOT}/log.txt", sha256(b"last words"))


async def test_a_sandbox_that_never_answers_while_a_run_closes_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Mute(MemorySandbox):
        async def end(self, owner: str, *, grace: float = 2.0) -> list[OwnerEnd]:
            await anyio.sleep_forever()
            raise AssertionError

    monkeypatch.setattr(finish, "CLOSING", 0.05)
    stage = Stage(sandbox=Mute())
    with anyio.fail_after(10):
        result = await stage.run(complete("done"))
    assert (result.ended_by, result.summary) == ("complete", "done")
    assert any("did not close this run" in warning for warning in stage.only_ending().warnings)


async def test_the_last_tool_error_is_salvaged() -> None:
    async def fail(context: ToolContext, arguments: Any) -> ToolOutcome:
        raise ToolError("the disk is made of cheese")

    result = await Stage().run(calls(("fail", {})), "gave up", tools=(tool("fail", fail),))
    assert result.salvage is not None
    assert "cheese" in (result.salvage.last_tool_error or "")


async def test_a_long_summary_is_cut_and_its_whole_is_in_a_file() -> None:
    stage = Stage()
    result = await stage.run("word " * 4000)
    assert len(result.summary) <= 8000
    (kept,) = [path for path in stage.sandbox.files if "/.kinfold/" in path]
    assert len(stage.sandbox.files[kept]) >= 19_999
    assert kept.removeprefix(f"{ROOT}/") in result.summary


async def test_steps_are_announced_with_the_tokens_so_far() -> None:
    stage = Stage()
    first = calls(("write_file", {"path": "a", "content": "A"}), usage=Usage(input_tokens=5, output_tokens=2))
    result = await stage.run(first, complete("done"))
    assert [(event.step, event.usage.total_tokens) for event in stage.of(StepStarted)] == [(1, 0), (2, 7)]
    assert result.usage.total_tokens > 7


@pytest.mark.parametrize("ended_by", STATUS_OF)
def test_only_three_endings_are_finalised(ended_by: EndedBy) -> None:
    assert (ended_by in finish.FINALISED) == (ended_by in ("step_limit", "timeout", "no_progress"))
