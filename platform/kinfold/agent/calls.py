"""The tool calls of one reply: run, and answered exactly once each, in call order, whatever happens.

A call whose tool is `parallel` starts as soon as every earlier call that is not parallel has answered, and from then on
runs together with all that follows; the others run one after another in call order. The `final` call runs last and
alone. The loop knows no tool by its key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import anyio
import anyio.lowlevel

from kinfold.agent import keeping
from kinfold.agent.instructions import words
from kinfold.agent.run import Run
from kinfold.messages import Message, ToolCall, ToolResult
from kinfold.tools import registry
from kinfold.tools.base import Completion, ToolOutcome


@dataclass(slots=True)
class Board:
    """The answers of one step, by the place of their call."""

    calls: tuple[ToolCall, ...]
    answers: dict[int, ToolResult] = field(default_factory=dict)
    fault: Exception | None = None
    """What no model can fix, a lost sandbox or our own bug: it ends the run."""

    def put(self, place: int, outcome: ToolOutcome) -> None:
        """Answer one call."""
        self.answers[place] = ToolResult(
            tool_use_id=self.calls[place].id, content=outcome.content, is_error=outcome.is_error
        )

    def take(self, answers: Sequence[ToolResult]) -> None:
        """Those that were given before the process died that ran the calls."""
        given = {answer.tool_use_id: answer for answer in answers}
        self.answers = {place: given[call.id] for place, call in enumerate(self.calls) if call.id in given}

    def results(self) -> list[ToolResult]:
        """One answer per call, in call order; a call that never answered says so."""
        missing = ToolOutcome.of(words("unanswered"), is_error=True)
        for place in range(len(self.calls)):
            if place not in self.answers:
                self.put(place, missing)
        return [self.answers[place] for place in range(len(self.calls))]


async def run_calls(run: Run, reply: Message) -> Completion | None:
    """Run all calls of a reply and put it with its results into the history; the completion, where one was accepted."""
    board = Board(reply.tool_calls)
    board.take(run.open.answers if run.open is not None else ())
    run.context.lifeline.patience(max(run.config.tool_patience, run.config.chunk_timeout))
    try:
        finals = [place for place, call in enumerate(board.calls) if _is_final(run, call)]
        await _run_ordinary(run, board, skip=finals)
        for place in finals[:-1]:
            board.put(place, ToolOutcome.of(words("superseded"), is_error=True))
        return await _run_final(run, board, finals[-1]) if finals and finals[-1] not in board.answers else None
    finally:  # also when the run is ended meanwhile: a call without its answer would poison the history
        run.history.add_exchange(reply, board.results())


async def run_last_final(run: Run, reply: Message) -> Completion | ToolOutcome | None:
    """Run only the call that ends the run, as the finalisation step does; None: there is no such call."""
    finals = [place for place, call in enumerate(reply.tool_calls) if _is_final(run, call)]
    return await _run_one(run, Board(reply.tool_calls), finals[-1]) if finals else None


async def refuse_calls(run: Run, reply: Message, reason: str) -> None:
    """Answer every call of a reply with the same error, without running any."""
    board = Board(tuple(call.model_copy(update={"input_error": reason}) for call in reply.tool_calls))
    try:
        for place in range(len(board.calls)):
            await _run_one(run, board, place)  # a call with an input error is announced, answered and not run
    finally:
        run.history.add_exchange(reply, board.results())


def _is_final(run: Run, call: ToolCall) -> bool:
    tool = run.tools.get(call.name)
    return tool is not None and tool.final


async def _run_ordinary(run: Run, board: Board, *, skip: list[int]) -> None:
    async with anyio.create_task_group() as group:

        async def guarded(place: int, recover: bool) -> None:
            try:
                await _run_one(run, board, place, recover=recover)
            except Exception as error:  # noqa: BLE001 - kept and raised below, outside of the task group
                board.fault = board.fault or error
                group.cancel_scope.cancel()

        recover = run.resuming
        for place, call in enumerate(board.calls):
            tool = run.tools.get(call.name)
            if place in skip or place in board.answers:
                continue
            if tool is not None and tool.parallel:
                group.start_soon(guarded, place, recover)
                await anyio.lowlevel.checkpoint()  # it takes its first step before any later call does
            else:
                await guarded(place, recover)
                recover = False  # what follows it had not begun when the process died
    if board.fault is not None:
        raise board.fault


async def _run_final(run: Run, board: Board, place: int) -> Completion | None:
    failed = sum(answer.is_error for other, answer in board.answers.items() if not _is_final(run, board.calls[other]))
    outcome = await _run_one(run, board, place, failed_siblings=failed)
    return outcome if isinstance(outcome, Completion) else None


async def _run_one(
    run: Run, board: Board, place: int, *, failed_siblings: int = 0, recover: bool = False
) -> ToolOutcome | Completion:
    call = board.calls[place]
    context = run.tool_context(call.id, failed_siblings=failed_siblings)
    outcome = await registry.dispatch(run.tools, call, context, recover=recover)
    if outcome is registry.INTERRUPTED:
        message = f"{call.name} ({call.id}) was under way when the process died; what it did is not known"
        await run.warn("interrupted_call", message)
    tool = run.tools.get(call.name)
    if tool is not None and tool.compact is not None and isinstance(outcome, ToolOutcome):
        run.kept[call.id] = tool.compact(outcome)
    board.put(place, ToolOutcome.of(outcome.summary) if isinstance(outcome, Completion) else outcome)
    if len(board.answers) < len(board.calls):  # with the last one the step ends, which is kept as a whole
        await keeping.answered(run, board.answers[place])
    run.context.lifeline.progress()
    return outcome
