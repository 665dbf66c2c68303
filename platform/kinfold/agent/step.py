"""One step: a request to the model, its streamed reply, and what the stop reason demands."""

from __future__ import annotations

import logging
from contextlib import aclosing
from dataclasses import replace
from typing import get_args

from kinfold.agent import keeping
from kinfold.agent.asking import request_of
from kinfold.agent.calls import refuse_calls, run_calls
from kinfold.agent.compaction import calibrate, make_room, make_room_now
from kinfold.agent.history import echoed, paired, without_thinking
from kinfold.agent.instructions import words
from kinfold.agent.metered import metered
from kinfold.agent.run import Ending, Run
from kinfold.agent.stop import first_met
from kinfold.errors import ModelError, ModelErrorKind
from kinfold.events import Retrying, StepStarted, TextDelta, ThinkingDelta
from kinfold.messages import EndedBy, ErrorInfo, StopReason
from kinfold.models import estimate
from kinfold.models.base import ModelRequest, Purpose, Reply, RetryNotice, TextChunk, ThinkingChunk

log = logging.getLogger(__name__)

MAX_PAUSES = 10
"""Consecutive `pause_turn` replies that are continued; the service's own loop pauses after ten rounds of its tools."""
MAX_UNRUN = 3
"""Consecutive replies whose calls are refused for their stop reason; a service without `tool_use` ends there."""
KNOWN = frozenset(get_args(StopReason))
"""Any other stop reason is a failure with content: nothing of the reply is run."""


async def ask(run: Run, *, tool_choice: str | None = None, purpose: Purpose = "step") -> Reply:
    """Make one request and relay its chunks. Counts a step, its tokens and its price. Raises `ModelError`."""
    run.steps += 1
    if run.context.reminders:
        run.history.say_last("\n".join(run.context.reminders))
        run.context.reminders.clear()
    await run.emit(StepStarted, step=run.steps, usage=run.usage)
    lifeline = run.context.lifeline
    lifeline.patience(run.config.chunk_timeout)
    await make_room(run)
    request, reply = await _answered(run, purpose, tool_choice)
    calibrate(run, estimate.request_tokens(request), reply)
    lifeline.progress()
    run.remember(reply.message.text)
    if purpose == "step":
        await keeping.reply_came(run, reply)
    return reply


async def _answered(run: Run, purpose: Purpose, tool_choice: str | None) -> tuple[ModelRequest, Reply]:
    """The request that was answered, and its reply; each refusal that has a cure is cured once. Raises `ModelError`."""
    tried: set[ModelErrorKind] = set()
    while True:
        request = request_of(run, purpose, tool_choice=tool_choice)
        try:
            return request, await _last_of(run, request)
        except ModelError as error:
            if error.kind in tried or not await _cured(run, error):
                raise
            tried.add(error.kind)


async def _cured(run: Run, error: ModelError) -> bool:
    """Whether the conversation was changed so that another request may pass; our own reckoning of it was wrong."""
    config = run.config
    match error.kind:
        case "context" | "too_large":
            return await make_room_now(run)
        case "unpaired_calls":
            cured, what = paired(run.history.messages), "tool calls were given the answers that they lacked"
        case "thinking":
            cured, what = paired(without_thinking(run.history.messages)), "earlier reasoning was left out"
            if isinstance(config.thinking, int):  # a budget demands that the turn in progress begins with reasoning
                config = replace(config, thinking=None)
        case _:
            return False
    if cured == run.history.messages and config is run.config:
        return False
    run.history.replace(cured)
    run.config = config
    await run.warn("history_repaired", f"the model's service refused the conversation: {what} ({error.message})")
    return True


async def _last_of(run: Run, request: ModelRequest) -> Reply:
    """Relay the stream's chunks and return its reply."""
    run.said.clear()
    async with aclosing(metered(run, run.config.model, request)) as stream:
        async for event in stream:
            run.context.lifeline.rearm()
            match event:
                case TextChunk(text=text):
                    run.said.append(text)
                    await run.emit(TextDelta, text=text)
                case ThinkingChunk(text=text):
                    await run.emit(ThinkingDelta, text=text)
                case RetryNotice(attempt=attempt, delay=delay, reason=reason):
                    run.said.clear()
                    await run.emit(Retrying, attempt=attempt, delay=delay, reason=reason)
                case Reply():
                    return event
    raise ModelError("the model's stream ended without a reply", kind="stream")


