"""The fields of an agent file that grant and take tools: `tools`, `disallowedTools`, `permission`.

What is taken away is taken whole. opencode may ask a person before it uses a tool; a subagent has nobody to ask, so
`ask` takes the tool away, as `deny` does.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from fnmatch import fnmatchcase
from typing import Any

from kinfold.definitions.aliases import granted_keys, removed_keys
from kinfold.definitions.definition import DEFAULT_TOOL_KEYS
from kinfold.definitions.draft import Draft, refuse

TOOLS, REMOVED, PERMISSION = "tools", "disallowedTools", "permission"
FIELDS = (TOOLS, REMOVED, PERMISSION)
DECISIONS = ("allow", "ask", "deny")
EDITS = ("edit_file", "write_file")
"""All that opencode's permission to `edit` speaks of."""


def apply(draft: Draft, values: dict[str, Any], lines: dict[str, int], extra: Collection[str]) -> None:
    """Turn the file's tool names into keys, and take away what it disallows. Raises `ConfigError` with its line."""
    removed: set[str] = set()
    last = ""
    if TOOLS in values:
        last = TOOLS
        if isinstance(values[TOOLS], dict):
            removed |= _switched_off(draft, lines[TOOLS], values[TOOLS], extra)
        else:
            names = _names(draft, lines[TOOLS], TOOLS, values[TOOLS])
            draft.values["tool_keys"] = _keys(draft, lines[TOOLS], TOOLS, names, granted_keys, extra)
    if REMOVED in values:
        last = REMOVED
        names = _names(draft, lines[REMOVED], REMOVED, values[REMOVED])
        removed.update(_keys(draft, lines[REMOVED], REMOVED, names, removed_keys, extra))
    if PERMISSION in values:
        last = PERMISSION
        removed |= _not_allowed(draft, lines[PERMISSION], values[PERMISSION], extra)
    if removed:
        keys = draft.values.get("tool_keys", DEFAULT_TOOL_KEYS)
        draft.values["tool_keys"] = [key for key in keys if key not in removed]
    if last:
        first = TOOLS if TOOLS in values else last
        draft.lines.setdefault("tool_keys", lines[first])
        draft.written.setdefault("tool_keys", first)


def _switched_off(draft: Draft, line: int, tools: dict[Any, Any], extra: Collection[str]) -> set[str]:
    """opencode's map from a tool, or a pattern of tools, to whether it may be used; all others may be."""
    if draft.dialect != "opencode":
        refuse(draft.path, line, f"{TOOLS!r} must be names with commas between, or a list of names")
    off: set[str] = set()
    for name, wanted in tools.items():
        if not isinstance(wanted, bool):
            refuse(draft.path, line, f"{TOOLS!r} must say true or false for {name!r}, not {wanted!r}")
        if "*" in str(name):
            matched = {key for key in (*DEFAULT_TOOL_KEYS, *extra) if fnmatchcase(key, str(name))}
            off = off - matched if wanted else off | matched
        elif wanted:
            off.difference_update(_keys(draft, line, TOOLS, [str(name)], granted_keys, extra))
        else:
            off.update(_keys(draft, line, TOOLS, [str(name)], removed_keys, extra))
    return off


def _not_allowed(draft: Draft, line: int, permission: Any, extra: Collection[str]) -> set[str]:
    if isinstance(permission, str):
        permission = {"*": permission}
    if not isinstance(permission, dict):
        refuse(draft.path, line, f"{PERMISSION!r} must be allow, ask or deny, or a map from tools to these")
    denied: set[str] = set()
    for name, said in permission.items():
        for decision in said.values() if isinstance(said, dict) else [said]:
            if decision not in DECISIONS:
                refuse(draft.path, line, f"{PERMISSION!r} must be allow, ask or deny for {name!r}, not {decision!r}")
        whole = said == "allow" or (isinstance(said, dict) and set(said.values()) <= {"allow"})
        keys = {*DEFAULT_TOOL_KEYS, *extra} if name == "*" else set(_permitted(draft, line, str(name), extra))
        denied = denied - keys if whole else denied | keys
    return denied


def _permitted(draft: Draft, line: int, name: str, extra: Collection[str]) -> Collection[str]:
    return EDITS if name == "edit" else _keys(draft, line, PERMISSION, [name], removed_keys, extra)


def _names(draft: Draft, line: int, key: str, value: Any) -> list[str]:
    """A comma string or a list of names; commas inside parentheses belong to the name."""
    if isinstance(value, str):
        value = _split_commas(value)
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        refuse(draft.path, line, f"{key!r} must be names with commas between, or a list of names")
    names = [name.strip() for name in value if name.strip()]
    if not names:
        refuse(draft.path, line, f"{key!r} names no tool; leave the field out for the default set")
    return names


def _split_commas(text: str) -> list[str]:
    parts, depth = [""], 0
    for char in text:
        depth += {"(": 1, ")": -1}.get(char, 0)
        if char == "," and depth <= 0:
            parts.append("")
        else:
            parts[-1] += char
    return parts


def _keys(
    draft: Draft,
    line: int,
    field: str,
    names: list[str],
    resolve: Callable[[str, Collection[str], str], tuple[str, ...]],
    extra: Collection[str],
) -> list[str]:
    keys: list[str] = []
    for name in names:
        try:
            keys += resolve(name, extra, draft.dialect)
        except ValueError as error:
            refuse(draft.path, line, f"{field!r} {error}")
    return keys
