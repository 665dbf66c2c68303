"""What a person sees when a task has ended: the summary, the artifacts, what was skipped, what it cost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kinfold.cli.ending import printable, say_error
from kinfold.cli.tree import TreeState
from kinfold.messages import Artifact, SkippedPath

if TYPE_CHECKING:
    from kinfold.tasks.result import TaskResult


def show_result(result: TaskResult, state: TreeState) -> None:
    """The summary and the table of artifacts on standard output, everything else on standard error."""
    if result.summary:
        print(printable(result.summary).rstrip())
    artifacts = {**state.artifacts, **{artifact.path: artifact for artifact in result.artifacts}}
    if artifacts:
        _show_artifacts(list(artifacts.values()), state.owners)
    for who, skipped in [*state.skipped, *_own_skips(result, state)]:
        print(printable(f"skipped: {skipped.path} ({skipped.reason}), claimed by {who}"), file=sys.stderr)
    for warning in result.warnings:
        print(printable(f"warning: {warning}"), file=sys.stderr)
    print(printable(_closing_line(result)), file=sys.stderr)
    if result.workspace:
        print(f"files: {printable(result.workspace)}", file=sys.stderr)
    if result.error is not None:
        say_error(result.error.message, result.error.hint)


def _own_skips(result: TaskResult, state: TreeState) -> list[tuple[str, SkippedPath]]:
    seen = {skipped.path for _, skipped in state.skipped}
    return [("main", skipped) for skipped in result.skipped if skipped.path not in seen]


def _show_artifacts(artifacts: list[Artifact], owners: dict[str, str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading, justify in (("artifact", "left"), ("size", "right"), ("type", "left"), ("change", "left")):
        table.add_column(heading, justify=justify, overflow="fold")  # type: ignore[arg-type]  # rich wants literals
    table.add_column("sha256", no_wrap=True)
    table.add_column("delivered by", overflow="fold")
    for artifact in sorted(artifacts, key=lambda artifact: artifact.path):
        cells = (
            printable(artifact.path),
            f"{artifact.size:,}",
            artifact.fs_type,
            artifact.change,
            (artifact.sha256 or "")[:12],
            printable(owners.get(artifact.path, "main")),
        )
        table.add_row(*(Text(cell) for cell in cells))
    console = Console(highlight=False)
    console.print(table, crop=False, soft_wrap=not console.is_terminal)


def _closing_line(result: TaskResult) -> str:
    cost = "cost unknown" if result.cost is None else f"${result.cost:.4f}"
    subagents = f", {len(result.records)} subagents" if result.records else ""
    return (
        f"{result.status} ({result.ended_by}), {result.steps} steps{subagents}, "
        f"{result.usage.total_tokens:,} tokens, {cost}, task {result.task_id}"
    )
