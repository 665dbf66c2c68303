"""Hides secrets in text, as they are and as programs commonly write them; also where a text arrives in pieces.

A stream holds back no more than the end of a piece that could be the beginning of a secret, so that a watcher sees the
rest at once.
"""

from __future__ import annotations

import base64
import json
import re
import urllib.parse
from collections.abc import Iterable, Iterator

HIDDEN = "[secret]"
MIN_SECRET = 4
"""Shorter secrets are not hidden: their letters occur everywhere."""
_MIN_ENCODED = 8
"""What is shorter in another spelling would be found in any text."""
_CUT = re.compile(r"\[… [^\n]{0,400}?\]")
"""How kinfold's tools say that something is left out here: what stands on either side may be half of a secret."""
_AT_A_CUT = " \n\r\t\N{REPLACEMENT CHARACTER}"


class Redaction:
    """The secrets of one task."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        forms = {form for secret in secrets if len(secret) >= MIN_SECRET for form in (secret, *_spellings(secret))}
        longest_first = sorted(forms, key=lambda form: (-len(form), form))
        self._pattern = re.compile("|".join(map(re.escape, longest_first))) if forms else None
        self._longest = max(map(len, forms), default=0)
        self._beginnings: dict[str, list[str]] = {}
        for form in longest_first:
            self._beginnings.setdefault(form[0], []).append(form)

    def __bool__(self) -> bool:
        return self._pattern is not None

    def whole(self, text: str) -> str:
        """A text that does not go on, with every secret hidden; also where it was cut, at its end or at a `[… …]`."""
        if self._pattern is None:
            return text
        parts, at = [], 0
        for cut in _CUT.finditer(text):
            parts += [self._side(text[at : cut.start()], after_cut=at > 0), cut[0]]
            at = cut.end()
        return "".join([*parts, self._side(text[at:], after_cut=True)]) if parts else self._uncut(text)

    def _side(self, text: str, *, after_cut: bool) -> str:
        """What stands on one side of a cut, or between two."""
        bare = text.strip(_AT_A_CUT)
        before, _, behind = text.partition(bare) if bare else ("", "", text)
        rest = bare
        if after_cut and self._pattern is not None and self._pattern.match(bare) is None:  # a whole one is not an end
            rest = bare[self._ended(bare) :]
        return before + (HIDDEN if rest != bare else "") + self._uncut(rest) + behind

    def _ended(self, text: str) -> int:
        """How much of the text's beginning could be a secret's end."""
        forms = [form for named in self._beginnings.values() for form in named]
        for length in range(min(len(text), self._longest - 1), MIN_SECRET - 1, -1):
            start = text[:length]
            if any(len(form) > length and form.endswith(start) for form in forms):
                return length
        return 0

    def _uncut(self, text: str) -> str:
        if self._pattern is None:
            return text
        hidden, at = self._until(text, len(text))
        start = self._begun(text, at)
        if len(text) - start < MIN_SECRET:
            return hidden + text[at:]
        return hidden + text[at:start] + HIDDEN

    def pieces(self) -> Pieces:
        """For a text that comes in pieces."""
        return Pieces(self)

    def _until(self, text: str, end: int) -> tuple[str, int]:
        """The text with the secrets hidden that begin before `end`, up to the last of them, and where that lies."""
        parts = []
        at = 0
        if self._pattern is not None:
            for match in self._pattern.finditer(text):
                if match.start() >= end:
                    break
                parts += [text[at : match.start()], HIDDEN]
                at = match.end()
        return "".join(parts), at

    def _begun(self, text: str, after: int) -> int:
        """From where on the end of the text could be a secret's beginning; its length where it could be none."""
        for start in range(max(after, len(text) - self._longest + 1), len(text)):
            rest = text[start:]
            if any(len(form) > len(rest) and form.startswith(rest) for form in self._beginnings.get(rest[0], ())):
                return start
        return len(text)


class Pieces:
    """One text that comes in pieces."""

    __slots__ = ("_held", "_redaction")

    def __init__(self, redaction: Redaction) -> None:
        self._redaction = redaction
        self._held = ""

    def add(self, text: str) -> str:
        """What can be shown now; the rest comes with the next piece or the end."""
        text = self._held + text
        hidden, at = self._redaction._until(text, self._redaction._begun(text, 0))
        stop = self._redaction._begun(text, at)
        self._held = text[stop:]
        return hidden + text[at:stop]

    def end(self) -> str:
        """What was held back. A beginning of a secret that is long enough to be one is hidden."""
        held, self._held = self._held, ""
        return self._redaction.whole(held)


def _spellings(secret: str) -> Iterator[str]:
    """As JSON, a URL, hexadecimal digits and base64 have it; none shorter than what is found in any text."""
    try:
        raw = secret.encode()
    except UnicodeEncodeError:
        raw = secret.encode("utf-8", "surrogateescape")
    quoted = {urllib.parse.quote(raw, safe=safe) for safe in ("", "/")} | {urllib.parse.quote_plus(raw)}
    spelled = {json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1], repr(secret)[1:-1]}
    spelled |= quoted | {re.sub("%..", lambda found: found[0].lower(), text) for text in quoted}
    spelled |= {raw.hex(), raw.hex().upper()}
    for before in range(3):
        # Inside a longer text: the digits that hang on our bytes alone, whatever comes before and behind them.
        digits = base64.b64encode(b"\0" * before + raw).decode()
        inner = digits[(8 * before + 5) // 6 : 8 * (before + len(raw)) // 6]
        spelled |= {inner, inner.translate(str.maketrans("+/", "-_"))}
    return (form for form in spelled if len(form) >= _MIN_ENCODED)
