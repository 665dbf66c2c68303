"""Definitions in the `.claude/agents/*.md` format: YAML front matter, then the instructions as Markdown.

Read strictly: other readers skip a file that they cannot use, and its author never learns why. Here every such file is
an error with its line and reason, and fields that kinfold knows of but does not act on are kept in `ignored_fields`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from kinfold.definitions.aliases import did_you_mean, removed_key, tool_key
from kinfold.definitions.definition import DEFAULT_TOOL_KEYS
from kinfold.definitions.draft import Draft, refuse

FENCE = "---"
FIELDS: dict[str, str] = {
    "name": "type",
    "description": "description",
    "model": "model",
    "maxTurns": "max_steps",
    "max_turns": "max_steps",
    "max_iteration_per_run": "max_steps",
    "steps": "max_steps",
    "max_steps": "max_steps",
    "tools": "tool_keys",
    "effort": "effort",
    "timeout": "timeout",
    "timeout_mins": "timeout",
    "budget": "budget",
    "max_budget_per_run": "budget",
    "compaction_model": "compaction_model",
    "stop_conditions": "stop_conditions",
    "version": "version",
}
"""How a file may spell each field; `timeout_mins` is in minutes, everything else in the definition's own units."""
REMOVED = "disallowedTools"
IGNORED = frozenset(
    {
        "permissionMode", "skills", "mcpServers", "hooks", "memory", "background", "isolation", "color",
        "initialPrompt", "omitClaudeMd", "experimental",
        "kind", "temperature",
        "permission_mode", "condenser", "profile_store_dir", "mcp_config",
        "mode", "permission", "hidden", "disable",
    }
)  # fmt: skip
"""Known to other systems; kept by name, never acted on."""


def drafts(path: Path, text: str, extra: Collection[str] = ()) -> list[Draft]:
    """The file's one draft. Raises `ConfigError` with file, line and reason."""
    front, body = _split(path, text)
    values, lines = _front_matter(path, front)
    fields: dict[str, Any] = {}
    places: dict[str, int] = {}
    written = {"type": "name"}
    for key, value in values.items():
        name = FIELDS.get(key)
        if name is None:
            continue
        if name in fields:
            refuse(path, lines[key], f"{key!r} and {written[name]!r} say the same thing twice")
        fields[name], places[name], written[name] = _converted(key, value), lines[key], key
    fields["instructions"] = body
    draft = Draft(
        path=path, line=1, values=fields, lines=places, written=written,
        ignored=tuple(key for key in values if key in IGNORED),
    )  # fmt: skip
    _refuse_unknown(draft, values, lines)
    _apply_tools(draft, values, lines, extra)
    return [draft]


def _split(path: Path, text: str) -> tuple[str, str]:
    lines = text.split("\n")
    if lines[0].rstrip() != FENCE:
        refuse(path, 1, f"has no front matter: the first line must be {FENCE!r}")
    end = next((number for number, line in enumerate(lines) if number and line.rstrip() == FENCE), None)
    if end is None:
        refuse(path, 1, f"has front matter that no second {FENCE!r} line ends")
    return "\n".join(lines[1:end]), "\n".join(lines[end + 1 :]).strip()


def _front_matter(path: Path, front: str) -> tuple[dict[str, Any], dict[str, int]]:
    """Values and file lines by key. The front matter begins at line 2 of the file."""
    try:
        return _construct(path, yaml.SafeLoader(front))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        refuse(path, mark.line + 2 if mark else 2, f"front matter is not YAML: {error.problem or error.context}")
    except yaml.YAMLError as error:
        refuse(path, 2, f"front matter is not YAML: {' '.join(str(error).split())}")
    except RecursionError:
        refuse(path, 2, "front matter is nested too deeply")


def _construct(path: Path, loader: yaml.SafeLoader) -> tuple[dict[str, Any], dict[str, int]]:
    root = loader.get_single_node()
    if root is None:
        refuse(path, 1, "has empty front matter: 'name' and 'description' are needed")
    if not isinstance(root, yaml.MappingNode):
        refuse(path, 2, "front matter must be fields, one `key: value` a line")
    values: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key_node, value_node in root.value:
        line = key_node.start_mark.line + 2
        if not isinstance(key_node, yaml.ScalarNode):
            refuse(path, line, "a field's name must be a plain word")
        key = key_node.value
        if key in values:
            refuse(path, line, f"{key!r} stands twice (first in line {lines[key]})")
        try:
            values[key] = loader.construct_object(value_node, deep=True)
        except (ValueError, OverflowError) as error:
            refuse(path, line, f"{key!r} is not a usable value: {error}")
        lines[key] = line
    return values, lines


def _converted(key: str, value: Any) -> Any:
    if key == "timeout_mins" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return value * 60
    return value


def _refuse_unknown(draft: Draft, values: dict[str, Any], lines: dict[str, int]) -> None:
    known = [*FIELDS, REMOVED, *IGNORED]
    for key in values:
        if key not in known:
            refuse(draft.path, lines[key], f"{key!r} is not a field of an agent file{did_you_mean(key, known)}")


def _apply_tools(draft: Draft, values: dict[str, Any], lines: dict[str, int], extra: Collection[str]) -> None:
    """Turn the file's tool names into keys, and take away the disallowed ones."""
    if "tools" in values:
        names = _names(draft, lines["tools"], "tools", values["tools"])
        draft.values["tool_keys"] = [_key(draft, lines["tools"], "tools", name, extra) for name in names]
    if REMOVED not in values:
        return
    removed = set()
    for name in _names(draft, lines[REMOVED], REMOVED, values[REMOVED]):
        try:
            removed.add(removed_key(name, extra))
        except ValueError as error:
            refuse(draft.path, lines[REMOVED], f"{REMOVED!r} {error}")
    keys = draft.values.get("tool_keys", DEFAULT_TOOL_KEYS)
    draft.values["tool_keys"] = [key for key in keys if key not in removed]
    draft.lines.setdefault("tool_keys", lines[REMOVED])
    draft.written.setdefault("tool_keys", REMOVED)


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


def _key(draft: Draft, line: int, field: str, name: str, extra: Collection[str]) -> str:
    try:
        return tool_key(name, extra)
    except ValueError as error:
        refuse(draft.path, line, f"{field!r} {error}")
