"""The seam to whatever keeps definitions beyond a process; `tasks/store` implements it."""

from __future__ import annotations

from typing import Protocol

from kinfold.definitions.definition import SubagentDefinition


class DefinitionRecords(Protocol):
    """Definitions in versions: a change makes the next one, and what a past run names stays readable.

    A task is given the definitions as they are when it starts (`current`), and keeps those.
    """

    async def add(self, definition: SubagentDefinition) -> SubagentDefinition:
        """Keep it as the newest version of its type, and return it with that version.

        Where nothing but its version or source differs from the newest, that one is returned and nothing is written.
        """
        ...

    async def current(self) -> tuple[SubagentDefinition, ...]:
        """The newest version of each type that is not removed, by type."""
        ...

    async def get(self, type: str, version: int | None = None) -> SubagentDefinition:
        """One version, also of a removed type; None: the newest in use. Raises `NotFound`."""
        ...

    async def remove(self, type: str) -> None:
        """Take a type out of use. Raises `NotFound` where it is not in use."""
        ...
