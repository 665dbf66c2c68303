"""The JSON schema that a model reads: pydantic's, without what only costs tokens, and the same bytes every time."""

from __future__ import annotations

import json
from typing import Any
from weakref import WeakKeyDictionary

from pydantic import BaseModel

_CACHE: WeakKeyDictionary[type[BaseModel], str] = WeakKeyDictionary()
"""By class, as text: the tools of a run are asked for often, and nobody can change what others get."""

_BY_NAME = ("properties", "$defs")
"""Keywords whose values are schemas by name, where `title` and `default` are names like any other."""


def of(arguments: type[BaseModel]) -> dict[str, Any]:
    """The schema of a tool's arguments; a fresh dict with a stable key order."""
    text = _CACHE.get(arguments)
    if text is None:
        schema = _clean(arguments.model_json_schema())
        schema.pop("description", None)  # the class's docstring speaks to us, not to the model
        text = _CACHE[arguments] = json.dumps(schema)
    loaded: dict[str, Any] = json.loads(text)
    return loaded


def _clean(node: Any) -> Any:
    if isinstance(node, list):
        return [_clean(item) for item in node]
    if not isinstance(node, dict):
        return node
    node = _without_null({key: value for key, value in node.items() if key != "title"})
    if "const" in node and "enum" not in node:
        node["enum"] = [node.pop("const")]
    return {key: _by_name(value) if key in _BY_NAME else _clean(value) for key, value in node.items()}


def _by_name(schemas: dict[str, Any]) -> dict[str, Any]:
    return {name: _clean(schema) for name, schema in schemas.items()}


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    """`X | None = None` as an optional X: a model leaves out what it does not want to say."""
    choices = node.get("anyOf")
    if choices is None or node.get("default", ...) is not None:
        return node
    others = [choice for choice in choices if choice != {"type": "null"}]
    if len(others) != 1 or len(others) == len(choices):
        return node
    rest = {key: value for key, value in node.items() if key not in ("anyOf", "default")}
    return {**{key: value for key, value in others[0].items() if key != "title"}, **rest}
