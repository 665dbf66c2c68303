"""Whose format an agent file has: told by where it lies, else by fields that only one system has.

| dialect | place | told by |
|---|---|---|
| `claude` | `.claude/agents/` | what no other claims |
| `gemini` | `.gemini/agents/` | `kind`, `timeout_mins` |
| `openhands` | `.agents/agents/` | `max_iteration_per_run`, `permission_mode`, `condenser`, … |
| `opencode` | `.opencode/agent/`, `.opencode/agents/` | `mode`, `permission`, `disable`, `tools` as a map, … |
| `deepagents` | `.deepagents/agents/NAME/AGENTS.md` | its place alone |
| `codex` | `.codex/agents/*.toml` | `developer_instructions` (see `codex_file`) |
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from kinfold.errors import ConfigError

Dialect = Literal["claude", "gemini", "openhands", "opencode", "deepagents", "codex"]
DIALECTS: tuple[Dialect, ...] = ("claude", "gemini", "openhands", "opencode", "deepagents", "codex")

_PLACES: dict[tuple[str, str], Dialect] = {
    (".claude", "agents"): "claude",
    (".gemini", "agents"): "gemini",
    (".agents", "agents"): "openhands",
    (".opencode", "agent"): "opencode",
    (".opencode", "agents"): "opencode",
    (".deepagents", "agents"): "deepagents",
    (".codex", "agents"): "codex",
}
_MARKS: dict[Dialect, frozenset[str]] = {
    "gemini": frozenset({"kind", "timeout_mins"}),
    "openhands": frozenset(
        {
            "max_iteration_per_run",
            "max_budget_per_run",
            "permission_mode",
            "condenser",
            "profile_store_dir",
            "mcp_config",
        }
    ),
    "opencode": frozenset({"mode", "permission", "hidden", "disable"}),
}


def of_place(path: Path) -> Dialect | None:
    """By the innermost directory that one system is known for."""
    parts = path.absolute().parts[:-1]
    pairs = [pair for pair in pairwise(parts) if pair in _PLACES]
    return _PLACES[pairs[-1]] if pairs else None


def of_markdown(path: Path, values: Mapping[str, Any]) -> Dialect:
    """The dialect of a Markdown file with these fields."""
    place = of_place(path)
    if place is not None and place != "codex":
        return place
    counts = {dialect: len(marks & values.keys()) for dialect, marks in _MARKS.items()}
    counts["opencode"] += isinstance(values.get("tools"), dict)
    best = max(counts, key=lambda dialect: counts[dialect])
    return best if counts[best] else "claude"


def known_dialect(name: str | None) -> Dialect | None:
    """The dialect of that name. Raises `ConfigError` for another word."""
    for dialect in DIALECTS:
        if dialect == name:
            return dialect
    if name is not None:
        raise ConfigError(f"there is no dialect {name!r}", hint=f"dialects are: {', '.join(DIALECTS)}")
    return None
