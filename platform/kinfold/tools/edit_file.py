"""The tool `edit_file`: replaces an exact piece of a text file, keeps its line ends, and notices a stale view of it."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

from kinfold.errors import ToolError
from kinfold.sandbox.base import MIB
from kinfold.sandbox.workspace import normalize
from kinfold.tools import nearest, versions, words
from kinfold.tools.base import Tool, ToolContext, ToolOutcome
from kinfold.tools.names import shown

MAX_BYTES = 16 * MIB
CONTEXT_LINES = 2
LINES_NAMED = 8
SHOWN_CHARACTERS = 4_000


class EditFileArguments(BaseModel):
    """What to replace by what."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(description="Relative to the workspace, or absolute beneath it. You must have read it before.")
    old_string: str = Field(min_length=1, description="The exact text, white space included, without line numbers.")
    new_string: str = Field(description="What stands there afterwards.")
    replace_all: bool = Field(default=False, description="Replace every occurrence instead of exactly one.")


async def _call(context: ToolContext, arguments: EditFileArguments) -> ToolOutcome:
    path = normalize(arguments.path)
    if arguments.old_string == arguments.new_string:
        raise ToolError("old_string and new_string are the same; nothing would change")
    text, sha256 = await _current(context, path)
    old, new = _in_style_of(text, arguments.old_string, arguments.new_string)
    count = text.count(old)
    if count == 0:
        raise ToolError(f"old_string is not in {shown(path)}", hint=nearest.hint(text, arguments.old_string))
    if count > 1 and not arguments.replace_all:
        raise ToolError(
            f"old_string stands {count} times in {shown(path)} (lines {_line_numbers(text, old)}); nothing was changed",
            hint="take more of the lines around it so that it is unique, or set replace_all",
        )
    at = text.index(old)
    edited = text.replace(old, new)
    await versions.save(context, path, edited.encode("utf-8"), seen=sha256)
    times = "" if count == 1 else f" {count} times; the first"
    return ToolOutcome.of(f"Edited {shown(path)}{times}:\n{_surroundings(edited, at, len(new))}")


async def _recover(context: ToolContext, arguments: EditFileArguments) -> ToolOutcome | None:
    """Nothing was edited where the file is as the agent saw it; what it was before cannot be told otherwise."""
    path = normalize(arguments.path)
    seen = context.state.read_versions.get(path)
    untouched = seen is None or await versions.is_there(context, path, seen)
    return await _call(context, arguments) if untouched else None


async def _current(context: ToolContext, path: str) -> tuple[str, str]:
    """The file's text and digest. Raises `ToolError` where the agent's view of it is missing or stale."""
    seen = context.state.read_versions.get(path)
    data = await context.sandbox.read(path, limit=MAX_BYTES + 1)
    if seen is None:
        raise ToolError(f"you have not read {shown(path)}; nothing was changed", hint="read_file it first")
    if len(data) > MAX_BYTES:
        raise ToolError(
            f"{shown(path)} is larger than {MAX_BYTES:,} bytes, too large for edit_file",
            hint="change it by a program in bash",
        )
    if versions.digest(data) != seen:
        context.state.read_versions.pop(path, None)
        raise ToolError(
            f"{shown(path)} was changed since you last read or wrote it"
            f"{versions.written_by(context, path)}; nothing was changed by you",
            hint="somebody else works on it: read_file it again and decide anew",
        )
    try:
        return data.decode("utf-8"), seen
    except UnicodeDecodeError as error:
        raise ToolError(
            f"{shown(path)} is not UTF-8 text (byte {error.start:,}); edit_file would damage it",
            hint="change it by a program in bash",
        ) from error


def _in_style_of(text: str, old: str, new: str) -> tuple[str, str]:
    """`old` and `new` with the line ends that the file has, where the file has one style and the model the other."""
    windows = text.count("\r\n")
    if not windows or windows * 2 < text.count("\n"):
        return old, new
    old_crlf, new_crlf = _crlf(old), _crlf(new)
    return (old_crlf, new_crlf) if old_crlf in text else (old, new_crlf)


def _crlf(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _line_numbers(text: str, old: str) -> str:
    numbers: list[str] = []
    at = -1
    while (at := text.find(old, at + 1)) >= 0 and len(numbers) < LINES_NAMED:
        numbers.append(str(text.count("\n", 0, at) + 1))
    return ", ".join(numbers) + (", …" if at >= 0 else "")


def _surroundings(text: str, at: int, length: int) -> str:
    """The new text with a few lines around it, numbered as read_file does."""
    lines = text.removesuffix("\n").split("\n")
    first = max(text.count("\n", 0, at) - CONTEXT_LINES, 0)
    last = text.count("\n", 0, at + length) + CONTEXT_LINES
    rows = [f"{number + 1:>6}\t{lines[number].rstrip(chr(13))}" for number in range(first, min(last + 1, len(lines)))]
    shown_text = "\n".join(rows)
    return shown_text if len(shown_text) <= SHOWN_CHARACTERS else f"{shown_text[:SHOWN_CHARACTERS]} […]"


TOOL = Tool(key="edit_file", words=words.beside(__file__), arguments=EditFileArguments, call=_call, recover=_recover)
