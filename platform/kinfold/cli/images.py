"""`kinfold images`: build and list the sandbox images."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import anyio

from kinfold.cli.ending import printable


def build_command(names: Sequence[str]) -> int:
    """Build the named images, progress on standard error, the tags on standard output."""
    from kinfold.sandbox.docker import images

    def progress(line: str) -> None:
        print(printable(line), file=sys.stderr, flush=True)

    for tag in anyio.run(images.build, tuple(names), progress):
        print(tag)
    return 0


def list_command() -> int:
    """One line per image: name, tag, size, whether it is this version's."""
    from kinfold.sandbox.docker import images

    for image in anyio.run(images.list_images):
        print(printable(image.line()))
    return 0
