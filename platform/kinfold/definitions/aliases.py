"""Which of kinfold's tools another system's tool name means, for definitions that were written elsewhere."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches

from kinfold.definitions.definition import FORBIDDEN_IN_SUBAGENTS, KNOWN_TOOL_KEYS

ALIASES: dict[str, str] = {
    "Read": "read_file",
    "Write": "write_file",
    "Edit": "edit_file",
    "MultiEdit": "edit_file",
    "Bash": "bash",
    "BashOutput": "bash",
    "KillShell": "bash",
    "KillBash": "bash",
    "Glob": "glob",
    "Grep": "grep",
    "LS": "list_dir",
    "TodoWrite": "todo_write",
    "Task": "task",
    "Agent": "task",
    "AskUserQuestion": "ask_user_question",
}
FOREIGN = frozenset(
    {"WebFetch", "WebSearch", "NotebookEdit", "NotebookRead", "Skill", "SlashCommand", "ExitPlanMode", "EnterPlanMode"}
)
"""Names that others know and kinfold has no tool for: never a typing mistake, but nothing to grant either."""


def tool_key(name: str, extra: Collection[str] = ()) -> str:
    """The tool key that `name` means. Raises `ValueError` with the reason where a subagent cannot have that tool."""
    key = _resolve(name, extra)
    if key in FORBIDDEN_IN_SUBAGENTS:
        raise ValueError(f"names the tool {name!r}: a subagent can neither start subagents nor ask the user")
    return key


def removed_key(name: str, extra: Collection[str] = ()) -> str | None:
    """The tool key that a list of *disallowed* tools takes away; None where kinfold would not grant it anyway."""
    if name in FOREIGN or name.startswith("mcp__"):
        return None
    key = _resolve(name, extra)
    return None if key in FORBIDDEN_IN_SUBAGENTS else key


def _resolve(name: str, extra: Collection[str]) -> str:
    if "(" in name:
        raise ValueError(
            f"limits a tool by a specifier: {name!r}; kinfold grants a tool whole or not at all, "
            f"so name it without the parentheses or leave it out"
        )
    if name in ALIASES:
        return ALIASES[name]
    if name in KNOWN_TOOL_KEYS or name in extra:
        return name
    if name in FOREIGN or name.startswith("mcp__"):
        raise ValueError(f"names the tool {name!r}, which kinfold does not have")
    raise ValueError(f"names the unknown tool {name!r}{did_you_mean(name, [*ALIASES, *KNOWN_TOOL_KEYS, *extra])}")


def did_you_mean(word: str, known: Collection[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no known word is near."""
    by_lower = {candidate.lower(): candidate for candidate in sorted(known)}
    near = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""
