"""Where in a text something stands that is almost what was looked for: the hint of an edit that did not match."""

from __future__ import annotations

from difflib import get_close_matches

MAX_LINES = 2_000
"""Distinct lines that are compared; similarity is costly."""
MAX_LENGTH = 200
"""Characters of a line that are compared or shown."""


def hint(text: str, wanted: str) -> str:
    """One line that names the nearest place, or says that there is none."""
    lines = text.splitlines()
    first = next((line for line in wanted.splitlines() if line.strip()), "")
    if not first:
        return "old_string is white space only; take in a line that says something"
    for number, line in enumerate(lines, start=1):
        if line.strip() == first.strip():
            return _same_line(number, line, first, wanted)
    by_content: dict[str, int] = {}
    for number, line in enumerate(lines, start=1):
        content = line.strip()[:MAX_LENGTH]
        if content and len(by_content) < MAX_LINES:
            by_content.setdefault(content, number)
    near = get_close_matches(first.strip()[:MAX_LENGTH], by_content, n=1, cutoff=0.6)
    if not near:
        return "no line is like its first; read_file the part that you mean"
    return f"the nearest is line {by_content[near[0]]}: {near[0]!r}; read_file it again and copy it exactly"


def _same_line(number: int, line: str, first: str, wanted: str) -> str:
    if line != first and "\n" not in wanted.strip("\n"):
        return f"line {number} differs in white space only: {line[:MAX_LENGTH]!r}"
    if line != first and line.strip() == first.strip():
        return f"line {number} begins like it, with other white space: {line[:MAX_LENGTH]!r}; compare what follows, too"
    return f"line {number} is its first line, but what follows differs; read_file from there and copy it exactly"
