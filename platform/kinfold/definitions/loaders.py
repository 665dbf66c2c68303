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
    thinking = "adaptive"                      # adaptive, off, or a budget in tokens, as 8000
    compaction_model = "…"
    stop_conditions = [{tokens_over = 50000}, {has_tool_call = "bash"}, {text_matches = "^DONE"}]
    instructions = """
    What this subagent is told on top of what every subagent is told.
    """

Markdown is the `.claude/agents` format (see `agent_file`), or that of Gemini, OpenHands, opencode or deepagents; the
agent files of Codex are TOML, too. `dialect` says how they are told apart. A directory is read to any depth, dot
directories left out; only `.toml` and `.md` files count, and each of them must be a definition. Definitions are read
from a path that the operator names, never looked for in a workspace. Every fault is one `ConfigError` that says file,
line and reason.
'''

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from kinfold.definitions import toml_file
from kinfold.definitions.definition import SubagentDefinition
from kinfold.definitions.dialect import Dialect
from kinfold.definitions.draft import Draft, Refused, hint_for, refuse
from kinfold.errors import ConfigError

SUFFIXES = (".toml", ".md")
MAX_FILE_BYTES = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What a file holds that may be a definition, and what became of it."""

    path: Path
    line: int
    """1-based; of the fault where there is one, else where the definition begins."""
    status: Literal["ok", "skipped", "error"]
    reason: str = ""
    """Why it is skipped or wrong."""
    dialect: str = ""
    """Empty where the file could not be read so far."""
    definition: SubagentDefinition | None = None
    lines: Mapping[str, int] = field(default_factory=dict)
    """Field of the definition → its line."""


def load(
    path: str | os.PathLike[str], *, extra_tool_keys: Collection[str] = (), dialect: Dialect | None = None
) -> tuple[SubagentDefinition, ...]:
    """All definitions at `path`, files in name order. `extra_tool_keys` are the user's own tools.

    `dialect` says whose files they are; None: each file's place and fields tell. Raises `ConfigError` for a missing or
    empty path, an unreadable file, a type that stands twice, any fault inside, and where all is switched off.
    """
    found = candidates(path, extra_tool_keys=extra_tool_keys, dialect=dialect)
    for candidate in found:
        if candidate.status == "error":
            raise ConfigError(f"{candidate.path}:{candidate.line}: {candidate.reason}", hint=hint_for(candidate.path))
    loaded = tuple(candidate.definition for candidate in found if candidate.definition is not None)
    if not loaded:
        why = "; ".join(f"{candidate.path.name}: {candidate.reason}" for candidate in found[:3])
        raise ConfigError(f"{path}: no definition is in use here: {why}", hint="--agents none means no subagents")
    return loaded


def candidates(
    path: str | os.PathLike[str], *, extra_tool_keys: Collection[str] = (), dialect: Dialect | None = None
) -> list[Candidate]:
    """Every definition at `path`, good or bad, files in name order; nothing is left out in silence.

    Of one type in two places both are errors, each naming the other. Raises `ConfigError` only for a path where
    nothing can be looked for.
    """
    found: list[Candidate] = []
    for file in _found(Path(path)):
        found += _of_file(file, extra_tool_keys, dialect)
    return _without_twins(found)


def _of_file(file: Path, extra: Collection[str], dialect: Dialect | None) -> list[Candidate]:
    try:
        drafts = _drafts(file, _text(file), extra, dialect)
    except Refused as error:
        return [Candidate(path=file, line=error.line, status="error", reason=error.reason)]
    return [_candidate(draft, extra) for draft in drafts]


def _candidate(draft: Draft, extra: Collection[str]) -> Candidate:
    make = functools.partial(Candidate, path=draft.path, dialect=draft.dialect, lines=draft.lines)
    if draft.skip:
        return make(line=draft.line, status="skipped", reason=draft.skip)
    try:
        return make(line=draft.line, status="ok", definition=draft.build(extra))
    except Refused as error:
        return make(line=error.line, status="error", reason=error.reason)


def _without_twins(found: list[Candidate]) -> list[Candidate]:
    """Which of two were meant nobody can know, so neither serves."""
    places: dict[str, list[Candidate]] = {}
    for candidate in found:
        if candidate.definition is not None:
            places.setdefault(candidate.definition.type, []).append(candidate)
    return [_as_twin(candidate, places) for candidate in found]


def _as_twin(candidate: Candidate, places: dict[str, list[Candidate]]) -> Candidate:
    definition = candidate.definition
    if definition is None or len(places[definition.type]) == 1:
        return candidate
    line = candidate.lines.get("type", candidate.line)
    others = ", ".join(f"{o.path}:{o.lines.get('type', o.line)}" for o in places[definition.type] if o is not candidate)
    reason = f"the type {definition.type!r} stands twice: {others} has it too"
    return replace(candidate, status="error", line=line, reason=reason, definition=None)


def _drafts(file: Path, text: str, extra: Collection[str], dialect: Dialect | None) -> list[Draft]:
    if file.suffix.lower() == ".toml":
        return toml_file.drafts(file, text, dialect)
    from kinfold.definitions import agent_file  # PyYAML is needed for these alone

    return agent_file.drafts(file, text, extra, dialect)


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
            refuse(file, 1, "is not a regular file")
        with file.open("rb") as stream:
            data = stream.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        refuse(file, 1, f"cannot be read: {error.strerror}")
    if len(data) > MAX_FILE_BYTES:
        refuse(file, 1, f"is larger than {MAX_FILE_BYTES:,} bytes, too large for a definition")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        refuse(file, data[: error.start].count(b"\n") + 1, "is not UTF-8 text")
    return text.replace("\r\n", "\n")
