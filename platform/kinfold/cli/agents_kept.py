"""`kinfold agents add|list|show|remove`: the definitions that the store keeps, in versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from kinfold.cli.ending import one_line, printable
from kinfold.cli.foreground import run_async
from kinfold.cli.run import load_settings
from kinfold.definitions import SubagentDefinition, load
from kinfold.definitions.dialect import known_dialect
from kinfold.definitions.records import DefinitionRecords

T = TypeVar("T")


def add_command(path: Path, *, dialect: str | None) -> int:
    """Keep every definition at a path, or none: one that is wrong keeps all out."""
    found = load(path, dialect=known_dialect(dialect))

    async def added(records: DefinitionRecords) -> list[SubagentDefinition]:
        return [await records.add(definition) for definition in found]

    for definition in _with_records(added):
        print(one_line(f"{definition.type}\tversion {definition.version}\t{definition.source or '-'}"))
    return 0


def list_command() -> int:
    """One line a type in use: type, version, model, tools, where it was read from."""

    async def current(records: DefinitionRecords) -> tuple[SubagentDefinition, ...]:
        return await records.current()

    for kept in _with_records(current):
        fields = (kept.type, str(kept.version), kept.model, ",".join(kept.tool_keys), kept.source or "-")
        print(one_line("\t".join(fields)))
    return 0


def show_command(type: str, *, version: int | None, as_json: bool) -> int:
    """One version in full, the newest where none is named."""

    async def found(records: DefinitionRecords) -> SubagentDefinition:
        return await records.get(type, version)

    definition = _with_records(found)
    if as_json:
        print(definition.model_dump_json(indent=2))
        return 0
    for name, value in definition.model_dump(exclude={"instructions", "ignored_fields"}).items():
        if value not in (None, ()):
            print(one_line(f"{name}: {', '.join(value) if name == 'tool_keys' else value}"))
    if definition.ignored_fields:
        print(one_line(f"ignored: {', '.join(str(field) for field in definition.ignored_fields)}"))
    print(printable(f"\n{definition.instructions}"))
    return 0


def remove_command(type: str) -> int:
    """Take a type out of use; its versions stay readable for the runs that name them."""

    async def removed(records: DefinitionRecords) -> None:
        await records.remove(type)

    _with_records(removed)
    print(one_line(f"{type}\tremoved; tasks that run keep it"))
    return 0


def _with_records(work: Callable[[DefinitionRecords], Awaitable[T]]) -> T:
    from kinfold.tasks.store.definitions import StoredDefinitions
    from kinfold.tasks.store.door import Store

    async def opened() -> T:
        async with Store(load_settings({}).state_dir) as store:
            return await work(StoredDefinitions(store))

    return run_async(opened)
