"""The commands and their options; each command's work lives in a module of its own, imported when it runs."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from kinfold.cli.agents_app import agents_app
from kinfold.cli.ending import exit_with

app = typer.Typer(
    name="kinfold",
    help="Run an agent and its subagents inside one disposable container, and get back files that were checked.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
sandbox_app = typer.Typer(help="Make and use sandboxes by hand.", no_args_is_help=True, rich_markup_mode=None)
images_app = typer.Typer(help="Build and list the sandbox images.", no_args_is_help=True, rich_markup_mode=None)
tasks_app = typer.Typer(help="Look at tasks, also at past ones.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(sandbox_app, name="sandbox")
app.add_typer(tasks_app, name="tasks")
app.add_typer(images_app, name="images")
app.add_typer(agents_app, name="agents")


def run_app() -> None:
    """Run the command line; the process ends with the exit code of design §6."""
    try:
        with _groups_spared(sys.argv[1:]):
            app()
    except Exception as error:  # noqa: BLE001 - an expected error becomes two lines, a bug is raised again
        exit_with(error)


@contextmanager
def _groups_spared(words: list[str]) -> Iterator[None]:
    """Typer builds every command's options before it looks at the line: spare it those of groups that are not named."""
    named = next((word for word in words if not word.startswith("-")), None)
    spared = [group.typer_instance for group in app.registered_groups if group.name != named and group.typer_instance]
    kept = [group.registered_commands for group in spared]
    for group in spared:
        group.registered_commands = []
    try:
        yield
    finally:
        for group, commands in zip(spared, kept, strict=True):
            group.registered_commands = commands


@app.command()
def lesson(
    inline: Annotated[bool, typer.Option("--inline", help="Search in the main context; delegate nothing.")] = False,
    context_dependent: Annotated[
        bool, typer.Option("--context-dependent", help="Ask what the prompt alone does not tell.")
    ] = False,
) -> None:
    """Show what a delegation keeps out of the main context; needs neither a model nor a container."""
    from kinfold.cli.lesson import lesson_command

    lesson_command(inline=inline, context_dependent=context_dependent)


