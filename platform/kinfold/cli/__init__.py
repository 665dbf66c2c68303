"""The command line. It has nothing that the library lacks; importing it draws in neither rich nor docker."""

from __future__ import annotations

import signal


def main() -> None:
    """The `kinfold` command; Ctrl-C ends it with 130 from its first import on."""
    try:
        from kinfold.cli.app import run_app

        run_app()
    except KeyboardInterrupt:
        raise SystemExit(130) from None
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the exit code is decided: let the interpreter leave in peace
