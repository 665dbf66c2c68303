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

from kinfold.events import EVENT, Event, EventBase, TaskEnded, timestamp

log = logging.getLogger(__name__)

HIDDEN = "[secret]"
MIN_SECRET = 4
"""Shorter secrets are not hidden: their letters occur everywhere."""


class EventLog:
    """Numbers and stamps events; every view of a task is a `follow`."""

    def __init__(self, path: Path | None = None, *, secrets: Iterable[str] = ()) -> None:
        """`path`: the file, made with its directories; None: in memory only. Raises `OSError`."""
        self._events: list[Event] = []
        self._changed = anyio.Event()
        self._sealed = False
        self._secrets = [secret for secret in secrets if len(secret) >= MIN_SECRET]
        self._path = path
        self._fd = None if path is None else _create(path)

    async def append(self, event: EventBase) -> Event:
        """Number, stamp and keep an event; the numbered one is returned. After `task_ended` nothing is kept."""
        numbered = self._redacted(event.model_copy(update={"seq": len(self._events) + 1, "at": timestamp()}))
        if self._sealed:
            log.warning("event after the end of task %s: %s", event.task_id, type(event).__name__)
            return numbered
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

    def _redacted(self, event: EventBase) -> Event:
        """The event with every secret hidden. Text that streams in pieces can split a secret; that is not found."""
        if not self._secrets:
            return event  # type: ignore[return-value]  # every subclass of EventBase is in the union; a test says so
        return EVENT.validate_python(self._hidden(event.dump()))

    def _hidden(self, value: Any) -> Any:
        """Only in texts: a secret may look like a number or like one of the format's own words."""
        match value:
            case str() if value not in _own_words():
                return functools.reduce(lambda text, secret: text.replace(secret, HIDDEN), self._secrets, value)
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
