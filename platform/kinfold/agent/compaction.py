"""Makes room in a conversation that fills its model's window: old results first, then a summary of the rest.

The brief stays as it was asked, and the latest exchange stays whole: a call is never parted from its answer. A
compaction that fails is a warning; the run goes on with what it has.
"""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import replace

from kinfold.agent.asking import request_of
from kinfold.agent.history import without_thinking
from kinfold.agent.instructions import words
from kinfold.agent.metered import metered
from kinfold.agent.run import Run
from kinfold.errors import ModelError
from kinfold.events import Compacted, Retrying
from kinfold.messages import Block, Message, TextBlock, ToolResult
from kinfold.models import estimate
from kinfold.models.base import Reply, RetryNotice
from kinfold.models.families import family_of
from kinfold.models.windows import UNKNOWN_WINDOW, window_of

TARGET = 0.5
"""Of the window: so full may a conversation be after its old results are cleared; else it is summarised."""
RECENT = 4
"""Messages at the end whose results are not cleared: two exchanges."""
MOST_SCALE = 4.0
GROWN = 1.1
"""So much larger than the last compaction left it must a conversation be for another: it may have freed little."""
FILES_NAMED = 200


async def make_room(run: Run) -> None:
    """Compact the history when the next request would fill more of the window than the configured fraction."""
    before = _tokens(run)
    if _began(run) and before > max(run.config.compact_at * await _window(run), GROWN * run.compacted_to):
        await _compact(run, before, recent=RECENT)


async def make_room_now(run: Run) -> bool:
    """Compact whatever the estimate says, for the service found no room; False: nothing became smaller."""
    if not _began(run):
        return False
    before = _tokens(run)
    await _compact(run, before, recent=2, force=True)
    return _tokens(run) < before


def _began(run: Run) -> bool:
    """Whether there is more than the brief, which stays as it is."""
    return any(message.role == "assistant" for message in run.history.messages)


def calibrate(run: Run, estimated: int, reply: Reply) -> None:
    """Learn from a reply how far the estimate falls short for this model and this conversation."""
    if estimated and reply.usage.context_tokens:
        run.scale = min(MOST_SCALE, max(1.0, reply.usage.context_tokens / estimated))


async def _window(run: Run) -> int:
    name = run.config.model.name
    window = window_of(name)
    if window is None and not run.window_said:
        run.window_said = True
        await run.warn(
            "window_unknown", f"the window of {name} is not known: {UNKNOWN_WINDOW:,} tokens are taken for it"
        )
    return window or UNKNOWN_WINDOW


def _tokens(run: Run) -> int:
    return int(estimate.request_tokens(request_of(run, "step")) * run.scale)


async def _compact(run: Run, before: int, *, recent: int, force: bool = False) -> None:
    _clear_results(run, recent)
    family = family_of(run.config.model.name)
    if family is not None and family.bound:  # what was thought is refused behind anything else than it followed
        run.history.replace(without_thinking(run.history.messages))
    if force or _tokens(run) > TARGET * (window_of(run.config.model.name) or UNKNOWN_WINDOW):
        try:
            summary = await _summary(run)
        except ModelError as error:
            await run.warn("compaction_failed", f"the conversation could not be summarised: {error.message}")
        else:
            _replace(run, summary)
    after = run.compacted_to = _tokens(run)
    if after < before:
        await run.emit(Compacted, tokens_before=before, tokens_after=after)


def _clear_results(run: Run, recent: int) -> None:
    """Put what must stay of each old result in its place."""
    messages = list(run.history.messages)
    for place, message in enumerate(messages[: max(0, len(messages) - recent)]):
        content = tuple(_cleared(run, block) if isinstance(block, ToolResult) else block for block in message.content)
        messages[place] = Message(role=message.role, content=content)
    run.history.replace(messages)


def _cleared(run: Run, result: ToolResult) -> ToolResult:
    stays = TextBlock(text=run.kept.get(result.tool_use_id) or words("cleared"))
    cleared = result.model_copy(update={"content": (stays,)})
    return cleared if estimate.block_tokens(cleared) < estimate.block_tokens(result) else result


async def _summary(run: Run) -> str:
    """The summary by the compaction model. Raises `ModelError`, also for a reply that is none."""
    request = request_of(run, "compaction", more=(Message.user(words("summarise")),))
    model = run.config.compactor or run.config.model
    if model.name != run.config.model.name:
        messages = without_thinking(request.messages)
        request = replace(request, messages=messages, effort=None, thinking=None)  # those too are of the other model
    async with aclosing(metered(run, model, request)) as events:
        async for event in events:
            run.context.lifeline.rearm()
            if isinstance(event, RetryNotice):
                await run.emit(Retrying, attempt=event.attempt, delay=event.delay, reason=event.reason)
            elif isinstance(event, Reply):
                if event.stop_reason != "end_turn" or event.incomplete or not event.message.text.strip():
                    raise ModelError(f"the summary ended by {event.stop_reason} and is not used", kind="stream")
                return event.message.text
    raise ModelError("the model's stream ended without a reply", kind="stream")


def _replace(run: Run, summary: str) -> None:
    """The brief, the summary and what is true now as one user turn, and behind it the latest exchange."""
    messages = run.history.messages
    brief = len(run.input.messages)
    last = max((at for at, message in enumerate(messages) if message.role == "assistant"), default=len(messages))
    facts = "\n\n".join([words("compacted"), summary.strip(), *_registry(run, messages[brief:last])])
    said: tuple[Block, ...] = (TextBlock(text=facts.encode("utf-8", "replace").decode()),)
    run.history.replace([*messages[:brief], Message(role="user", content=said), *messages[max(brief, last) :]])


def _registry(run: Run, dropped: tuple[Message, ...]) -> list[str]:
    """Todos, files written and what subagents delivered: told from the run's state, not from the summary."""
    parts: list[str] = []
    if run.state.todos:
        parts.append("\n".join(["Todos:", *(f"- [{todo.status}] {todo.content}" for todo in run.state.todos)]))
    if written := sorted(run.state.written):
        more = [f"- and {len(written) - FILES_NAMED} more"] if len(written) > FILES_NAMED else []
        parts.append("\n".join(["Files written:", *(f"- {path}" for path in written[:FILES_NAMED]), *more]))
    for call_id in [
        block.tool_use_id for message in dropped for block in message.content if block.type == "tool_result"
    ]:
        if call_id in run.kept:
            run.carried_over.append(run.kept.pop(call_id))
    return [*parts, *(f"An earlier result:\n{text}" for text in run.carried_over)]
