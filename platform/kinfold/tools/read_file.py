"""The tool `read_file`: a window of a text file, a picture, a directory's list, or what else a file seems to be."""

from __future__ import annotations

import base64
import hashlib
from contextlib import aclosing

import anyio.to_thread
from pydantic import BaseModel, ConfigDict, Field

from kinfold.errors import PathError, ToolError
from kinfold.messages import ImageBlock, TextBlock
from kinfold.sandbox.base import MIB, FileStat
from kinfold.sandbox.workspace import normalize
from kinfold.tools import exec_text, images, sniff, versions, words
from kinfold.tools.base import Tool, ToolContext, ToolOutcome
from kinfold.tools.lines import Window
from kinfold.tools.list_dir import listed
from kinfold.tools.names import shown

DEFAULT_LINES = 2_000
TEXT_BUDGET = 30_000
"""Bytes of lines a call gives; below the tool's result budget, so that a window is never spilled into another file."""
READ_THROUGH = 64 * MIB
"""A file up to this size is read to its end: its lines are counted and its digest is of what was read."""
HEX_SHOWN = 64


class ReadFileArguments(BaseModel):
    """A path and which lines of it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str = Field(description="Relative to the workspace, or absolute beneath it.")
    offset: int = Field(default=1, ge=1, description="The first line to show; lines count from 1.")
    limit: int = Field(default=DEFAULT_LINES, ge=1, le=100_000, description="How many lines to show at most.")


async def _call(context: ToolContext, arguments: ReadFileArguments) -> ToolOutcome:
    path = normalize(arguments.path)
    try:
        head = await context.sandbox.read(path, limit=sniff.SNIFFED)
    except PathError as error:
        if error.reason == "is_directory":
            return ToolOutcome.of(await listed(context, path))
        raise
    if sniff.is_text(head):
        return await _text(context, path, arguments)
    media = images.media_type(head)
    return await (_picture(context, path, head, media) if media else _binary(context, path, head))


# --- text ----------------------------------------------------------------------------------------------------------


async def _text(context: ToolContext, path: str, arguments: ReadFileArguments) -> ToolOutcome:
    window = Window(first=arguments.offset, limit=arguments.limit, budget=TEXT_BUDGET)
    sha256, size, ended = await _scan(context, path, window)
    if version := sha256 or await _digest(context, path):
        context.state.read_versions[path] = version
    if size == 0:
        return ToolOutcome.of(f"{shown(path)} is empty.")
    if not window.lines:
        raise ToolError(
            f"{shown(path)} has {window.total} lines; line {arguments.offset} is behind its end",
            hint=f"use an offset from 1 to {window.total}",
        )
    return ToolOutcome.of(_render(window, ended))


async def _scan(context: ToolContext, path: str, window: Window) -> tuple[str | None, int, bool]:
    """Fill the window. Returns the whole file's digest (None: not read to its end), bytes read, whether it ended."""
    sha256, size = hashlib.sha256(), 0
    async with aclosing(context.sandbox.read_stream(path)) as chunks:
        async for chunk in chunks:
            size += len(chunk)
            window.feed(chunk)
            if size <= READ_THROUGH:
                sha256.update(chunk)
            elif window.full:
                return None, size, False
    window.close()
    return (sha256.hexdigest() if size <= READ_THROUGH else None), size, True


async def _digest(context: ToolContext, path: str) -> str | None:
    """The digest of a file too large to be read to its end, taken inside the container (a link's target's, too).

    None over 4 GiB: no tool can replace such a file.
    """
    (found,) = await context.sandbox.stat([path], digest=True, claim=True)
    if isinstance(found, PathError):
        raise found
    return found.sha256


def _render(window: Window, ended: bool) -> str:
    last = window.first + len(window.lines) - 1
    rows = [_row(number, line, window) for number, line in enumerate(window.lines, start=window.first)]
    notes = []
    if not ended:
        notes.append(f"lines {window.first}–{last} shown, more follow; go on with offset={last + 1}")
    elif window.first > 1 or last < window.total:
        more = f"; go on with offset={last + 1}" if last < window.total else ""
        notes.append(f"lines {window.first}–{last} of {window.total} shown{more}")
    if any(not _is_utf8(line, number in window.cut) for number, line in enumerate(window.lines, start=window.first)):
        notes.append("not all of it is UTF-8; \ufffd stands for bytes that are not")
    if window.crlf:
        notes.append(f"{window.crlf} lines end in CR LF" if ended else "lines end in CR LF")
    return "\n".join(rows + [f"({note})" for note in notes])


def _row(number: int, line: bytes, window: Window) -> str:
    text = exec_text.text_of(line)
    if number in window.cut:
        text = f"{text.rstrip(chr(0xFFFD))} [… cut; the line has {window.cut[number]:,} bytes]"
    return f"{number:>6}\t{text}"


def _is_utf8(line: bytes, cut: bool) -> bool:
    try:
        line.decode("utf-8")
    except UnicodeDecodeError as error:
        return cut and error.start >= len(line) - 3  # the cut itself may have split a character
    return True


# --- what is no text -----------------------------------------------------------------------------------------------


async def _picture(context: ToolContext, path: str, head: bytes, media: images.MediaType) -> ToolOutcome:
    data = await context.sandbox.read(path, limit=images.MAX_IMAGE_BYTES + 1)
    if len(data) > images.MAX_IMAGE_BYTES:
        return await _binary(context, path, head, f"over {images.MAX_IMAGE_BYTES:,} bytes, too large to be shown")
    try:
        width, height = await anyio.to_thread.run_sync(images.dimensions, data, media)
    except ValueError as error:
        return await _binary(context, path, head, f"cannot be shown: {error}")
    context.state.read_versions[path] = versions.digest(data)
    caption = TextBlock(text=f"{shown(path)}: {media}, {width} × {height} pixels, {len(data):,} bytes")
    picture = ImageBlock(media_type=media, data=base64.b64encode(data).decode("ascii"))
    return ToolOutcome(content=(caption, picture))


async def _binary(context: ToolContext, path: str, head: bytes, note: str = "") -> ToolOutcome:
    """Type, size and first bytes."""
    (found,) = await context.sandbox.stat([path])
    size = _size(found, head)
    about = f"{shown(path)} is not text: {sniff.kind(head)}, {size}{f'; {note}' if note else ''}."
    return ToolOutcome.of(f"{about}\nIts first bytes:\n{sniff.hex_lines(head[:HEX_SHOWN])}")


def _size(found: FileStat | PathError, head: bytes) -> str:
    if isinstance(found, FileStat) and found.type == "file":
        return f"{found.size:,} bytes"
    return f"{len(head):,} bytes" if len(head) < sniff.SNIFFED else f"at least {len(head):,} bytes"


TOOL = Tool(
    key="read_file", words=words.beside(__file__), arguments=ReadFileArguments, call=_call, recover=_call, parallel=True
)
