"""The command line. It has nothing that the library lacks; importing it draws in neither rich nor docker."""

from __future__ import annotations


def main() -> None:
    """The `kinfold` command: runs the typer app and turns every kinfold error into `error:` and `hint:` lines."""
    from kinfold.cli.app import run_app

    run_app()
