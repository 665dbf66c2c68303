"""Reads the raw input of a tool call: strictly, and only when it is whole."""

from __future__ import annotations

import json
from typing import Any

SHOWN = 200
"""Characters of a wrong input that its error quotes."""


def parse_tool_input(raw: str) -> tuple[dict[str, Any], str | None]:
    """The input's object and None, or an empty one and the sentence that says why `raw` is not a JSON object.

    No raw input at all means no arguments. A cut input is never completed by guessing: it would become a smaller,
    valid call that the model did not make.
    """
    if not raw.strip():
        return {}, None
    try:
        value = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        return {}, f"the tool input is not valid JSON ({error}): {_shown(raw)}"
    if not isinstance(value, dict):
        return {}, f"the tool input must be a JSON object, not {_kind(value)}: {_shown(raw)}"
    return value, None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


def _kind(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", int: "a number", float: "a number"}
    return names.get(type(value), "null")


def _shown(raw: str) -> str:
    return raw if len(raw) <= SHOWN else f"{raw[:SHOWN]}… ({len(raw)} characters)"
