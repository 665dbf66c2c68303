"""How a run ends: the finalisation step, the salvage, what is killed, and the one `run_ended`."""

from __future__ import annotations

import logging

import anyio

from kinfold.agent.calls import run_last_final
from kinfold.agent.instructions import words
from kinfold.agent.run import Ending, Run, RunResult
from kinfold.agent.step import ask
from kinfold.agent.traces import Traces, find, recorded
from kinfold.errors import PathError, SandboxError, ToolError
from kinfold.events import RunEnded
from kinfold.messages import STATUS_OF, EndedBy, FileTouched, Salvage, Unattributed
from kinfold.models.base import Reply
from kinfold.tools import expected
from kinfold.tools.base import Completion
from kinfold.tools.names import shown
from kinfold.tools.spill import SUMMARY_LIMIT, bounded_summary

log = logging.getLogger(__name__)

FINALISED: frozenset[EndedBy] = frozenset({"step_limit", "timeout", "no_progress"})
"""The endings that a finalisation step follows."""
FINALISATION = 60.0
"""Seconds that the finalisation step may take."""
CLOSING = 30.0
"""Seconds that everything after the last step may take."""
SHARED_NAMED = 20
"""How many files that other runs wrote too are warned of, each by its name."""

_REASONS: dict[EndedBy, str] = {
    "step_limit": "its step limit is reached",
    "timeout": "its time is up",
    "no_progress": "it made no progress for too long",
}


async def finalise(run: Run, ended_by: EndedBy) -> Ending:
    """One more step in which the model can only complete; it changes the delivery, never why the run ended."""
    if run.purse.exhausted:
        return Ending(ended_by=ended_by)
    run.context.reminders.append(words("finalise").format(reason=_REASONS[ended_by]))
    run.open = None  # nothing more of it is settled
    run.state.complete_refused = run.state.outputs_refused = (
        True  # there is no second try: what is claimed is accepted, with a warning
    )
    with run.context.lifeline.alive(at_most=FINALISATION):
        reply = await ask(run, tool_choice=run.final_tool().key, purpose="finalisation")
        return await _completed(run, ended_by, reply)
    why = f"within {FINALISATION:.0f} s" if run.context.lifeline.stopped is None else "before the run was stopped"
    await run.warn("finalisation_failed", f"the finalisation step did not end {why}")
    return Ending(ended_by=ended_by)


async def _completed(run: Run, ended_by: EndedBy, reply: Reply) -> Ending:
    text = Ending(ended_by=ended_by, text=reply.message.text)
    if not reply.calls_stand:
        return text
    outcome = await run_last_final(run, reply.message)
    if isinstance(outcome, Completion):
        return Ending(ended_by=ended_by, completion=outcome)
    if outcome is not None:
        await run.warn("finalisation_failed", f"the closing call was refused: {run.state.last_tool_error}")
    return text


async def close(run: Run, ending: Ending) -> RunResult:
    """End what the run left running, take the salvage, emit the run's one `run_ended`. Shielded and bounded."""
    with anyio.CancelScope(shield=True):
        traces, summary = recorded(run), ""
        with anyio.move_on_after(CLOSING) as bound:
            try:
                traces, summary = await _last_requests(run, ending)
            except SandboxError as error:
                await run.warn("sandbox", f"the sandbox failed while this run closed: {error.message}")
            except Exception as error:
                log.exception("closing run %s failed", run.context.run_id)
                await run.warn("internal_error", f"closing this run failed: {type(error).__name__}: {error}")
        if bound.cancelled_caught:
            await run.warn("closing_timeout", f"the sandbox did not close this run within {CLOSING:.0f} s")
        if traces.from_record and traces.files and ending.ended_by != "complete":
            await run.warn("salvage_recorded", "the changed files are listed as this run's tools wrote them last")
        await _warn_of_shared_files(run)
        run.config.writers.end(run.context.run_id)
        result = _result(run, ending, _salvage(run, ending, traces.files), summary, traces.unattributed)
        await run.emit(
            RunEnded,
            status=result.status,
            ended_by=result.ended_by,
            steps=result.steps,
            summary=result.summary,
            artifacts=result.artifacts,
            skipped=result.skipped or None,
            salvage=result.salvage,
            error=result.error,
            usage=result.usage,
            warnings=result.warnings,
            unattributed=result.unattributed,
        )
    return result


async def _last_requests(run: Run, ending: Ending) -> tuple[Traces, str]:
    """What is asked of the sandbox at a run's end, in this order, so that files no longer change when hashed."""
    if ending.ended_by == "sandbox_lost":
        return recorded(run), ""
    await _end_execs(run)
    if ending.completion is None:
        await _warn_of_absent_outputs(run)
    traces = await find(run, hashed=ending.ended_by != "complete")
    summary, warnings = await bounded_summary(
        _summary(run, ending), sandbox=run.context.sandbox, run_id=run.context.run_id
    )
    run.warnings += warnings
    return traces, summary


def _summary(run: Run, ending: Ending) -> str:
    """The delivered summary, else the model's last words."""
    return ending.completion.summary if ending.completion else ending.text or run.last_text


def _salvage(run: Run, ending: Ending, files: tuple[FileTouched, ...]) -> Salvage | None:
    if ending.ended_by == "complete":
        return None
    return Salvage(
        last_text=run.last_text[-SUMMARY_LIMIT:], files_touched=files, last_tool_error=run.state.last_tool_error
    )


def _result(
    run: Run, ending: Ending, salvage: Salvage | None, summary: str, unattributed: Unattributed | None
) -> RunResult:
    delivery = ending.completion or Completion(summary="")
    return RunResult(
        run_id=run.context.run_id,
        status=STATUS_OF[ending.ended_by],
        ended_by=ending.ended_by,
        steps=run.steps,
        summary=summary or _summary(run, ending)[:SUMMARY_LIMIT],
        artifacts=delivery.artifacts,
        skipped=delivery.skipped,
        salvage=salvage,
        error=ending.error,
        usage=run.usage,
        cost=run.purse.cost,
        warnings=(*run.warnings, *delivery.warnings),
        unattributed=unattributed,
    )


async def _end_execs(run: Run) -> None:
    """Kill what the run's commands left in the background, with proof, and name it."""
    for end in await run.context.sandbox.end(run.context.run_id):
        if end.survivors:
            await run.warn("survivors", f"{end.survivors} processes of {end.exec_id} could not be killed")
        else:  # only execs that still had processes are listed; `killed` counts those that TERM did not end
            how = f", {end.killed} of it by KILL" if end.killed else ""
            await run.warn("background_ended", f"what {end.exec_id} had left running was ended with this run{how}")


async def _warn_of_shared_files(run: Run) -> None:
    """Name the files that this run's tools wrote and another run's too: one of them may not be what was meant."""
    shared = sorted(run.config.writers.shared(run.context.run_id).items())
    for path, others in shared[:SHARED_NAMED]:
        await run.warn("shared_file", f"{shown(path)} was written by this run and by {', '.join(others)}")
    if len(shared) > SHARED_NAMED:
        await run.warn("shared_file", f"{len(shared) - SHARED_NAMED} more files were written by other runs too")


async def _warn_of_absent_outputs(run: Run) -> None:
    """Say which declared outputs are absent when nothing was completed that would have said so."""
    try:
        absent = await expected.absent(run.tool_context("closing"))
    except (PathError, ToolError) as error:
        await run.warn("expected_outputs", f"whether the expected outputs exist is unknown: {error.message}")
        return
    if absent:
        await run.warn("expected_outputs", f"expected outputs that do not exist: {', '.join(absent)}")
