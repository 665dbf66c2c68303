"""Matches paths against file patterns in time linear in both, however hostile the pattern: no regular expressions.

`*` any run of characters but `/`; `?` one of them; `[a-z]`, `[!a]` one of a set; `**` as a whole component any number
of directories, none included; `{a,b}` either. A leading dot is nothing special. A pattern without `/` matches a name at
any depth.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

MAX_ALTERNATIVES = 64
MAX_PATTERN = 1_000

_P = TypeVar("_P")
_N = TypeVar("_N")
_Test = Callable[[str], bool]
_STAR = "*"
_SPECIAL = frozenset("*?[")


class Pattern:
    """One compiled pattern. Raises `ValueError` where it cannot be one."""

    def __init__(self, text: str) -> None:
        if not text or len(text) > MAX_PATTERN:
            raise ValueError(f"a pattern has 1 to {MAX_PATTERN} characters")
        text = text.removeprefix("./")
        self._alternatives = [
            [_component(part) for part in _anchored(choice).split("/") if part not in ("", ".")]
            for choice in _expand(text)
        ]

    def matches(self, path: str) -> bool:
        """Whether the relative `path` matches."""
        names = path.split("/")
        return any(_match_path(pattern, names) for pattern in self._alternatives)


def _match_path(pattern: list[_Test | None], names: list[str]) -> bool:
    if pattern.count(None) != 1:
        return _match(pattern, names, _is_deep, _fits)
    start = pattern.index(None)  # one `**`, the usual kind: a fixed beginning and a fixed end
    end = len(pattern) - start - 1
    if len(names) < start + end:
        return False
    ends = zip(pattern[start + 1 :], names[len(names) - end :], strict=True)
    return all(_fits(part, name) for part, name in ends) and all(map(_fits, pattern[:start], names))


def _anchored(text: str) -> str:
    return text if "/" in text else f"**/{text}"


def _expand(text: str) -> list[str]:
    """The alternatives that braces stand for. An unclosed or empty brace is a plain character."""
    done: list[str] = []
    todo = [text]
    while todo:
        current = todo.pop(0)
        span = _innermost(current)
        if span is None:
            done.append(current)
        else:
            opened, closed = span
            choices = current[opened + 1 : closed].split(",")
            todo += [current[:opened] + choice + current[closed + 1 :] for choice in choices]
        if len(done) + len(todo) > MAX_ALTERNATIVES:
            raise ValueError(f"braces stand for more than {MAX_ALTERNATIVES} alternatives")
    return list(dict.fromkeys(done))


def _innermost(text: str) -> tuple[int, int] | None:
    opened = -1
    for index, char in enumerate(text):
        if char == "{":
            opened = index
        elif char == "}" and opened >= 0:
            return opened, index
    return None


def _component(text: str) -> _Test | None:
    """The test of one component; None is `**`. Plain names, `*.py` and `test_*` need no matcher."""
    if text == "**":
        return None
    if not _SPECIAL & set(text):
        return lambda name: name == text
    if text[0] == "*" and not _SPECIAL & set(text[1:]):
        end = text[1:]
        return lambda name: name.endswith(end)
    if text[-1] == "*" and not _SPECIAL & set(text[:-1]):
        start = text[:-1]
        return lambda name: name.startswith(start)
    tests = _tests(text)
    return lambda name: _match(tests, name, _is_star, _char_fits)


def _tests(text: str) -> list[str | _Test]:
    """One test a character, `_STAR` for any run of them."""
    tests: list[str | _Test] = []
    index = 0
    while index < len(text):
        char = text[index]
        closed = text.find("]", index + 2) if char == "[" else -1
        if char == "*":
            if not tests or tests[-1] != _STAR:
                tests.append(_STAR)
        elif char == "?":
            tests.append(lambda _: True)
        elif closed > 0:
            tests.append(_char_set(text[index + 1 : closed]))
            index = closed
        else:
            tests.append(_literal(char))
        index += 1
    return tests


def _literal(char: str) -> _Test:
    return lambda other: other == char


def _char_set(text: str) -> _Test:
    negated = text[0] in "!^" and len(text) > 1
    body = text[1:] if negated else text
    ranges: list[tuple[str, str]] = []
    index = 0
    while index < len(body):
        if index + 2 < len(body) and body[index + 1] == "-":
            ranges.append((body[index], body[index + 2]))
            index += 3
        else:
            ranges.append((body[index], body[index]))
            index += 1
    return lambda char: any(low <= char <= high for low, high in ranges) != negated


def _is_deep(part: _Test | None) -> bool:
    return part is None


def _fits(part: _Test | None, name: str) -> bool:
    return part is not None and part(name)


def _is_star(test: str | _Test) -> bool:
    return test == _STAR


def _char_fits(test: str | _Test, char: str) -> bool:
    return not isinstance(test, str) and test(char)


def _match(
    pattern: Sequence[_P], items: Sequence[_N], deep: Callable[[_P], bool], fits: Callable[[_P, _N], bool]
) -> bool:
    """Wildcard matching that only ever goes back to the last star: no blow-up."""
    at = item = 0
    star = back = -1
    while item < len(items):
        if at < len(pattern) and deep(pattern[at]):
            star, back = at, item
            at += 1
        elif at < len(pattern) and fits(pattern[at], items[item]):
            at += 1
            item += 1
        elif star >= 0:
            back += 1
            at, item = star + 1, back
        else:
            return False
    return all(deep(part) for part in pattern[at:])
