"""The tool `write_file`: writes a whole file, never over something that the agent has not seen."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from kinfold.sandbox.workspace import normalize
from kinfold.tools import versions, words
from kinfold.tools.base import Tool, ToolContext, ToolOutcome
from kinfold.tools.names import shown


class WriteFileArguments(BaseModel):
    """A path and its whole new content."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(description="Relative to the workspace, or absolute beneath it. Missing directories are made.")
    content: str = Field(description="The whole content, as text.")


async def _call(context: ToolContext, arguments: WriteFileArguments) -> ToolOutcome:
    path = normalize(arguments.path)
    seen = context.state.read_versions.get(path)
    data = arguments.content.encode("utf-8")
    await versions.save(context, path, data, seen=seen)
    return _done(path, data, seen)


async def _recover(context: ToolContext, arguments: WriteFileArguments) -> ToolOutcome:
    """What was written is there; else it is written now, over what the agent has seen and nothing else."""
    path = normalize(arguments.path)
    data = arguments.content.encode("utf-8")
    if await versions.is_there(context, path, versions.digest(data)):
        seen = context.state.read_versions.get(path)
        versions.note(context, path, versions.digest(data))
        return _done(path, data, seen)
    return await _call(context, arguments)


def _done(path: str, data: bytes, seen: str | None) -> ToolOutcome:
    verb = "Created" if seen is None else "Replaced"
    return ToolOutcome.of(f"{verb} {shown(path)} ({len(data):,} bytes).")


TOOL = Tool(key="write_file", words=words.beside(__file__), arguments=WriteFileArguments, call=_call, recover=_recover)
