"""The event log of one parent task: append-only, numbered, in memory and as lines of a file.

The file is `tasks/<task id>/events.jsonl` in the state directory (directories 0700, file 0600), one event as JSON a
line. There is no database behind it yet: another process can read the file, but only this one can follow.
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import AsyncGenerator, Iterable
from pathlib import Path
from typing import Any

import anyio

from kinfold.events import (
    EVENT,
    Event,
    EventBase,
    RunEnded,
    StepStarted,
    TaskEnded,
    TextDelta,
    ThinkingDelta,
    ToolEnded,
    ToolOutput,
    ToolStarted,
    timestamp,
)
from kinfold.tasks.redaction import Pieces, Redaction

log = logging.getLogger(__name__)

_Stream = tuple[str, ...]
"""What makes pieces one text: whose, of what kind, of which call."""


class EventLog:
    """Numbers and stamps events; every view of a task is a `follow`."""

    def __init__(self, path: Path | None = None, *, secrets: Iterable[str] = ()) -> None:
        """`path`: the file, made with its directories; None: in memory only. Raises `OSError`."""
        self._events: list[Event] = []
        self._changed = anyio.Event()
        self._sealed = False
        self._redaction = Redaction(secrets)
        self._streams: dict[_Stream, tuple[Pieces, EventBase]] = {}
        """Texts that arrive in pieces, each with the last event of it."""
        self._path = path
        self._fd = None if path is None else _create(path)

    async def append(self, event: EventBase) -> Event | None:
        """Number, stamp and keep an event, its secrets hidden; the numbered one is returned.

        None where nothing is kept: after `task_ended`, and of a piece of text that may be the beginning of a secret.
        That comes with the text's next piece, or before what ends it.
        """
        if self._sealed:
            log.warning("event after the end of task %s: %s", event.task_id, type(event).__name__)
            return None
        if not self._redaction:
            return self._keep(event)
        stream = _stream_of(event)
        if stream is not None:
            return self._piece(stream, event)
        for ended in [known for known in self._streams if _ends(event, known)]:
            pieces, last = self._streams.pop(ended)
            if rest := pieces.end():
                self._keep(self._hidden_event(last, rest))
        return self._keep(self._hidden_event(event))

    def _piece(self, stream: _Stream, event: EventBase) -> Event | None:
        pieces, _ = self._streams.get(stream) or (self._redaction.pieces(), event)
        self._streams[stream] = (pieces, event)
        shown = pieces.add(getattr(event, "text"))  # noqa: B009 - only events that have one are of a stream
        return self._keep(self._hidden_event(event, shown)) if shown else None

    def _keep(self, event: EventBase) -> Event:
        numbered: Event = event.model_copy(update={"seq": len(self._events) + 1, "at": timestamp()})  # type: ignore[assignment]
        self._events.append(numbered)
        self._sealed = isinstance(event, TaskEnded)
        self._write(numbered)
        self._changed.set()
        self._changed = anyio.Event()
        return numbered

    async def emit(self, event: EventBase) -> None:
        """`append` as an `Emit`."""
        await self.append(event)

    async def follow(self, after: int = 0) -> AsyncGenerator[Event, None]:
        """All events with a number above `after`, those to come included; ends after `task_ended`."""
        position = max(after, 0)
        while True:
            while position < len(self._events):
                yield self._events[position]
                position += 1
            if self._sealed:
                return
            await self._changed.wait()

    @property
    def events(self) -> tuple[Event, ...]:
        """All so far."""
        return tuple(self._events)

    def close(self) -> None:
        """Close the file, and remove it where nothing was ever written; followers keep what is in memory."""
        if self._fd is None:
            return
        os.close(self._fd)
        self._fd = None
        if self._path is not None and not self._events:
            self._path.unlink(missing_ok=True)
            self._path.parent.rmdir()

    def _hidden_event(self, event: EventBase, text: str | None = None) -> Event:
        """The event with every secret hidden; `text` is its own text, done already."""
        hidden = self._hidden(event.dump())
        return EVENT.validate_python(hidden if text is None else hidden | {"text": text})

    def _hidden(self, value: Any) -> Any:
        """Only in texts: a secret may look like a number or like one of the format's own words."""
        match value:
            case str() if value not in _own_words():
                return self._redaction.whole(value)
            case list():
                return [self._hidden(item) for item in value]
            case dict():
                return {self._hidden(name): self._hidden(item) for name, item in value.items()}
        return value

    def _write(self, event: Event) -> None:
        """Append the line. A full disk must not end the task: the file is given up, the memory goes on."""
        if self._fd is None:
            return
        line = (json.dumps(event.dump(), separators=(",", ":")) + "\n").encode("utf-8")
        try:
            while line:
                line = line[os.write(self._fd, line) :]
        except OSError:
            log.exception("the event log of task %s cannot be written any more", event.task_id)
            self.close()


def _stream_of(event: EventBase) -> _Stream | None:
    """Which text the event is a piece of, if of any."""
    match event:
        case TextDelta() | ThinkingDelta():
            return (event.run_id, event.type)
        case ToolOutput():
            return (event.run_id, event.type, event.call_id, event.stream)
    return None


def _ends(event: EventBase, stream: _Stream) -> bool:
    """Whether a text has no more pieces after this event. A heartbeat, a retry or another's event lies between them."""
    match event:
        case TaskEnded():
            return True
        case RunEnded():
            return stream[0] == event.run_id
        case StepStarted() | ToolStarted():
            return stream[0] == event.run_id and len(stream) == 2
        case ToolEnded():
            return stream[0] == event.run_id and event.call_id in stream[2:3]
    return False


@functools.cache
def _own_words() -> frozenset[str]:
    """The names and fixed values of the events' fields, without which an event is none."""
    words: set[str] = set()
    rest: list[Any] = [EVENT.json_schema()]
    while rest:
        match rest.pop():
            case dict() as node:
                words.update(
                    node.get("properties", ()), node.get("enum", ()), {node["const"]} if "const" in node else ()
                )
                rest += node.values()
            case list() as nodes:
                rest += nodes
    return frozenset(words)


def _create(path: Path) -> int:
    _make_private(path.parent)
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _make_private(folder: Path) -> None:
    """The folder and what is missing above it, each 0700."""
    if not folder.exists():
        _make_private(folder.parent)
        folder.mkdir(mode=0o700, exist_ok=True)
