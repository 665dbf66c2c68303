"""`kinfold agents check`: every definition at a path, good or bad, and what each would cost before it does anything."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kinfold import models
from kinfold.agent.instructions import TASK_INSTRUCTIONS
from kinfold.cli.ending import EXIT_OTHER, one_line
from kinfold.definitions import Candidate, SubagentDefinition, candidates
from kinfold.definitions.dialect import known_dialect
from kinfold.errors import ConfigError
from kinfold.models import estimate
from kinfold.models.base import ModelRequest
from kinfold.models.families import why_refused
from kinfold.tools import registry

MANY_TOKENS = 15_000
"""Of all descriptions together: the main agent reads them in each of its requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One candidate with what the tools and the models have to say of it."""

    candidate: Candidate
    model: str = ""
    """The full name; `inherit` where that is all that is known."""
    main_tokens: int = 0
    """What its description adds to every request of the main agent, estimated."""
    own_tokens: int = 0
    """What its first request holds before the prompt: instructions and tools, estimated."""


def check_command(path: Path, *, dialect: str | None, model: str | None, as_json: bool) -> int:
    """One line a candidate; 1 where any of them is wrong. Raises `ConfigError` where there is nothing to look at."""
    found = [check(candidate, model) for candidate in candidates(path, dialect=known_dialect(dialect))]
    if as_json:
        print(json.dumps([_as_json(checked) for checked in found], indent=2))
    else:
        _print(found)
    return EXIT_OTHER if any(checked.candidate.status == "error" for checked in found) else 0


def check(candidate: Candidate, main_model: str | None = None) -> Checked:
    """Go on where the file's reader ended: the models that it names, and its size."""
    definition = candidate.definition
    if definition is None:
        return Checked(candidate=candidate)
    named = definition.model if definition.model != "inherit" else main_model or "inherit"
    for field, name in (("model", named), ("compaction_model", definition.compaction_model or "inherit")):
        try:
            full = name if name == "inherit" else models.full_name(name)
        except ConfigError as error:
            return Checked(candidate=_wrong(candidate, field, f"{field!r}: {error.message}; {error.hint}"))
        named = full if field == "model" else named
    if refused := why_refused(named, definition.effort, definition.thinking):
        field, reason = refused
        return Checked(candidate=_wrong(candidate, field, f"{field!r}: {reason}"))
    return Checked(
        candidate=candidate,
        model=named,
        main_tokens=estimate.text_tokens(f"- {definition.type}: {definition.description.strip()}\n"),
        own_tokens=own_tokens(definition),
    )


def own_tokens(definition: SubagentDefinition) -> int:
    """The estimated tokens that a subagent of this kind starts with, its prompt aside."""
    tools = registry.specs(registry.select(definition.tool_keys))
    system = tuple(text for text in (TASK_INSTRUCTIONS, definition.instructions) if text)
    return estimate.request_tokens(ModelRequest(system=system, messages=(), tools=tools))


def _wrong(candidate: Candidate, field: str, reason: str) -> Candidate:
    return Candidate(
        path=candidate.path,
        line=candidate.lines.get(field, candidate.line),
        status="error",
        reason=reason,
        dialect=candidate.dialect,
        lines=candidate.lines,
    )


def _print(found: Sequence[Checked]) -> None:
    for checked in found:
        candidate = checked.candidate
        print(one_line(f"{candidate.status}\t{candidate.path}:{candidate.line}\t{_words(checked)}"))
    counts = {status: sum(c.candidate.status == status for c in found) for status in ("ok", "skipped", "error")}
    total = sum(checked.main_tokens for checked in found)
    print(
        ", ".join(f"{count} {status}" for status, count in counts.items()) + f"; the main agent reads {total:,} tokens"
    )
    if total > MANY_TOKENS:
        print(f"warning: over {MANY_TOKENS:,} tokens of descriptions in every request of the main agent: shorten them")


def _words(checked: Checked) -> str:
    definition = checked.candidate.definition
    if definition is None:
        return checked.candidate.reason
    parts = [
        f"{definition.type} ({checked.candidate.dialect})",
        f"model {checked.model}",
        f"tools {','.join(definition.tool_keys)}",
        _limits(definition),
        f"{checked.main_tokens:,} tokens in main, {checked.own_tokens:,} of its own",
    ]
    if definition.ignored_fields:
        parts.append(f"ignored: {', '.join(str(field) for field in definition.ignored_fields)}")
    return "; ".join(parts)


def _limits(definition: SubagentDefinition) -> str:
    words = [f"{definition.max_steps} steps"]
    words += [] if definition.timeout is None else [f"{definition.timeout:g} s"]
    words += [] if definition.budget is None else [f"{definition.budget:g} US dollars"]
    return ", ".join(words)


def _as_json(checked: Checked) -> dict[str, Any]:
    candidate, definition = checked.candidate, checked.candidate.definition
    found: dict[str, Any] = {
        "path": str(candidate.path),
        "line": candidate.line,
        "status": candidate.status,
        "reason": candidate.reason or None,
        "dialect": candidate.dialect or None,
    }
    if definition is None:
        return found
    return {
        **found,
        "type": definition.type,
        "model": checked.model,
        "tools": list(definition.tool_keys),
        "maxSteps": definition.max_steps,
        "timeout": definition.timeout,
        "budget": definition.budget,
        "mainTokens": checked.main_tokens,
        "ownTokens": checked.own_tokens,
        "ignoredFields": [field.model_dump() for field in definition.ignored_fields],
    }
