"""Rows for a person: a table on a terminal, tabs elsewhere. Every cell is escaped here, whatever wrote it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kinfold.cli.ending import one_line

if TYPE_CHECKING:
    from rich.table import Table


def show_rows(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """On standard output; without headings where that is no terminal."""
    if not sys.stdout.isatty():
        for row in rows:
            print("\t".join(_cell(cell) for cell in row), flush=True)
        return
    from rich.console import Console

    Console(highlight=False).print(table(headings, rows))


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """For rich; `headings` that begin with `>` are of numbers."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        made.add_column(heading.lstrip(">"), justify="right" if heading.startswith(">") else "left", no_wrap=True)
    for row in rows:
        made.add_row(*(Text(_cell(cell)) for cell in row))
    return made


def _cell(text: str) -> str:
    """A tab within a cell would be another column."""
    return one_line(text).replace("\t", "\\t")


def size(number: int | None) -> str:
    """Bytes in the largest unit that leaves a figure before the point; `-` where unknown."""
    if number is None:
        return "-"
    amount, unit = float(number), "B"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            break
        amount /= 1024
    return f"{amount:.0f} {unit}" if unit == "B" or amount >= 100 else f"{amount:.1f} {unit}"


def span(seconds: float | None) -> str:
    """A duration in its two largest units; `-` where there is none."""
    if seconds is None:
        return "-"
    whole = int(abs(seconds))
    sign = "-" if seconds <= -1 else ""
    for unit, length, lower, below in (("d", 86400, "h", 3600), ("h", 3600, "m", 60), ("m", 60, "s", 1)):
        if whole >= length:
            return f"{sign}{whole // length}{unit}{whole % length // below:02d}{lower}"
    return f"{sign}{whole}s"
