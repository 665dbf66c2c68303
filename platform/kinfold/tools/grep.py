"""The tool `grep`: lines that match, found by the image's own ripgrep or `grep -E`."""

from __future__ import annotations

import re

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kinfold.errors import PathError, ToolError
from kinfold.sandbox.base import MIB, SCRATCH, WORKSPACE, ExecRequest, ExecResult
from kinfold.sandbox.workspace import normalize
from kinfold.tools import grep_output, words
from kinfold.tools.base import Tool, ToolContext, ToolOutcome
from kinfold.tools.glob import matching
from kinfold.tools.grep_output import Hit, row
from kinfold.tools.names import shown
from kinfold.tools.patterns import MAX_PATTERN

TIMEOUT = 60.0
MAX_LINES = 200
MAX_LINE = 500
"""Characters of a matching line that are shown."""
MAX_FILES = 2_000
"""Files that are handed to `grep` when it is told which."""
NO_SUCH_PROGRAM = 127
_UNKNOWN_OPTION = re.compile(r"(unrecognized|unknown|invalid|illegal) option")


class GrepArguments(BaseModel):
    """What to look for, and where."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    pattern: str = Field(min_length=1, max_length=4_000, description="A regular expression, for one line at a time.")
    path: str = Field(default=".", description="A directory or a file; the whole workspace by default.")
    glob: str | None = Field(
        default=None, min_length=1, max_length=MAX_PATTERN, description="Only files whose path matches, as `*.py`."
    )
    ignore_case: bool = False
    fixed: bool = Field(default=False, description="The pattern is plain text.")
    files_only: bool = Field(default=False, description="Only the names of files that match.")
    context: int = Field(default=0, ge=0, le=20, description="Lines to show before and after each match.")

    @field_validator("pattern")
    @classmethod
    def _one_line(cls, pattern: str) -> str:
        if "\n" in pattern or "\0" in pattern:
            raise ValueError("must be one line")
        return pattern


async def _call(context: ToolContext, arguments: GrepArguments) -> ToolOutcome:
    target = await _target(context, arguments.path)
    result, program = await _run(context, _ripgrep(arguments, target)), "rg"
    if result.exit_code == NO_SUCH_PROGRAM:
        files = await _files(context, arguments)
        if files == []:
            return ToolOutcome.of(_nothing(arguments))
        result, program = (
            await _run(context, _plain_grep(arguments, files or [target], recursive=files is None)),
            "grep",
        )
        if _UNKNOWN_OPTION.search(result.stderr_text):
            result, program = await _run(context, _plainest_grep(arguments, files or [target])), "grep without --null"
    if result.exit_code == NO_SUCH_PROGRAM:
        raise ToolError("this image has neither rg nor grep", hint="read_file the likely files, or search by a program")
    if result.ended_by != "exited":
        raise ToolError(
            f"the search did not finish: {result.ended_by} after {result.duration:.1f} s",
            hint="narrow it by `path` or `glob`",
        )
    printed = result.stdout if result.stdout_total == len(result.stdout) else result.stdout[: result.stdout_head_bytes]
    if program == "grep without --null":
        found = grep_output.plain_hits(printed, with_context=arguments.context > 0)
    else:
        found = await grep_output.hits(context, printed, files_only=arguments.files_only)
    everything = program == "rg" or _in_scratch(target)
    return ToolOutcome.of(_render(arguments, result, program, [hit for hit in found if everything or not hit.hidden]))


async def _target(context: ToolContext, path: str) -> str:
    """The place relative to the workspace, known to exist and to be no pipe that would block the search."""
    absolute = normalize(path)
    (found,) = await context.sandbox.stat([absolute])
    if isinstance(found, PathError):
        raise found
    if found.type == "other":
        raise PathError("not_regular", path)
    if found.type == "symlink":
        await _must_not_block(context, absolute)
    return "./" + absolute[len(WORKSPACE) + 1 :]


async def _must_not_block(context: ToolContext, link: str) -> None:
    try:
        await context.sandbox.read(link, limit=0)
    except PathError as error:
        if error.reason == "not_regular":
            raise


async def _run(context: ToolContext, argv: list[str]) -> ExecResult:
    return await context.sandbox.run(
        ExecRequest(command=argv, timeout=TIMEOUT, max_output_bytes=MIB, owner=context.run_id, env=context.env)
    )


def _ripgrep(arguments: GrepArguments, target: str) -> list[str]:
    argv = [
        "rg",
        "--no-config",
        "--color=never",
        "--no-heading",
        "--line-number",
        "--with-filename",
        "--null",
        "--sort=path",
    ]
    argv += ["--hidden", "--glob=!.git/", f"--max-columns={MAX_LINE}", "--max-columns-preview"]
    argv += [] if _in_scratch(target) else [f"--glob=!/{SCRATCH}/"]
    argv += [f"--glob={arguments.glob}"] if arguments.glob else []
    return argv + _flags(arguments) + ["-e", arguments.pattern, "--", target]


def _plain_grep(arguments: GrepArguments, places: list[str], *, recursive: bool) -> list[str]:
    argv = ["grep", "-n", "-H", "-s", "--null", *([] if arguments.fixed else ["-E"]), *(["-r"] if recursive else [])]
    return argv + _flags(arguments) + ["-e", arguments.pattern, "--", *places]


def _plainest_grep(arguments: GrepArguments, places: list[str]) -> list[str]:
    """Only flags that every grep has, busybox's too; it cannot mark names, so those that mislead are passed over."""
    misleading = ["(", "-name", "*\n*", "-o", "-name", "*:[0-9]*", ")", "-prune"]
    grep = ["grep", "-n", "-H", "-s", *([] if arguments.fixed else ["-E"]), *_flags(arguments)]
    argv = ["find", "-H", *places, *misleading, "-o", "-type", "f", "-exec", *grep]
    return [*argv, "-e", arguments.pattern, "--", "{}", "+"]


