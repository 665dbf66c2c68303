"""`${result.N.path}` in a script: quotes the N-th tool result of the conversation so far.

`N` counts from 1. `path` walks through the keys and list indexes of a result whose text is JSON; `text` alone is the
result's raw text. A string that is nothing but one reference becomes the value itself, so a list stays a list; within
a longer string the value is written out. `$${result.` stands for itself without the first `$`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from kinfold.messages import Message, ToolResult

_REFERENCE = re.compile(r"\$\$\{result\.|\$\{result\.([^}]*)\}")


class UnknownReference(Exception):
    """Raised when a reference quotes what is not there; the script's player turns it into a `ModelError`."""


def quote(value: Any, messages: Sequence[Message]) -> Any:
    """`value` with the references in all of its strings replaced; raises `UnknownReference`."""
    if isinstance(value, str):
        return _quote_string(value, messages) if "${result." in value else value
    if isinstance(value, dict):
        return {key: quote(item, messages) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [quote(item, messages) for item in value]
    return value


def quote_text(text: str, messages: Sequence[Message]) -> str:
    """Like `quote` for a text, which stays one."""
    return _written(quote(text, messages))


def _quote_string(text: str, messages: Sequence[Message]) -> Any:
    results = [block for message in messages for block in message.content if isinstance(block, ToolResult)]
    whole = _REFERENCE.fullmatch(text)
    if whole and whole[1] is not None:
        return _resolve(whole[0], whole[1], results)

    def written(match: re.Match[str]) -> str:
        return "${result." if match[1] is None else _written(_resolve(match[0], match[1], results))

    return _REFERENCE.sub(written, text)


def _resolve(reference: str, inner: str, results: Sequence[ToolResult]) -> Any:
    number, _, path = inner.partition(".")
    if not (number.isascii() and number.isdigit()) or not path:
        raise UnknownReference(f"{reference} is not of the form ${{result.N.path}}")
    if not 1 <= int(number) <= len(results):
        raise UnknownReference(f"{reference}: the conversation has {len(results)} tool results, counted from 1")
    text = results[int(number) - 1].text
    if path == "text":
        return text
    try:
        value = json.loads(text)
    except ValueError as error:
        shown = text if len(text) <= 200 else text[:200] + "…"
        raise UnknownReference(
            f"{reference}: result {number} is not JSON; its raw text is `text`: {shown!r}"
        ) from error
    for part in path.split("."):
        value = _enter(reference, value, part)
    return value


def _enter(reference: str, value: Any, part: str) -> Any:
    if isinstance(value, dict):
        if part not in value:
            raise UnknownReference(f"{reference}: no key {part!r} among {', '.join(sorted(value)) or 'none'}")
        return value[part]
    if isinstance(value, list):
        if not (part.isascii() and part.isdigit()) or int(part) >= len(value):
            raise UnknownReference(f"{reference}: no index {part!r} in a list of {len(value)}, counted from 0")
        return value[int(part)]
    raise UnknownReference(f"{reference}: {part!r} enters a value that has no parts: {value!r}")


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
