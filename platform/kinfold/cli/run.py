"""`kinfold run`: a parent task in the foreground, shown as it goes; a signal cancels it and still closes everything."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from kinfold import definitions
from kinfold.cli.asking import people_for
from kinfold.cli.closing import show_result
from kinfold.cli.ending import EXIT_OTHER, exit_code_of_ending
from kinfold.cli.foreground import watch_signals
from kinfold.cli.live import View, choose_view
from kinfold.config import Settings
from kinfold.definitions import SubagentDefinition
from kinfold.definitions.dialect import known_dialect
from kinfold.errors import ConfigError
from kinfold.sandbox.allowlist import parse_network
from kinfold.sandbox.base import SandboxSpec

if TYPE_CHECKING:
    from kinfold.sandbox.docker.provider import DockerProvider
    from kinfold.tasks.result import TaskResult
    from kinfold.tasks.task import ParentTask
    from kinfold.tools.people import People


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """What the command line asked for; `flags` are the settings' own names, None where not given."""

    prompt: str
    workspace: str | None = None
    copy: bool = False
    out: Path | None = None
    json: bool = False
    verbose: bool = False
    record: Path | None = None
    dialect: str | None = None
    """Whose files `--agents` are; None: each file tells."""
    append_constraints: bool = False
    answers: str | None = None
    """`deny`, `default` or a file; None: the person at the terminal, if there is one."""
    flags: Mapping[str, object] = field(default_factory=dict)
    replay: Path | None = None

    @property
    def replayed(self) -> str | None:
        """The model that `--replay` stands for. Raises `ConfigError` where something else was asked for besides."""
        if self.replay is None:
            return None
        beside = [
            option for option, given in (("--record", self.record), ("--model", self.flags.get("model"))) if given
        ]
        if beside:
            raise ConfigError(f"--replay and {beside[0]}", hint="a replay asks no model: leave out one of the two")
        return f"cassette:{self.replay}"


def run_command(options: RunOptions) -> int:
    """Run, show the result, return the exit code."""
    return run_for_result(options)[0]


def run_for_result(options: RunOptions) -> tuple[int, TaskResult | None]:
    """As `run_command`, with the result for who wants to look at it; None where a signal came before the first step."""
    return anyio.run(_run, options)


async def _run(options: RunOptions) -> tuple[int, TaskResult | None]:
    settings = load_settings(options.flags)
    view = choose_view(json=options.json, verbose=options.verbose)
    async with make_provider(settings) as provider:
        found = await load_definitions(settings, options.dialect)
        task = make_task(options, settings, provider, found, people=people_of(options, view.calm))
        caught, result = await _watch(task, view)
    return _ended(caught, result, view, json=options.json), result


def resume_command(task_id: str, *, answers: str | None, json: bool, verbose: bool) -> int:
    """Go on with a task whose process died; shown as `kinfold run` shows it, from where it goes on."""

    async def resumed() -> int:
        from kinfold.tasks.resume import ResumedTask

        settings = load_settings({})
        view = choose_view(json=json, verbose=verbose)
        people = people_for(answers, view.calm) or people_for("deny", view.calm)
        async with make_provider(settings) as provider:
            task = ResumedTask(task_id, people=people, provider=provider, state_dir=settings.state_dir)
            caught, result = await _watch(task, view)
        return _ended(caught, result, view, json=json)

    return anyio.run(resumed)


async def _watch(task: ParentTask, view: View) -> tuple[list[signal.Signals], TaskResult | None]:
    """Run it to its end in the view; which signals came, and the result."""
    caught: list[signal.Signals] = []
    with view:
        return caught, await _show_task(task, view, caught)


def _ended(caught: list[signal.Signals], result: TaskResult | None, view: View, *, json: bool) -> int:
    """Show the result; the exit code."""
    if result is not None and not json:
        show_result(result, view.state)
    if caught:
        return 128 + caught[0]
    return _exit_code(result) if result else EXIT_OTHER


def people_of(options: RunOptions, calm: Callable[[], AbstractContextManager[object]]) -> People | None:
    """Who answers; in a replay somebody does if somebody could when it was recorded, for tools must be the same.

    Without a terminal, and without --answers, that is the policy `deny`.
    """
    model = options.replayed or str(options.flags.get("model") or "")
    if not model.startswith("cassette:"):
        return people_for(options.answers, calm)
    from kinfold.models.cassette import ReplayModel
    from kinfold.tools.registry import ASKING

    if not ASKING & ReplayModel(Path(model.removeprefix("cassette:"))).tool_names:
        return None
    return people_for(options.answers, calm) or people_for("deny", calm)


def _exit_code(result: TaskResult) -> int:
    """By the ending; a completed task of which something did not arrive (`out`) has not done all it was asked."""
    code = exit_code_of_ending(result.status, result.ended_by)
    return EXIT_OTHER if code == 0 and result.error is not None else code


