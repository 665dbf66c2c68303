"""Definitions in TOML: kinfold's own format, which `loaders` documents, and the agent files of Codex."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kinfold.definitions import codex_file
from kinfold.definitions.aliases import did_you_mean
from kinfold.definitions.definition import SubagentDefinition
from kinfold.definitions.draft import Draft, refuse

TABLE = "definition"
FIELDS = frozenset(SubagentDefinition.model_fields) - {"source", "ignored_fields"}

_HEADER = re.compile(r"\s*\[\[\s*definition\s*\]\]")
_KEY = re.compile(r"\s*[\"']?([A-Za-z0-9_-]+)[\"']?\s*=")
_WHERE = re.compile(r"\s*\(at line (\d+), column \d+\)$")


def drafts(path: Path, text: str, dialect: str | None = None) -> list[Draft]:
    """One draft for each `[[definition]]` table; one for a Codex file as a whole.

    Raises `ConfigError` with file, line and reason.
    """
    document = _document(path, text)
    if dialect == "codex" or (dialect is None and codex_file.is_one(path, document)):
        return [codex_file.draft(path, document, {name: line_of(text, name) for name in document})]
    tables = _tables(path, text, document)
    places = list(_places(text))
    found = []
    for index, values in enumerate(tables):
        line, lines = places[index] if index < len(places) else (1, {})
        wrong = next((name for name in values if name not in FIELDS), None)
        fault = wrong and (wrong, f"is not a field of a definition{did_you_mean(wrong, FIELDS)}")
        found.append(Draft(path=path, line=line, values=values, lines=lines, fault=fault or None))
    return found


def _document(path: Path, text: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        where = _WHERE.search(str(error))
        refuse(
            path, int(where[1]) if where else len(text.splitlines()) or 1, f"is not TOML: {_WHERE.sub('', str(error))}"
        )
    except RecursionError:
        refuse(path, 1, "is nested too deeply")


def _tables(path: Path, text: str, document: dict[str, Any]) -> list[dict[str, Any]]:
    for name in document:
        if name != TABLE:
            near = did_you_mean(name, [TABLE])
            refuse(path, line_of(text, name), f"{name!r} is not known at the top; write [[{TABLE}]] tables{near}")
    tables = document.get(TABLE)
    if not isinstance(tables, list) or not tables or not all(isinstance(table, dict) for table in tables):
        refuse(path, 1, f"holds no [[{TABLE}]] table")
    return tables


def _places(text: str) -> Iterator[tuple[int, dict[str, int]]]:
    """Each table's first line and the line of each of its keys; tomllib keeps no positions.

    Lines inside a multi-line string are skipped, so that instructions may quote TOML.
    """
    start, lines = 0, dict[str, int]()
    fence: str | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if fence is None:
            if _HEADER.match(line):
                if start:
                    yield start, lines
                start, lines = number, {}
            elif start and (key := _KEY.match(line)):
                lines.setdefault(key[1], number)
        fence = _fence_after(line, fence)
    if start:
        yield start, lines


def _fence_after(line: str, fence: str | None) -> str | None:
    """Which multi-line string is open after this line."""
    while True:
        if fence is not None:
            _, closed, line = line.partition(fence)
            if not closed:
                return fence
            fence = None
            continue
        opened = re.search(r'"""|' + r"'''", line)
        if opened is None:
            return None
        fence, line = opened[0], line[opened.end() :]


def line_of(text: str, name: str) -> int:
    """The first line that sets a key of the top, or begins its table; 1 where it is written in some odd way."""
    pattern = re.compile(rf"\s*(\[+\s*)?[\"']?{re.escape(name)}\b")
    return next((number for number, line in enumerate(text.splitlines(), start=1) if pattern.match(line)), 1)
