"""The `kinfold agents …` commands and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

agents_app = typer.Typer(help="Check and keep definitions of subagents.", no_args_is_help=True, rich_markup_mode=None)

_DIALECT = typer.Option(help="Whose files they are; else each file's place and fields tell.")


@agents_app.command("check")
def agents_check(
    path: Annotated[Path, typer.Argument(help="A .toml or .md file, or a directory of them.")],
    dialect: Annotated[str | None, _DIALECT] = None,
    model: Annotated[str | None, typer.Option(help="The main agent's model: what 'inherit' means.")] = None,
    json: Annotated[bool, typer.Option("--json", help="A JSON list on standard output.")] = False,
) -> None:
    """List every definition at a path: status, line, reason, model, tools, limits, tokens; exit 1 on an error."""
    from kinfold.cli.agents_check import check_command

    raise typer.Exit(check_command(path, dialect=dialect, model=model, as_json=json))


@agents_app.command("add")
def agents_add(
    path: Annotated[Path, typer.Argument(help="A .toml or .md file, or a directory of them.")],
    dialect: Annotated[str | None, _DIALECT] = None,
) -> None:
    """Keep the definitions at a path for `--agents store`; what changed becomes a new version."""
    from kinfold.cli.agents_kept import add_command

    raise typer.Exit(add_command(path, dialect=dialect))


@agents_app.command("list")
def agents_list() -> None:
    """List the kept definitions."""
    from kinfold.cli.agents_kept import list_command

    raise typer.Exit(list_command())


@agents_app.command("show")
def agents_show(
    type: Annotated[str, typer.Argument(help="The definition's type.")],
    version: Annotated[int | None, typer.Option(min=1, help="Which version; else the newest in use.")] = None,
    json: Annotated[bool, typer.Option("--json", help="The definition as JSON.")] = False,
) -> None:
    """Show a kept definition."""
    from kinfold.cli.agents_kept import show_command

    raise typer.Exit(show_command(type, version=version, as_json=json))


@agents_app.command("remove")
def agents_remove(type: Annotated[str, typer.Argument(help="The definition's type.")]) -> None:
    """Take a kept definition out of use."""
    from kinfold.cli.agents_kept import remove_command

    raise typer.Exit(remove_command(type))
