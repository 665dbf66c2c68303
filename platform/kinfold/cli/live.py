"""How a running task is shown: a live tree on a terminal, plain lines elsewhere, JSON lines for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Protocol, Self

from kinfold.cli.ending import one_line
from kinfold.cli.tree import RunLine, TreeState
from kinfold.events import (
    Answered,
    EventBase,
    Question,
    RunEnded,
    RunStarted,
    TextDelta,
    ToolEnded,
    ToolStarted,
    Warned,
)

if TYPE_CHECKING:
    from rich.tree import Tree

_MARKS = {"completed": "✓", "aborted": "■", "error": "✗", None: "…"}


class View(Protocol):
    """Shows events as they come; used as a context manager around the run."""

    state: TreeState
    may_block: bool
    """Whether a reader that does not read holds `show` up: it is called in a thread then."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(self, event: EventBase) -> None:
        """Show one event."""
        ...

    def calm(self) -> AbstractContextManager[object]:
        """A `with` block in which nothing is drawn over what stands on the terminal."""
        ...


class JsonView:
    """One JSON object a line on standard output; nothing else goes there."""

    may_block = True

    def __init__(self) -> None:
        self.state = TreeState()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stdout.flush()

    def show(self, event: EventBase) -> None:
        """Write the event's line."""
        self.state.apply(event)
        print(json.dumps(event.dump()), flush=True)  # escapes what is no UTF-8, where pydantic's own writer fails

    def calm(self) -> AbstractContextManager[object]:
        """It draws nothing on the terminal."""
        return nullcontext()


class LineView:
    """Plain lines on standard error: what begins, what ends and, when verbose, each tool call."""

    may_block = True

    def __init__(self, *, verbose: bool) -> None:
        self.state = TreeState()
        self._words = Words(verbose=verbose)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.stderr.flush()

    def show(self, event: EventBase) -> None:
        """Write the lines for what a person waits for."""
        self.state.apply(event)
        for line in self._words.lines(event):
            print(one_line(line), file=sys.stderr, flush=True)

    def calm(self) -> AbstractContextManager[object]:
        """Its lines only ever follow."""
        return nullcontext()


class TreeView:
    """A live tree on standard error: the main agent and a line per subagent."""

    may_block = False  # it draws on a terminal

    def __init__(self, *, verbose: bool) -> None:
        from rich.console import Console
        from rich.live import Live

        self.state = TreeState()
        self._verbose = verbose
        self._words = Words(verbose=True)
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, refresh_per_second=8, get_renderable=self._draw)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.stop()

    def show(self, event: EventBase) -> None:
        """Fold the event in; the tree redraws itself."""
        self.state.apply(event)
        for line in self._words.lines(event) if self._verbose else ():
            self._console.print(one_line(line), markup=False)

    @contextmanager
    def calm(self) -> Iterator[None]:
        """The tree is taken away, and drawn again afterwards."""
        self._live.stop()
        try:
            yield
        finally:
            self._live.start()

    def _draw(self) -> Tree:
        from rich.text import Text
        from rich.tree import Tree

        now = datetime.now(UTC)
        main = self.state.main
        root = Text(describe_run(main, now) if main else f"… {self.state.sandbox or 'starting the sandbox'}")
        tree = Tree(root)
        for line in self.state.subagents.values():
            tree.add(Text(describe_run(line, now)))
        return tree


class Words:
    """Events as lines; what an agent says is held back until it is a sentence, for it arrives in crumbs."""

    def __init__(self, *, verbose: bool) -> None:
        self._verbose = verbose
        self._said: dict[str, list[str]] = {}

    def lines(self, event: EventBase) -> list[str]:
        """The lines that this event completes."""
        if isinstance(event, TextDelta):
            self._said.setdefault(event.run_id, []).append(event.text)
            return []
        said = _short("".join(self._said.pop(event.run_id, ())))
        lines = [f"  {event.label or 'main'}: {said}"] if said and self._verbose else []
        line = describe(event, verbose=self._verbose)
        return [*lines, line] if line else lines


def choose_view(*, json: bool, verbose: bool) -> View:
    """JSON lines when asked for, the tree on a terminal, else plain lines."""
    if json:
        return JsonView()
    return TreeView(verbose=verbose) if sys.stderr.isatty() else LineView(verbose=verbose)


def describe_run(line: RunLine, now: datetime) -> str:
    """One run in one line: label, step, last tool, tokens, seconds."""
    kind = f" [{line.definition}]" if line.definition else ""
    parts = [line.ended_by or line.note]
    if line.started is not None:
        begun = [f"step {line.step}/{line.max_steps}", line.last_tool, f"{line.usage.total_tokens:,} tokens"]
        parts = [*begun, f"{line.seconds(now):.1f} s", *parts]
    return one_line(f"{_MARKS[line.status]} {line.label}{kind}  " + "  ".join(part for part in parts if part))


def describe(event: EventBase, *, verbose: bool) -> str:
    """One event in one line; empty where it is not worth one."""
    who = event.label or "main"
    match event:
        case RunStarted(definition=definition):
            return f"▶ {who}" + (f" [{definition}]" if definition else "")
        case RunEnded(status=status, ended_by=ended_by, steps=steps, artifacts=artifacts):
            return f"{_MARKS[status]} {who}: {status} ({ended_by}), {steps} steps, {len(artifacts)} artifacts"
        case Warned(message=message):
            return f"! {who}: {message}"
        case Question(question=question):
            return f"? {who}: {question}"
        case Answered(answer=answer, by=by):
            return f"  answered by {by}: {_short(answer)}"
        case ToolStarted(tool=tool, input=arguments) if verbose:
            return f"  {who}: {tool} {_short(str(arguments))}"
        case ToolEnded(tool=tool, is_error=failed, preview=preview) if verbose:
            return f"  {who}: {tool} {'failed' if failed else 'done'}: {_short(preview)}"
        case _:
            return ""


def _short(text: str, limit: int = 160) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