@app.command()
def run(
    prompt: Annotated[str, typer.Argument(help="What the main agent is asked to do; - reads it from standard input.")],
    workspace: Annotated[str | None, typer.Option(help="The directory to work in; none: kinfold makes one.")] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Work in a copy of --workspace; the original stays.")] = False,
    out: Annotated[Path | None, typer.Option(help="Copy the artifacts here, digests checked.")] = None,
    agents: Annotated[
        str | None,
        typer.Option(help="Definitions: a .toml or .md file, a directory, 'store' (see `agents add`), 'none'."),
    ] = None,
    dialect: Annotated[
        str | None, typer.Option(help="Whose files --agents are; else each file's place and fields tell.")
    ] = None,
    append_constraints: Annotated[
        bool, typer.Option("--append-constraints", help="Add to a delegation what its prompt lacks of yours.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="A model's name, scripted:FILE or cassette:FILE.")] = None,
    tier: Annotated[str | None, typer.Option(help="Whose limits hold: a [tiers.NAME] of kinfold.toml.")] = None,
    image: Annotated[str | None, typer.Option(help="The container's image.")] = None,
    network: Annotated[str | None, typer.Option(help="none, open, or allow:HOST[:PORT],…")] = None,
    max_steps: Annotated[int | None, typer.Option(help="Steps of the main agent.")] = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for the whole task.")] = None,
    user: Annotated[str | None, typer.Option(help="UID[:GID] of the agent in the container.")] = None,
    answers: Annotated[
        str | None, typer.Option(help="Who answers questions: deny, default, or a FILE of answers; else you do.")
    ] = None,
    record: Annotated[
        Path | None, typer.Option(help="Keep all that models are asked and answer in this new file, secrets hidden.")
    ] = None,
    replay: Annotated[
        Path | None, typer.Option(help="Answer from a file that --record wrote: no model, no key, no network.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Stream the events as JSON lines on standard output.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show what each agent says and runs.")] = False,
) -> None:
    """Run a prompt as a parent task and show the artifacts."""
    from kinfold.cli.run import RunOptions, run_command

    flags = {
        "agents": agents, "model": model, "image": image, "network": network,
        "max_steps": max_steps, "timeout": timeout, "user": user, "tier": tier,
    }  # fmt: skip
    text = sys.stdin.read() if prompt == "-" else prompt
    options = RunOptions(
        prompt=text, workspace=workspace, copy=copy, out=out, json=json, verbose=verbose, answers=answers, flags=flags,
        record=record, replay=replay, dialect=dialect, append_constraints=append_constraints,
    )  # fmt: skip
    raise typer.Exit(run_command(options))


@app.command()
def resume(
    task: Annotated[str, typer.Argument(help="The task's id, or its beginning; `kinfold tasks list` shows it.")],
    answers: Annotated[
        str | None, typer.Option(help="Who answers questions: deny, default, or a FILE of answers; else you do.")
    ] = None,
    json: Annotated[
        bool, typer.Option("--json", help="Stream the new events as JSON lines on standard output.")
    ] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show what each agent says and runs.")] = False,
) -> None:
    """Go on with a task whose process died, in its container, after its last finished step."""
    from kinfold.cli.run import resume_command

    raise typer.Exit(resume_command(task, answers=answers, json=json, verbose=verbose))


@app.command()
def demo(
    directory: Annotated[
        Path | None, typer.Argument(help="The tree to look at; default: a copy of kinfold's own.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Stream the events as JSON lines on standard output.")] = False,
    verbose: Annotated[bool, typer.Option("-v", "--verbose", help="Show what each agent says and runs.")] = False,
) -> None:
    """Watch a main agent delegate to three subagents in one container; a scripted model, real everything else."""
    from kinfold.cli.demo import demo_command

    raise typer.Exit(demo_command(directory, json=json, verbose=verbose))


@app.command()
def doctor() -> None:
    """Check the engine, what it enforces, and the images; exit 1 with hints when something is wrong."""
    from kinfold.cli.doctor import doctor_command

    raise typer.Exit(doctor_command())


@app.command()
def reap(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    by_labels: Annotated[
        bool, typer.Option("--by-labels", help="Also what has no record, if its labels say that its maker is dead.")
    ] = False,
    abandon: Annotated[
        bool,
        typer.Option("--abandon", help="Also what waits for `kinfold resume`; those tasks cannot be resumed then."),
    ] = False,
) -> None:
    """Remove what dead processes and expired leases left behind, and say why."""
    from kinfold.cli.sandboxes import reap_command

    raise typer.Exit(reap_command(dry_run=dry_run, by_labels=by_labels, abandon=abandon))


@sandbox_app.command("create")
def sandbox_create(
    image: Annotated[str | None, typer.Option(help="The container's image.")] = None,
    workspace: Annotated[str | None, typer.Option(help="A given directory; none: kinfold makes one.")] = None,
    copy: Annotated[bool, typer.Option("--copy", help="Use a copy of --workspace.")] = False,
    name: Annotated[str | None, typer.Option(help="Creating the same name twice gives the same sandbox.")] = None,
    ttl: Annotated[float, typer.Option(help="Seconds until it is reaped.")] = 3600.0,
    network: Annotated[str | None, typer.Option(help="none, open, or allow:HOST[:PORT],…")] = None,
    user: Annotated[str | None, typer.Option(help="UID[:GID] of the agent in the container.")] = None,
) -> None:
    """Create a detached sandbox and print its id."""
    from kinfold.cli.sandboxes import create_command

    flags = {"image": image, "network": network, "user": user}
    raise typer.Exit(create_command(flags, workspace=workspace, copy=copy, name=name, ttl=ttl))


@sandbox_app.command("list")
def sandbox_list(
    everything: Annotated[bool, typer.Option("--all", help="Also those that have ended, and why they did.")] = False,
) -> None:
    """List this instance's sandboxes."""
    from kinfold.cli.sandboxes import list_all_command, list_command

    raise typer.Exit(list_all_command() if everything else list_command())


@sandbox_app.command("exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
def sandbox_exec(
    sandbox: Annotated[str, typer.Argument(help="The sandbox's id or name.")],
    command: Annotated[list[str], typer.Argument(help="The program and its arguments.")],
    cwd: Annotated[str, typer.Option(help="Relative to the workspace.")] = ".",
    timeout: Annotated[float | None, typer.Option(help="Seconds; the whole process tree is killed after it.")] = None,
    stdin: Annotated[bool, typer.Option("--stdin", "-i", help="Feed standard input to the program.")] = False,
) -> None:
    """Run a program in a sandbox; its exit code is this command's."""
    from kinfold.cli.sandboxes import exec_command

    program = command[1:] if command[0] == "--" else command
    raise typer.Exit(exec_command(sandbox, program, cwd=cwd, timeout=timeout, stdin=stdin))


@sandbox_app.command("read")
def sandbox_read(
    sandbox: Annotated[str, typer.Argument(help="The sandbox's id or name.")],
    path: Annotated[str, typer.Argument(help="Relative to the workspace.")],
) -> None:
    """Write a workspace file to standard output."""
    from kinfold.cli.sandboxes import read_command

    raise typer.Exit(read_command(sandbox, path))


@sandbox_app.command("write")
def sandbox_write(
    sandbox: Annotated[str, typer.Argument(help="The sandbox's id or name.")],
    path: Annotated[str, typer.Argument(help="Relative to the workspace.")],
) -> None:
    """Write standard input to a workspace file."""
    from kinfold.cli.sandboxes import write_command

    raise typer.Exit(write_command(sandbox, path))


@sandbox_app.command("shell")
def sandbox_shell(sandbox: Annotated[str, typer.Argument(help="The sandbox's id or name.")]) -> None:
    """Work in a sandbox by hand: its bash, or sh, on this terminal. What it prints is not escaped."""
    from kinfold.cli.shell import shell_command

    raise typer.Exit(shell_command(sandbox))


@sandbox_app.command("stats")
def sandbox_stats(
    sandbox: Annotated[str | None, typer.Argument(help="Its id or name; none: all.")] = None,
    once: Annotated[bool, typer.Option("--once", help="One look, not a table that goes on.")] = False,
    json: Annotated[bool, typer.Option("--json", help="One look, a JSON object a line.")] = False,
) -> None:
    """Watch what sandboxes use: processor, memory, processes, disk."""
    from kinfold.cli.stats import stats_command

    raise typer.Exit(stats_command(sandbox, once=once, as_json=json))


@sandbox_app.command("top")
def sandbox_top(sandbox: Annotated[str, typer.Argument(help="The sandbox's id or name.")]) -> None:
    """List the processes of each exec, also those that a program left behind."""
    from kinfold.cli.looking import top_command

    raise typer.Exit(top_command(sandbox))


@sandbox_app.command("logs")
def sandbox_logs(
    sandbox: Annotated[str, typer.Argument(help="The sandbox's id or name.")],
    exec_id: Annotated[str | None, typer.Argument(metavar="EXEC", help="Only this one's; none: of all.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until what is shown has ended.")] = False,
) -> None:
    """Show what the execs that are known printed, as far as it is kept. It slows no program down."""
    from kinfold.cli.looking import logs_command

    raise typer.Exit(logs_command(sandbox, exec_id, follow=follow))


@sandbox_app.command("pause")
def sandbox_pause(sandbox: Annotated[str, typer.Argument(help="The sandbox's id or name.")]) -> None:
    """Stop all that runs in a sandbox, and the clocks of its execs."""
    from kinfold.cli.sandboxes import pause_command

    raise typer.Exit(pause_command(sandbox))


@sandbox_app.command("resume")
def sandbox_resume(sandbox: Annotated[str, typer.Argument(help="The sandbox's id or name.")]) -> None:
    """Let a paused sandbox run on."""
    from kinfold.cli.sandboxes import resume_command

    raise typer.Exit(resume_command(sandbox))


@sandbox_app.command("destroy")
def sandbox_destroy(sandbox: Annotated[str, typer.Argument(help="The sandbox's id or name.")]) -> None:
    """End a sandbox and all that runs in it."""
    from kinfold.cli.sandboxes import destroy_command

    raise typer.Exit(destroy_command(sandbox))


@images_app.command("build")
def images_build(
    names: Annotated[list[str] | None, typer.Argument(help="base, python, node; none: base.")] = None,
) -> None:
    """Build sandbox images; needs no registry where mmdebstrap is installed."""
    from kinfold.cli.images import build_command

    raise typer.Exit(build_command(names or ["base"]))


@images_app.command("list")
def images_list() -> None:
    """List the sandbox images and whether this version's are built."""
    from kinfold.cli.images import list_command

    raise typer.Exit(list_command())


@app.command()
def ledger(
    task: Annotated[str, typer.Argument(help="A task's id, or its beginning.", show_default=False)],
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document.")] = False,
) -> None:
    """Show what each request of a task sent and cost, and what each delegation kept out of the main context."""
    from kinfold.cli.ledger import ledger_command

    raise typer.Exit(ledger_command(task, as_json=as_json))


@tasks_app.command("list")
def tasks_list(
    user: Annotated[str | None, typer.Option(help="Only this user's.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many, the newest first.")] = 50,
) -> None:
    """List tasks: how each stands, how it ended, when, whose."""
    from kinfold.cli.tasks import list_command

    raise typer.Exit(list_command(user=user, limit=limit))


_TASK = typer.Argument(help="The task's id, or how it begins.", metavar="TASK")


@tasks_app.command("show")
def tasks_show(
    task: Annotated[str, _TASK], json: Annotated[bool, typer.Option("--json", help="The result as JSON.")] = False
) -> None:
    """Show what a task was asked, how it ended and what it delivered."""
    from kinfold.cli.tasks import show_command

    raise typer.Exit(show_command(task, as_json=json))


@tasks_app.command("events")
def tasks_events(
    task: Annotated[str, _TASK],
    after: Annotated[int, typer.Option(help="Only events numbered above this.")] = 0,
    type: Annotated[list[str] | None, typer.Option(help="Only events of this type; may be given again.")] = None,
) -> None:
    """Print a task's event log as JSON lines."""
    from kinfold.cli.tasks import events_command

    raise typer.Exit(events_command(task, after=after, types=type or []))


@tasks_app.command("artifacts")
def tasks_artifacts(task: Annotated[str, _TASK]) -> None:
    """List what a task's agents delivered, with digests."""
    from kinfold.cli.tasks import artifacts_command

    raise typer.Exit(artifacts_command(task))


@tasks_app.command("export")
def tasks_export(task: Annotated[str, _TASK]) -> None:
    """Print all that is kept of a task as one JSON document."""
    from kinfold.cli.tasks import export_command

    raise typer.Exit(export_command(task))
