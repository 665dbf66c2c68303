"""Takes a run up where another process left it: with its memory, and with the reply whose calls it had not settled."""

from __future__ import annotations

from kinfold.agent import keeping
from kinfold.agent.history import History
from kinfold.agent.kept import OpenStep, StepRecord, conversation, snapshot_of
from kinfold.agent.past import PastRun
from kinfold.agent.run import Ending, Run
from kinfold.agent.step import settle
from kinfold.messages import Usage
from kinfold.models.base import Reply
from kinfold.tools.base import Todo


async def take_up(run: Run, past: PastRun, last: StepRecord) -> Ending | None:
    """Put the run where it was and settle what was open; None: it goes on with another step."""
    restore(run, past, last)
    what = "between two steps" if last.open is None else "while that was settled"
    await run.warn("resumed", f"resumed after step {last.step}: the process that ran it died {what}")
    if last.open is None:
        return None
    run.open, run.resuming = last.open, True
    ending = await settle(run, _reply(last.open))
    run.resuming = False
    if ending is None:
        await keeping.step_ended(run)
    return ending


def restore(run: Run, past: PastRun, last: StepRecord) -> None:
    """All that the run knew. Raises `ValueError` for steps that do not fit together."""
    memory, state, context = last.memory, run.state, run.context
    messages = conversation(past.steps)
    run.history = History(messages, kept=len(messages))
    run.steps, run.usage = last.step, past.usage
    run.warnings = list(memory.warnings)
    context.reminders[:] = memory.reminders
    run.env, run.carried, run.last_reply = memory.env, memory.carried, memory.last_reply
    run.nudged, run.pauses = memory.nudged, memory.pauses
    run.kept, run.carried_over = dict(memory.kept), list(memory.carried_over)
    run.scale, run.window_said, run.compacted_to = memory.scale, memory.window_said, memory.compacted_to
    state.todos[:] = [Todo(content=todo.content, status=todo.status) for todo in memory.todos]
    state.read_versions, state.written = dict(memory.read_versions), set(memory.writes)
    state.complete_refused, state.outputs_refused = memory.complete_refused, memory.outputs_refused
    state.last_tool_error, state.spills = memory.last_tool_error, memory.spills
    state.exec_offsets = dict(memory.exec_offsets)
    state.snapshot = snapshot_of(past.steps[0].snapshot)


def _reply(open_step: OpenStep) -> Reply:
    """The reply as it came; what it cost is counted already."""
    return Reply(
        message=open_step.message,
        stop_reason=open_step.stop_reason,
        usage=Usage(),
        message_id="",
        model="",
        incomplete=open_step.incomplete,
    )
