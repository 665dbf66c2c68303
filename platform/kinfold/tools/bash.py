"""The tool `bash`: runs a command in the sandbox, reads on from one that went to the background, or ends it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, model_validator

from kinfold.errors import NotFound, ToolError
from kinfold.sandbox.base import ExecRequest, ExecResult
from kinfold.tools import background, exec_text, live, words
from kinfold.tools.base import Tool, ToolContext, ToolOutcome

DEFAULT_TIMEOUT = 120.0
MAX_TIMEOUT = 600.0
GRACE = 2.0
MAX_COMMAND = 120_000
"""Bytes; Linux takes no single argument of 128 KiB or more."""
SHELL = 'if command -v bash >/dev/null 2>&1; then exec bash -c "$1" bash; else exec sh -c "$1" sh; fi'
"""The tool is named `bash`: models write for it. Images without one have their `sh` all the same."""


class BashArguments(BaseModel):
    """A command, or the exec id of one that left processes in the background."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    command: str | None = Field(default=None, min_length=1, description="What the shell runs.")
    cwd: str = Field(default=".", description="Where it runs, relative to the workspace.")
    timeout: float = Field(
        default=DEFAULT_TIMEOUT, gt=0, le=MAX_TIMEOUT, description=f"Seconds, at most {MAX_TIMEOUT:g}."
    )
    exec_id: str | None = Field(default=None, description="Instead of a command: read on from this background exec.")
    kill: str | None = Field(default=None, description="Instead of a command: end this background exec.")

    @model_validator(mode="after")
    def _one_thing(self) -> BashArguments:
        given = [name for name in ("command", "exec_id", "kill") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give exactly one of `command`, `exec_id`, `kill` (got {' and '.join(given) or 'none'})")
        if self.command is not None and ("\0" in self.command or not self.command.strip()):
            raise ValueError("`command` must not be blank or hold a NUL")
        return self


async def _call(context: ToolContext, arguments: BashArguments) -> ToolOutcome:
    if arguments.command is not None:
        return await _run(context, arguments, arguments.command)
    if arguments.exec_id is not None:
        return ToolOutcome.of(await background.read_on(context, arguments.exec_id))
    return ToolOutcome.of(await background.end(context, arguments.kill or "", GRACE))


async def _recover(context: ToolContext, arguments: BashArguments) -> ToolOutcome | None:
    """A command goes on in the container without us; only what has ended and was told already is forgotten there."""
    if arguments.command is None:
        return await _call(context, arguments)
    try:
        return _outcome(
            context, arguments, await live.take_up(context, _request(context, arguments, arguments.command))
        )
    except NotFound:
        return None


async def _run(context: ToolContext, arguments: BashArguments, command: str) -> ToolOutcome:
    return _outcome(context, arguments, await live.run(context, _request(context, arguments, command)))


def _request(context: ToolContext, arguments: BashArguments, command: str) -> ExecRequest:
    if len(command.encode()) > MAX_COMMAND:
        raise ToolError(
            f"the command has {len(command.encode()):,} bytes; the system takes {MAX_COMMAND:,}",
            hint="write it to a script with write_file, and run that",
        )
    return ExecRequest(
        command=["sh", "-c", SHELL, "sh", command],
        cwd=arguments.cwd,
        env=context.env,
        timeout=arguments.timeout,
        grace=GRACE,
        owner=context.run_id,
        id=context.exec_id,
    )


def _outcome(context: ToolContext, arguments: BashArguments, result: ExecResult) -> ToolOutcome:
    if result.background_pids:
        context.state.exec_offsets[result.id] = (result.stdout_total, result.stderr_total)
    return ToolOutcome.of(exec_text.render(result, arguments.timeout))


TOOL = Tool(key="bash", words=words.beside(__file__), arguments=BashArguments, call=_call, recover=_recover)
