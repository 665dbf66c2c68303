"""`kinfold lesson`: one question, delegated or searched inline, and what each way leaves in the main context.

The real loop and real delegation; only the model is scripted. Nothing is run but the archive's
search, so it needs no container engine.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import typer

from kinfold.agent.context import RuntimeContext, kickoff
from kinfold.agent.delegate import Delegation, DelegationConfig
from kinfold.agent.limits import Purse
from kinfold.agent.loop import run_agent_loop
from kinfold.agent.run import LoopConfig, LoopInput, RunResult
from kinfold.cli import lesson_archive
from kinfold.definitions import SubagentDefinition
from kinfold.events import EventBase, Warned
from kinfold.messages import Message, RunKind, TextBlock, ToolCall
from kinfold.models import estimate
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.sandbox.base import WORKSPACE, SandboxSpec
from kinfold.sandbox.local import LocalProvider
from kinfold.tools.base import Tool

QUESTION = "Which year was the studio behind the original Aurora Run film founded?"
CONTEXT_DEPENDENT = (
    "In which year was the director of Aurora Run born?",
    "Careful: I mean the 2011 original, not the 2024 remake.",
)
RESEARCH = SubagentDefinition(
    type="research", description="Searches the film archive.", tool_keys=("search",), max_steps=10
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request to the model and its reply; both counts are of the whole context after it, in tokens."""

    lane: RunKind
    said: str
    card_text: int
    as_sent: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """What one run showed."""

    answer: str
    rows: tuple[Row, ...]
    warnings: tuple[str, ...]

    def lane(self, kind: RunKind) -> list[Row]:
        """One lane's rows."""
        return [row for row in self.rows if row.lane == kind]


async def learn(
    *, inline: bool = False, context_dependent: bool = False, lengths: Mapping[str, int] = lesson_archive.LENGTHS
) -> Lesson:
    """Run the lesson. `lengths`: tokens of each of the archive's pages."""
    rows: list[Row] = []

    def reply(request: ModelRequest) -> ScriptedReply:
        answer = lesson_archive.reply(request)
        rows.append(_row(request, answer))
        return answer

    warnings: list[str] = []

    async def writer(event: EventBase) -> None:
        if isinstance(event, Warned) and event.code == "blind_spot":
            warnings.append(event.message)

    logging.getLogger("kinfold.sandbox.local").setLevel(logging.ERROR)  # nothing runs in it
    turns = CONTEXT_DEPENDENT if context_dependent else (QUESTION,)
    tools = (lesson_archive.search_tool(lesson_archive.archive(lengths)),)
    model = ScriptedModel(reply)
    with tempfile.TemporaryDirectory(prefix="kinfold-lesson-") as state:
        async with LocalProvider(Path(state)) as provider, await provider.create(SandboxSpec(keep=0)) as sandbox:
            context = RuntimeContext(
                task_id="task_lesson", user_id="local", sandbox=sandbox, workspace=WORKSPACE, timezone="UTC",
                writer=writer,
            )  # fmt: skip
            result = await _run(context, model, turns, tools, () if inline else (RESEARCH,))
    if result.error is not None:
        raise RuntimeError(f"the lesson's own run failed: {result.error.message}")
    return Lesson(answer=result.summary, rows=tuple(rows), warnings=tuple(warnings))


async def _run(
    context: RuntimeContext,
    model: ScriptedModel,
    turns: tuple[str, ...],
    tools: tuple[Tool, ...],
    definitions: tuple[SubagentDefinition, ...],
) -> RunResult:
    """A main run as a parent task makes one, with the tools that it uses: others' schemas would hide the rest."""
    purse = Purse()
    delegation = Delegation(
        context,
        DelegationConfig(
            definitions=definitions, model=model, resolve=lambda name: model, extra_tools=tools, user_turns=turns
        ),
        purse=purse,
    )
    config = LoopConfig(
        model=model,
        max_steps=10,
        tool_keys=("task",) if definitions else ("search",),
        definitions=definitions,
        extra_tools=tools,
        purse=purse,
    )
    said = (kickoff(turns[0], context.timezone), *(Message.user(turn) for turn in turns[1:]))
    asked = LoopInput(kind="main", messages=said, spawn=delegation.spawn if definitions else None)
    return await run_agent_loop(context, config, asked)


def _row(request: ModelRequest, answer: ScriptedReply) -> Row:
    blocks = [TextBlock(text=answer.text)] if answer.text else []
    calls = [ToolCall(id="new", name=call.tool, input=dict(call.input)) for call in answer.calls]
    turn = Message(role="assistant", content=(*blocks, *calls))
    first = answer.calls[0] if answer.calls else None
    said = answer.text if first is None else f"{first.tool}({first.input.get('prompt', first.input.get('query'))!r})"
    return Row(
        lane=request.run_kind,
        said=said,
        card_text=sum(lesson_archive.card_text(message) for message in (*request.messages, turn)),
        as_sent=estimate.request_tokens(request),
    )


def show(lesson: Lesson) -> None:
    """Print the lanes, request by request, and `main = N tok` last."""
    typer.echo(f"{'lane':<10}{'card text':>10}{'as sent':>10}  said")
    for row in lesson.rows:
        typer.echo(f"{row.lane:<10}{row.card_text:>10,}{row.as_sent:>10,}  {row.said}")
    for warning in lesson.warnings:
        typer.echo(f"warning: {warning}")
    if lane := lesson.lane("subagent"):
        typer.echo(f"subagent = discarded, {lane[-1].card_text:,} tok freed")
    typer.echo(f"main = {lesson.lane('main')[-1].card_text:,} tok")


def lesson_command(*, inline: bool, context_dependent: bool) -> None:
    """Run and show."""
    import anyio

    async def run() -> Lesson:
        return await learn(inline=inline, context_dependent=context_dependent)

    show(anyio.run(run))
