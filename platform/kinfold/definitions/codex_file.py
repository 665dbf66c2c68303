"""One agent of Codex: a TOML file whose keys stand at the top."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kinfold.definitions.aliases import did_you_mean
from kinfold.definitions.definition import IgnoredField
from kinfold.definitions.dialect import of_place
from kinfold.definitions.draft import Draft

FIELDS = {
    "name": "type",
    "description": "description",
    "developer_instructions": "instructions",
    "model": "model",
    "model_reasoning_effort": "effort",
}
IGNORED = frozenset({"sandbox_mode", "mcp_servers", "skills", "nickname_candidates"})
"""Known to Codex; kept by name, never acted on."""
SETTINGS = "agents"
"""The table of limits for all agents, which stands in Codex's own configuration."""


def is_one(path: Path, document: dict[str, Any]) -> bool:
    """Whether this is Codex's: by its place, else by its one word that nobody else has."""
    return of_place(path) == "codex" or "developer_instructions" in document


def draft(path: Path, document: dict[str, Any], lines: dict[str, int]) -> Draft:
    """The file's one draft; `lines` says where each of its keys stands."""
    known = [*FIELDS, *IGNORED]
    wrong = next((name for name in document if name not in known), None)
    fault = wrong and (wrong, f"is not a field of a Codex agent{did_you_mean(wrong, known)}")
    values = {FIELDS[name]: value for name, value in document.items() if name in FIELDS}
    if values.get("effort") == "minimal":
        values["effort"] = "low"
    return Draft(
        path=path,
        line=1,
        values=values,
        lines={FIELDS.get(name, name): line for name, line in lines.items()},
        written={field: name for name, field in FIELDS.items() if field != name},
        ignored=tuple(IgnoredField(name=name, line=lines[name]) for name in document if name in IGNORED),
        dialect="codex",
        fault=None if document.keys() == {SETTINGS} else fault or None,
        skip="holds Codex's limits for all agents, and no agent" if document.keys() == {SETTINGS} else "",
    )