async def _show_task(task: ParentTask, view: View, caught: list[signal.Signals]) -> TaskResult | None:
    """Start, follow and close the task; None where a signal came before its first step.

    A reader of what is shown that does not read holds nothing up but the showing: the task runs, ends and closes.
    """
    starting, showing = anyio.CancelScope(), anyio.CancelScope()
    begun, closed, shown = anyio.Event(), anyio.Event(), anyio.Event()
    async with anyio.create_task_group() as group:

        def react(received: signal.Signals) -> None:
            caught.append(received)
            if not begun.is_set():
                starting.cancel()
            elif closed.is_set():
                showing.cancel()
            elif received == signal.SIGTERM:
                task.interrupt()
            else:
                group.start_soon(task.cancel)

        watcher = await group.start(watch_signals, react)
        async with task:
            with starting:
                await task.start()
                begun.set()
            if not starting.cancelled_caught:
                group.start_soon(_show_events, task, view, showing, shown)
                await task.wait()
        closed.set()
        if not starting.cancelled_caught:
            await shown.wait()
        watcher.cancel()
    return None if starting.cancelled_caught else task.result


async def _show_events(task: ParentTask, view: View, showing: anyio.CancelScope, shown: anyio.Event) -> None:
    """Show each event, what an earlier process left of them silently."""
    with showing:
        async for event in task.follow():
            if event.seq <= task.earlier:
                view.state.apply(event)
            elif view.may_block:
                await anyio.to_thread.run_sync(view.show, event, abandon_on_cancel=True)
            else:
                view.show(event)
    shown.set()


def load_settings(flags: Mapping[str, object]) -> Settings:
    """The settings under these flags; a flag that is None was not given."""
    return Settings.load({name: value for name, value in flags.items() if value is not None})


@asynccontextmanager
async def make_provider(settings: Settings) -> AsyncIterator[DockerProvider]:
    """The provider that the settings name, with its records in the store; both are closed at the block's end."""
    from kinfold.sandbox.docker.provider import DockerProvider
    from kinfold.tasks.store.door import Store
    from kinfold.tasks.store.sandboxes import all_records

    async with Store(settings.state_dir) as store:
        records = all_records(store, settings.state_dir)
        async with DockerProvider(host=settings.engine_host, state_dir=settings.state_dir, records=records) as provider:
            yield provider


def make_task(
    options: RunOptions,
    settings: Settings,
    provider: DockerProvider,
    found: tuple[SubagentDefinition, ...],
    *,
    people: People | None = None,
) -> ParentTask:
    """The parent task that the options describe. Raises `ConfigError` for what cannot be right."""
    from kinfold.tasks import tier
    from kinfold.tasks.task import ParentTask

    mine = tier.tier_of(settings)
    if (model := options.replayed or tier.model_of(mine, settings.model)) is None:
        raise ConfigError("no model is named", hint="--model NAME, KINFOLD_MODEL, or `model` in kinfold.toml")
    return ParentTask(
        options.prompt,
        model=model,
        definitions=found,
        spec=make_spec(settings, workspace=options.workspace, copy=options.copy, resume_ttl=settings.resume_ttl),
        user_id=settings.user_id,
        timezone=settings.timezone,
        limits=tier.asked_limits(settings),
        tier=mine,
        out=options.out,
        record=options.record,
        provider=provider,
        state_dir=settings.state_dir,
        people=people,
        append_constraints=options.append_constraints,
    )


def make_spec(settings: Settings, *, workspace: str | None, copy: bool, **fields: Any) -> SandboxSpec:
    """What the provider is asked for. Raises `ConfigError` for a copy of nothing."""
    if copy and workspace is None:
        raise ConfigError("--copy needs --workspace", hint="name the directory whose copy is to be worked in")
    return SandboxSpec(
        image=settings.image,
        network=parse_network(settings.network),
        user=settings.user,
        workspace=None if copy else workspace,
        copy_from=workspace if copy else None,
        **fields,
    )


async def load_definitions(settings: Settings, dialect: str | None = None) -> tuple[SubagentDefinition, ...]:
    """What `agents` means now; the task that starts with it keeps it. Raises `ConfigError` and `StoreError`."""
    if dialect is not None and settings.agents in (None, "none", "store"):
        raise ConfigError(
            f"--dialect {dialect} without files", hint="name the files that are written so by --agents PATH"
        )
    if settings.agents is None:
        return definitions.DEFAULT
    if settings.agents == "none":
        return ()
    if settings.agents != "store":
        return definitions.load(Path(settings.agents), dialect=known_dialect(dialect))
    from kinfold.tasks.store.definitions import StoredDefinitions
    from kinfold.tasks.store.door import Store

    async with Store(settings.state_dir) as store:
        kept = await StoredDefinitions(store).current()
    if not kept:
        raise ConfigError("no definition is kept", hint="`kinfold agents add PATH`, or --agents none for no subagents")
    return kept
