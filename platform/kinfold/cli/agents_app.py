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
