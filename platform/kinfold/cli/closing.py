"""What a person sees when a task has ended: the summary, the artifacts, what was skipped, what it cost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from kinfold.agent.ledger import Ledger, ledger_of
from kinfold.cli.ending import one_line, printable, say_error
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
        print(one_line(f"skipped: {skipped.path} ({skipped.reason}), claimed by {who}"), file=sys.stderr)
    for warning in result.warnings:
        print(one_line(f"warning: {warning}"), file=sys.stderr)
    for line in delegation_lines(ledger_of(state.ledger)):
        print(one_line(f"ledger: {line}"), file=sys.stderr)
    print(one_line(_closing_line(result)), file=sys.stderr)
    if result.workspace:
        print(f"files: {one_line(result.workspace)}", file=sys.stderr)
    if result.error is not None:
        say_error(result.error.message, result.error.hint)


def delegation_lines(ledger: Ledger) -> list[str]:
    """One line a delegation: what it brought into the main context, what it kept out of it, and whether that pays."""
    return [
        f"{cost.label or cost.run_id} added {cost.added:,} tok to main (rent so far {cost.rent:,}), "
        f"inline {cost.inline:,}, kept out {cost.kept_out:,}: {cost.verdict}"
        for cost in ledger.delegations
    ]


def _own_skips(result: TaskResult, state: TreeState) -> list[tuple[str, SkippedPath]]:
    seen = {skipped.path for _, skipped in state.skipped}
    return [("main", skipped) for skipped in result.skipped if skipped.path not in seen]


def _show_artifacts(artifacts: list[Artifact], owners: dict[str, str]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("artifact", overflow="fold", min_width=12)
    table.add_column("bytes", justify="right", no_wrap=True)
    for heading in ("type", "change", "sha256"):
        table.add_column(heading, no_wrap=True)
    table.add_column("delivered by", overflow="ellipsis", no_wrap=True)
    for artifact in sorted(artifacts, key=lambda artifact: artifact.path):
        cells = (
            one_line(artifact.path),
            f"{artifact.size:,}",
            artifact.fs_type,
            artifact.change,
            (artifact.sha256 or "")[:8],
            one_line(owners.get(artifact.path, "main")),
        )
        table.add_row(*(Text(cell) for cell in cells))
    terminal = sys.stdout.isatty()
    Console(highlight=False, width=None if terminal else 200).print(table)


def _closing_line(result: TaskResult) -> str:
    cost = "cost unknown" if result.cost is None else f"${result.cost:.4f}"
    subagents = f", {len(result.records)} subagents" if result.records else ""
    return (
        f"{result.status} ({result.ended_by}), {result.steps} steps{subagents}, "
        f"{result.usage.total_tokens:,} tokens, {cost}, task {result.task_id}"
    )
