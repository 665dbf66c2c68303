'''Reads subagent definitions from a named path: a TOML file, an agent file in Markdown, or a directory of both.

TOML, kinfold's own format, holds any number of definitions; the fields are those of `SubagentDefinition`:

    [[definition]]
    type = "reviewer"                          # the slug that the main agent's model names
    description = "Reads a change and lists its faults."
    tool_keys = ["bash", "read_file", "grep"]  # left out: the default set
    model = "inherit"                          # or a model's name
    max_steps = 20
    timeout = 600.0                            # seconds
    budget = 0.50                              # US dollars
    effort = "high"                            # low, medium, high, xhigh, max
    compaction_model = "…"
    stop_conditions = [{tokens_over = 50000}, {has_tool_call = "bash"}, {text_matches = "^DONE"}]
    instructions = """
    What this subagent is told on top of what every subagent is told.
    """

Markdown is the `.claude/agents` format (see `agent_file`). A directory is read to any depth, dot directories left out;
only `.toml` and `.md` files count, and each of them must be a definition. Definitions are read from a path that the
operator names, never looked for in a workspace. Every fault is one `ConfigError` that says file, line and reason.
'''

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path

from kinfold.definitions import toml_file
from kinfold.definitions.definition import SubagentDefinition
from kinfold.definitions.draft import Draft, refuse
from kinfold.errors import ConfigError

SUFFIXES = (".toml", ".md")
MAX_FILE_BYTES = 1024 * 1024


def load(path: str | os.PathLike[str], *, extra_tool_keys: Collection[str] = ()) -> tuple[SubagentDefinition, ...]:
    """All definitions at `path`, files in name order. `extra_tool_keys` are the user's own tools.

    Raises `ConfigError` for a missing or empty path, an unreadable file, a type that stands twice, any fault inside.
    """
    definitions: dict[str, SubagentDefinition] = {}
    for file in _found(Path(path)):
        for draft in _drafts(file, _text(file), extra_tool_keys):
            definition = draft.build(extra_tool_keys)
            first = definitions.setdefault(definition.type, definition)
            if first is not definition:
                draft.refuse("type", f"is {definition.type!r} again: {first.source} has that type already")
    return tuple(definitions.values())


def _drafts(file: Path, text: str, extra: Collection[str]) -> list[Draft]:
    if file.suffix.lower() == ".toml":
        return toml_file.drafts(file, text)
    from kinfold.definitions import agent_file  # PyYAML is needed for these alone

    return agent_file.drafts(file, text, extra)


def _found(path: Path) -> list[Path]:
    try:
        return _files(path)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", hint="check the path given to --agents") from error


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        files = sorted(_below(path))
        if not files:
            raise ConfigError(
                f"{path}: no definition in this directory (no .toml and no .md file)",
                hint="name the file or its directory, or --agents none for no subagents",
            )
        return files
    if not path.exists():
        raise ConfigError(f"{path}: no such file or directory", hint="check the path given to --agents")
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"{path}: is neither .toml nor .md", hint="name a .toml file, an .md file or a directory")
    return [path]


def _below(root: Path) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise ConfigError(f"{error.filename}: {error.strerror}", hint="make the directory readable") from error

    for folder, folders, names in os.walk(root, onerror=fail):
        folders[:] = [name for name in folders if not name.startswith(".")]
        yield from (Path(folder, name) for name in names if Path(name).suffix.lower() in SUFFIXES)


def _text(file: Path) -> str:
    try:
        if not file.is_file():
            raise ConfigError(f"{file}: is not a regular file", hint="name a regular file")
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}", hint="make the file readable") from error
    if len(data) > MAX_FILE_BYTES:
        refuse(file, 1, f"is larger than {MAX_FILE_BYTES:,} bytes, too large for a definition")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        refuse(file, data[: error.start].count(b"\n") + 1, "is not UTF-8 text")
    return text.replace("\r\n", "\n")
