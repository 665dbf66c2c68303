"""Which of kinfold's tools another system's tool name means, for definitions that were written elsewhere."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from difflib import get_close_matches

from kinfold.definitions.definition import DEFAULT_TOOL_KEYS, FORBIDDEN_IN_SUBAGENTS, KNOWN_TOOL_KEYS

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
"""Names that every file may use."""
OF_DIALECT: dict[str, dict[str, tuple[str, ...]]] = {
    "gemini": {
        "run_shell_command": ("bash",),
        "replace": ("edit_file",),
        "read_many_files": ("read_file",),
        "list_directory": ("list_dir",),
        "search_file_content": ("grep",),
        "grep_search": ("grep",),
        "write_todos": ("todo_write",),
        "ask_user": ("ask_user_question",),
        "*": DEFAULT_TOOL_KEYS,
    },
    "openhands": {
        "terminal": ("bash",),
        "TerminalTool": ("bash",),
        "BashTool": ("bash",),
        "execute_bash": ("bash",),
        "file_editor": ("read_file", "write_file", "edit_file"),
        "FileEditorTool": ("read_file", "write_file", "edit_file"),
        "GlobTool": ("glob",),
        "GrepTool": ("grep",),
        "task_tracker": ("todo_write",),
        "TaskTrackerTool": ("todo_write",),
    },
    "opencode": {
        "read": ("read_file",),
        "write": ("write_file",),
        "edit": ("edit_file",),
        "patch": ("edit_file",),
        "list": ("list_dir",),
        "todowrite": ("todo_write",),
        "todoread": ("todo_write",),
        "question": ("ask_user_question",),
    },
}
"""Names that only one system's files may use."""
FOREIGN = frozenset(
    {
        "WebFetch", "WebSearch", "NotebookEdit", "NotebookRead", "Skill", "SlashCommand", "ExitPlanMode",
        "EnterPlanMode", "google_web_search", "web_fetch", "save_memory", "browser", "BrowserToolSet", "webfetch",
        "websearch", "codesearch", "skill", "lsp", "external_directory", "doom_loop",
    }
)  # fmt: skip
"""Names that others know and kinfold has no tool for: never a typing mistake, but nothing to grant either."""


def granted_keys(name: str, extra: Collection[str] = (), dialect: str = "") -> tuple[str, ...]:
    """The tool keys that `name` means. Raises `ValueError` with the reason where a subagent cannot have that tool."""
    if "(" in name:
        raise ValueError(
            f"limits a tool by a specifier: {name!r}; kinfold grants a tool whole or not at all, "
            f"so name it without the parentheses or leave it out"
        )
    keys = _resolve(name, extra, OF_DIALECT.get(dialect, {}))
    if FORBIDDEN_IN_SUBAGENTS & set(keys):
        raise ValueError(f"names the tool {name!r}: a subagent can neither start subagents nor ask the user")
    return keys


def removed_keys(name: str, extra: Collection[str] = (), dialect: str = "") -> tuple[str, ...]:
    """The tool keys that a list of *disallowed* tools takes away; none where kinfold would not grant it anyway.

    A specifier takes the whole tool: what may be used in part only is safe only when it cannot be used. Raises
    `ValueError` for a name that nobody knows.
    """
    whole = name.partition("(")[0].strip()
    if whole in FOREIGN or whole.startswith("mcp__"):
        return ()
    return _resolve(whole, extra, OF_DIALECT.get(dialect, {}))


def _resolve(name: str, extra: Collection[str], own: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    if name in own:
        return own[name]
    if name in ALIASES:
        return (ALIASES[name],)
    if name in KNOWN_TOOL_KEYS or name in extra:
        return (name,)
    if name in FOREIGN or name.startswith("mcp__"):
        raise ValueError(f"names the tool {name!r}, which kinfold does not have")
    raise ValueError(f"names the unknown tool {name!r}{did_you_mean(name, [*ALIASES, *own, *KNOWN_TOOL_KEYS, *extra])}")


def did_you_mean(word: str, known: Collection[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no known word is near."""
    by_lower = {candidate.lower(): candidate for candidate in sorted(known)}
    near = get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""
