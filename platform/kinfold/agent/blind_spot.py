"""What the user demanded and a delegation's prompt lacks: a subagent sees its prompt and nothing else.

The rule reads words, it does not understand them: clauses that forbid or narrow ("not", "without", "only", "must"),
numbers, paths and names of the user's turns are looked for in the prompt. A demand that the prompt words anew without
any of its words is reported although it is met; that costs a sentence, and its opposite costs a wrong answer.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

MOST = 8
"""Findings of one delegation that are named."""
_CLAUSE = re.compile(r"[,.;:!?](?=\s|$)|\n|\bbut\b|\bthough\b", re.IGNORECASE)
_DEMAND = re.compile(
    r"\b(?:(?:do|does|must|can|may|should|is|are|did|will)(?:\s+not\b|n['’]t\b)|can['’]t\b|cannot\b|not\b|never\b|without\b"
    r"|except\b|only\b|must\b|exactly\b|at (?:least|most)\b|avoid\b|no (?=\w))",
    re.IGNORECASE,
)
_PATH = re.compile(r"(?<![\w.])(?:[\w.~-]*/[\w./~-]*\w/?|\w[\w-]*\.[A-Za-z]\w{0,4})(?![\w/])")
_NUMBER = re.compile(r"(?<![\w./-])\d[\d.,]*(?<![.,])(?:\s+[A-Za-z]{3,})?")
_NAME = re.compile(r"\b[A-Z][\w'’-]+(?:\s+[A-Z][\w'’-]+)*")
_WORD = re.compile(r"[\w./-]*\w")
_COMMON_WORDS = (
    "a all an and are any as at be by can cannot did do does don for from had has have how in into is it its may mean "
    "must no not of on only or ones our should so than that the their them then these they this those to use was we "
    "were what when where which who will with without you your never exactly least most except avoid"
)
_COMMON = frozenset(_COMMON_WORDS.split())


def missing_constraints(turns: Sequence[str], prompt: str) -> tuple[str, ...]:
    """The user's words, verbatim, that narrow the work and have no counterpart in `prompt`; at most `MOST`."""
    found: dict[str, None] = {}
    for turn in turns:
        for text in _candidates(turn):
            if not _held(text, prompt):
                found.setdefault(text)
    kept = [text for text in found if not any(text != other and text in other for other in found)]
    return tuple(kept[:MOST])


def _candidates(turn: str) -> Iterator[str]:
    for clause in _CLAUSE.split(turn):
        if (demand := _DEMAND.search(clause)) is not None:
            yield clause[demand.start() :].strip()
    for pattern in (_PATH, _NUMBER):
        yield from _whole_words(pattern.findall(turn))
    starts = {match.end() for match in re.finditer(r"(?:^|[.!?:\n])\s*", turn)}
    for match in _NAME.finditer(turn):
        first, _, rest = match.group().partition(" ")
        if match.start() not in starts:
            yield match.group()
        elif rest and first.lower() not in _COMMON:
            yield rest


def _whole_words(texts: Iterable[str]) -> Iterator[str]:
    """A number keeps the word after it only where that word says something."""
    for text in texts:
        number, _, word = text.partition(" ")
        yield number if word.lower() in _COMMON else text


def _held(text: str, prompt: str) -> bool:
    """Whether the prompt has every number and path of the text, and at least half of its other words."""
    spoken = _plain(prompt)
    words = [word for word in _WORD.findall(_plain(text)) if word not in _COMMON]
    exact = [word for word in words if any(char.isdigit() or char in "./" for char in word)]
    rest = [word for word in words if word not in exact]
    if any(not re.search(rf"(?<![\w]){re.escape(word)}(?!\w)", spoken) for word in exact):
        return False
    held = sum(_stem(word) in spoken for word in rest)
    return 2 * held >= len(rest)


def _plain(text: str) -> str:
    return re.sub(r"(?<=\d),(?=\d{3}\b)", "", text.lower())


def _stem(word: str) -> str:
    return re.sub(r"(?:ing|ed|es|s)$", "", word) if len(word) > 4 else word
