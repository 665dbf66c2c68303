"""`kinfold images`: build and list the sandbox images."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kinfold.cli.ending import one_line
from kinfold.cli.foreground import run_async


def build_command(names: Sequence[str]) -> int:
    """Build the named images, progress on standard error, the tags on standard output."""
    from kinfold.sandbox.docker import images

    def progress(line: str) -> None:
        print(one_line(line), file=sys.stderr, flush=True)

    for tag in run_async(lambda: images.build(tuple(names), progress)):
        print(tag)
    return 0


def list_command() -> int:
    """One line per image: name, tag, size, whether it is this version's."""
    from kinfold.sandbox.docker import images

    for image in run_async(images.list_images):
        print(one_line(image.line()))
    return 0
