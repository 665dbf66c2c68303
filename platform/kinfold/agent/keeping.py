"""Keeps a run's steps as they happen: the reply before its calls run, each answer as it comes, then the whole step.

What was kept is never ahead of what happened, and behind it by one call at most: that call's outcome is what a resumed
run does not know.
"""

from __future__ import annotations

from kinfold.agent.kept import KeptTodo, Memory, OpenStep, StepRecord, snapshot_entries
from kinfold.agent.run import Run
from kinfold.messages import ToolResult
from kinfold.models.base import Reply


async def reply_came(run: Run, reply: Reply) -> None:
    """The model has answered; nothing of what it asks was done yet."""
    run.open = OpenStep(message=reply.message, stop_reason=reply.stop_reason, incomplete=reply.incomplete)
    await _keep(run)


async def answered(run: Run, result: ToolResult) -> None:
    """A call has its answer."""
    if run.open is not None:
        run.open = run.open.model_copy(update={"answers": (*run.open.answers, result)})
        await _keep(run)


async def step_ended(run: Run) -> None:
    """The step is in the history, and another one will follow; step 0 is the run's beginning."""
    run.open = None
    await _keep(run)


async def _keep(run: Run) -> None:
    if run.config.journal is None:
        return
    async with run.keeping:  # calls of one step answer side by side: the record that is written last is the newest
        done = run.open is None
        length = len(run.history.messages)
        if await run.config.journal.keep(run.context.run_id, _record(run)) and done:
            run.history.kept(length)


def _record(run: Run) -> StepRecord:
    base, messages = run.history.unkept
    return StepRecord(
        step=run.steps,
        base=base,
        messages=messages,
        usage=run.usage,
        memory=_memory(run),
        open=run.open,
        snapshot=snapshot_entries(run.state.snapshot) if run.steps == 0 else None,
    )


def _memory(run: Run) -> Memory:
    state, me = run.state, run.context.run_id
    return Memory(
        env=run.env,
        elapsed=run.context.lifeline.elapsed,
        warnings=tuple(run.warnings),
        reminders=tuple(run.context.reminders),
        carried=run.carried,
        last_reply=run.last_reply,
        nudged=run.nudged,
        pauses=run.pauses,
        kept=run.kept,
        carried_over=tuple(run.carried_over),
        scale=run.scale,
        window_said=run.window_said,
        compacted_to=run.compacted_to,
        todos=tuple(KeptTodo(content=todo.content, status=todo.status) for todo in state.todos),
        read_versions=state.read_versions,
        writes=run.config.writers.written_by(me),
        ran_programs=run.config.writers.ran_programs(me),
        complete_refused=state.complete_refused,
        outputs_refused=state.outputs_refused,
        last_tool_error=state.last_tool_error,
        spills=state.spills,
        exec_offsets=state.exec_offsets,
    )
