"""`run_agent_loop`: ask, do, answer, until an ending; the same code for the main agent and for every subagent."""

from __future__ import annotations

import logging
import posixpath

import anyio

from kinfold.agent import keeping
from kinfold.agent.context import RuntimeContext
from kinfold.agent.finish import FINALISED, close, finalise
from kinfold.agent.instructions import words
from kinfold.agent.resuming import take_up
from kinfold.agent.run import Ending, LoopConfig, LoopInput, Run, RunResult
from kinfold.agent.step import ask, settle
from kinfold.errors import KinfoldError, LimitExceeded, ModelError, PathError, SandboxError
from kinfold.events import RunStarted
from kinfold.messages import EndedBy, ErrorInfo
from kinfold.sandbox.base import ExecRequest

__all__ = ["LoopConfig", "LoopInput", "RunResult", "run_agent_loop"]

log = logging.getLogger(__name__)

STEPS_LEFT = 2
"""So many steps before its limit a run is reminded of it, unless the limit is very low anyway."""
FALLBACK_TMPDIR = "/tmp"  # the container's own
_MAKE_TMPDIR = 'd="$HOME/tmp/$1" && mkdir -p "$d" && cd "$d" && pwd -P'
_LIMITS: dict[str, EndedBy] = {"steps": "step_limit", "tokens": "context", "time": "timeout", "cost": "budget"}


async def run_agent_loop(context: RuntimeContext, config: LoopConfig, input: LoopInput) -> RunResult:
    """Run one agent to its end. Whatever happens once it began is in the result, and ends in one `run_ended`.

    Raises `ValueError` for an input that cannot be run, before anything is emitted. A cancellation from outside
    passes through after the run has closed itself: its execs are dead and its `run_ended` stands in the log.
    """
    run = Run.begin(context, config, input)
    context.lifeline.start(timeout=config.timeout, spent=_spent(input))
    if input.past is None:
        await run.emit(
            RunStarted,
            kind=input.kind,
            definition=input.subagent_type,
            definition_version=input.definition_version,
            model=config.model.name,
            max_steps=config.max_steps,
        )
    try:
        ending = await _work(run)
        if ending.ended_by in FINALISED:
            ending = await _guarded_finalise(run, ending)
    except anyio.get_cancelled_exc_class():
        await close(run, Ending(ended_by=context.lifeline.reason_from_outside()))
        raise
    return await close(run, ending)


def _spent(input: LoopInput) -> float:
    """Seconds of its wall clock that a run has used up in another process."""
    return input.past.last.memory.elapsed if input.past is not None and input.past.last is not None else 0.0


async def _work(run: Run) -> Ending:
    """All steps, until the run ends itself or its lifeline does."""
    with run.context.lifeline.alive() as verdict:
        try:
            past = run.input.past
            if past is None or past.last is None:
                await _prepare(run)
            elif (ending := await take_up(run, past, past.last)) is not None:
                return ending
            return await _steps(run)
        except Exception as error:  # noqa: BLE001 - becomes an ending; a bug is logged with its traceback
            return _ending_of(run, error)
    if verdict.ended_by is None:
        raise RuntimeError("the work stopped without a verdict")
    return Ending(ended_by=verdict.ended_by)


async def _guarded_finalise(run: Run, ending: Ending) -> Ending:
    """The finalisation step, whose failure changes nothing about why the run ended."""
    try:
        return await finalise(run, ending.ended_by)
    except Exception as error:  # noqa: BLE001 - becomes a warning; a bug is logged with its traceback
        failure = _ending_of(run, error)
        message = failure.error.message if failure.error else failure.ended_by
        await run.warn("finalisation_failed", f"the finalisation step failed: {message}")
        return ending


async def _steps(run: Run) -> Ending:
    while True:
        if run.steps >= run.config.max_steps:
            return Ending(ended_by="step_limit")
        if run.purse.exhausted:
            return Ending(ended_by="budget")
        if run.config.max_steps - run.steps == STEPS_LEFT < run.config.max_steps / 2:
            run.context.reminders.append(words("steps_left").format(left=STEPS_LEFT, max_steps=run.config.max_steps))
        ending = await settle(run, await ask(run))
        if ending is not None:
            return ending
        await keeping.step_ended(run)


async def _prepare(run: Run) -> None:
    """The workspace's metadata at the start, for `change`; and a temporary directory of the run's own."""
    try:
        run.state.snapshot = await run.context.sandbox.snapshot()
    except PathError as error:  # an earlier command may have made the workspace unreadable
        await run.warn("snapshot_failed", f"what this run changes cannot be told: {error.message}")
    else:
        if run.state.snapshot.truncated:
            await run.warn("snapshot_truncated", "the workspace has too many files to tell what this run changes")
    run.env = {"TZ": run.context.timezone, "TMPDIR": await _own_tmpdir(run)}
    await keeping.step_ended(run)


async def _own_tmpdir(run: Run) -> str:
    """`$HOME/tmp/<run>`, made by one exec, for the file API reaches the workspace only; `/tmp` where that fails.

    It fails in an image without a shell, where little would use it anyway.
    """
    name = run.context.run_id
    request = ExecRequest(command=["sh", "-c", _MAKE_TMPDIR, "sh", name], timeout=10.0, owner=name)
    try:
        result = await run.context.sandbox.run(request)
    except PathError:
        return FALLBACK_TMPDIR
    path = result.stdout_text.removesuffix("\n")
    usable = result.exit_code == 0 and posixpath.isabs(path) and posixpath.basename(path) == name and path.isprintable()
    return path if usable else FALLBACK_TMPDIR


def _ending_of(run: Run, error: Exception) -> Ending:
    """The ending that an error is. Only what nobody meant to raise is our bug."""
    match error:
        case SandboxError():
            return Ending(ended_by="sandbox_lost", error=_info(error))
        case ModelError(kind="context" | "too_large"):
            return Ending(ended_by="context", error=_info(error))
        case ModelError():
            return Ending(ended_by="model_error", error=_info(error))
        case LimitExceeded(limit=limit):
            return Ending(ended_by=_LIMITS[limit], error=_info(error))
    log.error("run %s of task %s failed", run.context.run_id, run.context.task_id, exc_info=error)
    info = ErrorInfo(
        code="internal_error",
        message=f"{type(error).__name__}: {error}",
        hint="this is a bug in kinfold or in a tool of yours; the log holds its traceback",
    )
    return Ending(ended_by="internal_error", error=info)


def _info(error: KinfoldError) -> ErrorInfo:
    return ErrorInfo(code=error.code, message=error.message, hint=error.hint)
