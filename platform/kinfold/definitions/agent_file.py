"""Agent files in Markdown: YAML front matter, then the instructions as Markdown; in any of five dialects.

Read strictly: other readers skip a file that they cannot use, and its author never learns why. Here every such file is
an error with its line and reason, and fields that kinfold knows of but does not act on are kept in `ignored_fields`.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import yaml

from kinfold.definitions import tool_fields
from kinfold.definitions.aliases import did_you_mean
from kinfold.definitions.definition import IgnoredField
from kinfold.definitions.dialect import Dialect, of_markdown
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
    "effort": "effort",
    "thinking": "thinking",
    "timeout": "timeout",
    "timeout_mins": "timeout",
    "budget": "budget",
    "max_budget_per_run": "budget",
    "compaction_model": "compaction_model",
    "stop_conditions": "stop_conditions",
    "version": "version",
}
"""How a file may spell each field; `timeout_mins` is in minutes, everything else in the definition's own units."""
IGNORED = frozenset(
    {
        "permissionMode", "skills", "mcpServers", "hooks", "memory", "background", "isolation", "color",
        "initialPrompt", "omitClaudeMd", "experimental",
        "kind", "temperature",
        "permission_mode", "condenser", "profile_store_dir", "mcp_config",
        "mode", "hidden", "disable", "top_p",
    }
)  # fmt: skip
"""Known to other systems; kept by name and line, never acted on (but for `kind`, `mode` and `disable`, see `_skip`)."""
DEFAULTS: dict[Dialect, dict[str, Any]] = {"gemini": {"max_steps": 30, "timeout": 600}}
"""What a system promises where its file is silent."""


def drafts(path: Path, text: str, extra: Collection[str] = (), dialect: Dialect | None = None) -> list[Draft]:
    """The file's one draft. Raises `ConfigError` with file, line and reason."""
    front, body = _split(path, text)
    values, lines = _front_matter(path, front)
    dialect = dialect or of_markdown(path, values)
    fields: dict[str, Any] = {}
    places: dict[str, int] = {}
    written = {"type": "name"}
    for key, value in values.items():
        name = FIELDS.get(key)
        if name is None:
            continue
        if name in fields:
            refuse(path, lines[key], f"{key!r} and {written[name]!r} say the same thing twice")
        fields[name], places[name], written[name] = _converted(key, value, dialect), lines[key], key
    fields["instructions"] = body
    draft = Draft(
        path=path, line=1, values={**_given_by_place(path, dialect), **DEFAULTS.get(dialect, {}), **fields},
        lines=places, written=written, ignored=_ignored(values, lines, dialect), dialect=dialect,
        skip=_skip(path, values, lines, dialect),
    )  # fmt: skip
    _refuse_unknown(draft, values, lines)
    if not draft.skip:
        tool_fields.apply(draft, values, lines, extra)
    return [draft]


def _given_by_place(path: Path, dialect: Dialect) -> dict[str, Any]:
    """A name that two systems take from where the file lies."""
    if dialect == "opencode":
        return {"type": path.stem}
    if dialect == "deepagents":
        return {"type": path.absolute().parent.name}
    return {}


def _ignored(values: dict[str, Any], lines: dict[str, int], dialect: Dialect) -> tuple[IgnoredField, ...]:
    known = {*FIELDS, *tool_fields.FIELDS}
    names = [key for key in values if key in IGNORED or (dialect == "openhands" and key not in known)]
    return tuple(IgnoredField(name=name, line=lines[name]) for name in names)


def _skip(path: Path, values: dict[str, Any], lines: dict[str, int], dialect: Dialect) -> str:
    """Why the file's author does not want it as a subagent; empty where it is wanted."""
    if dialect == "gemini" and values.get("kind") == "remote":
        refuse(path, lines["kind"], "'kind' is 'remote': kinfold runs its subagents itself, in the task's sandbox")
    if dialect != "opencode":
        return ""
    if values.get("disable") is True:
        return f"switched off by 'disable' (line {lines['disable']})"
    if values.get("mode") == "primary":
        return f"'mode' (line {lines['mode']}) makes it a main agent, no subagent"
    return ""


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


def _converted(key: str, value: Any, dialect: Dialect) -> Any:
    if key == "timeout_mins" and isinstance(value, (int, float)) and not isinstance(value, bool):
        return value * 60
    if key == "model" and dialect == "opencode" and isinstance(value, str):
        return value.removeprefix("anthropic/")
    return value


def _refuse_unknown(draft: Draft, values: dict[str, Any], lines: dict[str, int]) -> None:
    if draft.dialect == "openhands":
        return  # it keeps what it does not know, and so do we: by name, in `ignored_fields`
    known = [*FIELDS, *tool_fields.FIELDS, *IGNORED]
    for key in values:
        if key not in known:
            refuse(draft.path, lines[key], f"{key!r} is not a field of an agent file{did_you_mean(key, known)}")