async def settle(run: Run, reply: Reply) -> Ending | None:
    """Do what the reply asks. None: the loop goes on with another step."""
    if reply.stop_reason == "refusal":  # nothing of a refused turn is run or kept
        return _failed("refusal", reply, "the model refused to go on", "reword the prompt, or use another model")
    if reply.stop_reason == "model_context_window_exceeded":
        return await _outgrown(run, reply)
    run.outgrown = False
    if reply.stop_reason not in KNOWN and not reply.incomplete:
        log.warning("run %s: unknown stop reason %r", run.context.run_id, reply.stop_reason)
        return _failed("model_error", reply, f"unknown stop reason {reply.stop_reason!r}", "see the run's last text")
    if reply.message.tool_calls:
        return await _settle_calls(run, reply)
    if first_met(run.config.stop_conditions, reply.message, run.usage):
        return Ending(ended_by="stop_condition", text=run.final_text(reply.message.text))
    if reply.incomplete or reply.stop_reason in ("max_tokens", "pause_turn"):
        return _go_on(run, reply)
    return _settle_text(run, reply)


def _failed(ended_by: EndedBy, reply: Reply, message: str, hint: str) -> Ending:
    return Ending(
        ended_by=ended_by, text=reply.message.text, error=ErrorInfo(code=ended_by, message=message, hint=hint)
    )


async def _settle_calls(run: Run, reply: Reply) -> Ending | None:
    run.pauses = 0
    run.carried = ""
    if not reply.calls_stand:
        return await _refuse_calls(run, reply)
    run.unrun = 0
    completion = await run_calls(run, reply.message)
    if completion is not None:
        return Ending(ended_by="complete", completion=completion)
    if first_met(run.config.stop_conditions, reply.message, run.usage):
        return Ending(ended_by="stop_condition", text=reply.message.text)
    return None


async def _outgrown(run: Run, reply: Reply) -> Ending | None:
    """The window was full before the reply's end: the conversation is made smaller, once, and the reply goes on."""
    if run.outgrown or not await make_room_now(run):
        return _failed("context", reply, "the model's context window is full", "delegate more, or split the task")
    run.outgrown = True
    if reply.message.tool_calls:
        await refuse_calls(run, reply.message, words("cut_call").format(limit="the end of the context window"))
    elif echoed(reply.message) is not None:
        run.history.add_turn(reply.message)
        run.history.say(words("continue"))
        run.carried += reply.message.text
    return None


async def _refuse_calls(run: Run, reply: Reply) -> Ending | None:
    """Answer calls that the model did not stop for; each is an error that says why it was not run."""
    if reply.stop_reason == "max_tokens":  # the last input may be a smaller valid one than the model meant
        await refuse_calls(run, reply.message, words("cut_call").format(limit="the output limit"))
        return None
    await refuse_calls(run, reply.message, words("unasked_call").format(stop_reason=reply.stop_reason))
    run.unrun += 1
    if run.unrun < MAX_UNRUN:
        return None
    said = f"{run.unrun} replies in a row asked for tools and ended by `{reply.stop_reason}` instead of `tool_use`"
    return _failed("model_error", reply, said, "use a service that keeps to the Messages API")


def _go_on(run: Run, reply: Reply) -> Ending | None:
    """A turn without calls that did not come to its end: keep it and let the model continue."""
    if reply.stop_reason == "pause_turn" and not reply.incomplete:
        run.pauses += 1
        if run.pauses > MAX_PAUSES:
            return _failed("model_error", reply, f"the model paused {run.pauses} times in a row", "split the task")
        run.history.add_turn(reply.message)
    elif echoed(reply.message) is None:
        return _empty(run)
    else:
        run.history.add_turn(reply.message)
        run.history.say(words("continue"))
    run.carried += reply.message.text
    return None


def _settle_text(run: Run, reply: Reply) -> Ending | None:
    run.history.add_turn(reply.message)
    text = run.final_text(reply.message.text)
    return Ending(ended_by="text", text=text) if text else _empty(run)


def _empty(run: Run) -> Ending | None:
    """A reply that says nothing: one nudge, then it is the end."""
    if run.nudged:
        error = ErrorInfo(code="empty", message="the model ended without a word, twice", hint="reword the prompt")
        return Ending(ended_by="empty", error=error)
    run.nudged = True
    run.history.say(words("nudge"))
    return None