def _flags(arguments: GrepArguments) -> list[str]:
    flags = ["-i"] if arguments.ignore_case else []
    flags += ["-F"] if arguments.fixed else []
    flags += ["-l"] if arguments.files_only else []
    return flags + ([f"-C{arguments.context}"] if arguments.context and not arguments.files_only else [])


async def _files(context: ToolContext, arguments: GrepArguments) -> list[str] | None:
    """For a grep that knows no file patterns: which files to look at. None: everything."""
    if arguments.glob is None:
        return None
    _, found, _ = await matching(context, normalize(arguments.path), arguments.glob)
    if len(found) > MAX_FILES:
        raise ToolError(
            f"{arguments.glob!r} matches {len(found):,} files; this image's grep can be given {MAX_FILES:,}",
            hint="narrow `path` or `glob`",
        )
    return ["./" + entry.path[len(WORKSPACE) + 1 :] for entry in found]


def _in_scratch(place: str) -> bool:
    """Whether the search itself goes into the scratch space, where long results of tools are kept."""
    return f"{place}/".startswith(f"./{SCRATCH}/")


def _render(arguments: GrepArguments, result: ExecResult, program: str, found: list[Hit]) -> str:
    plainest = program == "grep without --null"
    failed = bool(result.stderr_text.strip()) if plainest else result.exit_code not in (0, 1)
    if not found and failed:
        name = program.partition(" ")[0]
        raise ToolError(f"{name}: {_reason(result)}", hint="correct the pattern, or set `fixed` for plain text")
    rows = [row(hit) for hit in found[:MAX_LINES]] or [_nothing(arguments)]
    if len(found) > MAX_LINES or result.stdout_total > len(result.stdout):
        total = f"{len(found):,}" if result.stdout_total == len(result.stdout) else "more"
        rows.append(f"(the first {len(rows)} of {total} lines; narrow the search for the rest)")
    if failed:
        rows.append(f"(not everything could be searched: {_reason(result)})")
    if plainest:
        rows.append(
            "(names with a line break, or a colon before a digit, were passed over: this grep cannot mark names)"
        )
    return "\n".join(rows)


def _reason(result: ExecResult) -> str:
    lines = result.stderr_text.strip().splitlines()
    return " ".join(lines[:6])[:600] or f"exit code {result.exit_code}"


def _nothing(arguments: GrepArguments) -> str:
    where = f" under {shown(arguments.path)}" if arguments.path != "." else ""
    only = f" in files matching {arguments.glob!r}" if arguments.glob else ""
    return f"No line matches {arguments.pattern!r}{only}{where}."


TOOL = Tool(key="grep", words=words.beside(__file__), arguments=GrepArguments, call=_call, recover=_call, parallel=True)
