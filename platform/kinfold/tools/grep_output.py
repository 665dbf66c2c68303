"""Reads what a search printed: names are hostile bytes, and none of them may look like a hit in another file.

The programs are asked to end each name by a NUL, which no name holds. A line break in front of it may belong to the
name or end a remark of the program (`binary file matches`); then the workspace is asked whether such a file exists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kinfold.errors import PathError
from kinfold.tools import exec_text
from kinfold.tools.base import ToolContext
from kinfold.tools.names import shown

MAX_ROW = 700
"""Characters of a shown row."""
_PLACE = re.compile(rb"(\d+)([:-])(.*)", re.DOTALL)
_LIKE_A_PLACE = re.compile(r"[:-]\d+([:-]|$)")
"""What in a name could be taken for the line number behind a shorter name."""


@dataclass(frozen=True, slots=True)
class Hit:
    """One line that was found, or one file where only names were asked for."""

    name: bytes
    """As the program wrote it, beginning with `./`; empty: a remark of the program, or its mark between hits."""
    rest: bytes = b""
    """Line number, `:` or `-`, and the line."""

    @property
    def hidden(self) -> bool:
        """Whether it lies where ripgrep is told not to look, and a plain grep looks."""
        return self.name.startswith(b"./.kinfold/") or b"/.git/" in self.name


async def hits(context: ToolContext, output: bytes, *, files_only: bool) -> list[Hit]:
    """The hits of an output in which a NUL ends each name; a record that was cut off at its end is left out."""
    if files_only:
        return [Hit(name) for name in output.split(b"\0")[:-1]]
    records = list(_records(output))
    doubtful = [name for name, _ in records if b"\n" in name]
    stats = await context.sandbox.stat([_text(name) for name in doubtful]) if doubtful else []
    real = {name for name, stat in zip(doubtful, stats, strict=True) if not isinstance(stat, PathError)}
    found: list[Hit] = []
    for name, rest in records:
        *remarks, last = [name] if name in real else name.split(b"\n")
        found += [Hit(b"", remark) for remark in remarks]
        found += [Hit(last, rest)] if last else [Hit(b"", rest)] if rest else []
    return found


def _records(output: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Each name and what follows it up to its line's end; last, what stands behind the last name."""
    place = 0
    while place < len(output):
        if output.startswith(b"--\n", place):  # the mark between hits with context; no name begins so
            yield b"", b"--"
            place += 3
            continue
        nul = output.find(b"\0", place)
        if nul < 0:
            yield from ((b"", line) for line in output[place:].split(b"\n")[:-1])
            return
        end = output.find(b"\n", nul)
        if end < 0:
            return
        yield output[place:nul], output[nul + 1 : end]
        place = end + 1


def plain_hits(output: bytes, *, with_context: bool) -> list[Hit]:
    """The hits of an output without NULs, of files whose names hold neither a line break nor a colon before a digit."""
    form = re.compile(rb"(\./.*?)[:-](\d+[:-].*)" if with_context else rb"(\./.*?):(\d+:.*)")
    found = []
    for line in output.split(b"\n")[:-1]:
        parts = form.match(line)
        found.append(Hit(parts[1], parts[2]) if parts else Hit(line) if line.startswith(b"./") else Hit(b"", line))
    return found


def row(hit: Hit) -> str:
    """A hit on one line: the name, escaped and if need be quoted, the line's number, and the line."""
    if not hit.name:
        return shown(_text(hit.rest))[:MAX_ROW]
    name = _quoted(shown(_text(hit.name.removeprefix(b"./"))))
    place = _PLACE.fullmatch(hit.rest)
    if place is None:
        return name
    number, mark, line = place[1].decode(), place[2].decode(), exec_text.text_of(place[3])
    text = f"{name}{mark}{number}{mark}{line}"
    return text if len(text) <= MAX_ROW else f"{text[:MAX_ROW]} […]"


def _quoted(name: str) -> str:
    """In quotes where it is not plain where the name ends."""
    if not _LIKE_A_PLACE.search(name) and not name.startswith(('"', "(")):
        return name
    escaped = name.replace('"', '\\"')
    return f'"{escaped}"'


def _text(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")
