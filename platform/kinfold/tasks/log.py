"""The event log of one parent task: append-only, numbered, in memory, and behind that in the store.

Writing is behind: `append` returns at once, and `write_behind` keeps what is new in one transaction, soon after
whatever marks a step of the work, at the latest after a second for text that streams. A crash of this process thus
loses at most the last moment of a stream, never an event that something was built on: the task's own code calls
`flush` where it must be sure. While the store fails (a full disk, a lock) the log goes on in memory, and what is not
kept yet is tried again; it is reported once.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import Any

import anyio

from kinfold.agent.kept import StepRecord
from kinfold.errors import StoreError
from kinfold.events import (
    EVENT,
    Event,
    EventBase,
    Heartbeat,
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

Step = tuple[str, dict[str, Any]]
"""A run's id and one step of it, as JSON data."""
Store = Callable[[Sequence[Event], Step | None], Awaitable[None]]
STREAMED = (TextDelta, ThinkingDelta, ToolOutput, Heartbeat)
"""What comes in hundreds: it waits for a second, or for the next event of another kind."""
STREAM_DELAY = 1.0
STEP_DELAY = 0.05
"""Seconds that a batch waits for more of the same moment."""
RETRY_DELAY = 5.0
BATCH = 1000
_Stream = tuple[str, ...]
"""What makes pieces one text: whose, of what kind, of which call."""


class EventLog:
    """Numbers and stamps events; every view of a task is a `follow`."""

    def __init__(
        self, store: Store | None = None, *, secrets: Iterable[str] = (), earlier: Sequence[Event] = ()
    ) -> None:
        """`store`: keeps a batch and perhaps a step, all or nothing; None: in memory only. `earlier`: what it has."""
        self._events: list[Event] = list(earlier)
        self._changed = anyio.Event()
        self._sealed = bool(earlier) and isinstance(earlier[-1], TaskEnded)
        self._redaction = Redaction(secrets)
        self._streams: dict[_Stream, tuple[Pieces, EventBase]] = {}
        """Texts that arrive in pieces, each with the last event of it."""
        self._store = store
        self._stored = len(self._events)
        """How many events are in the store."""
        self._storing = anyio.Lock()
        self._urgent = anyio.Event()
        self.failure: StoreError | None = None
        """Why the newest events are not kept; None while all is well."""

    async def append(self, event: EventBase) -> Event | None:
        """`add`, where an `await` is wanted."""
        return self.add(event)

    def add(self, event: EventBase) -> Event | None:
        """Number, stamp and keep an event, its secrets hidden; the numbered one is returned.

        None where nothing is kept: after `task_ended`, and of a piece of text that may be the beginning of a secret.
        That comes with the text's next piece, or before what ends it.
        """
        if self._sealed:
            log.info("event after the end of task %s: %s", event.task_id, type(event).__name__)
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
        if not isinstance(event, STREAMED):
            self._urgent.set()
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

    async def write_behind(self) -> None:
        """Keep what is appended, until cancelled."""
        while self._store is not None:
            while len(self._events) == self._stored:
                await self._changed.wait()
            with anyio.move_on_after(STREAM_DELAY):
                await self._urgent.wait()
                await anyio.sleep(STEP_DELAY)
            await self.flush()
            if self.failure is not None:
                await anyio.sleep(RETRY_DELAY)

    async def flush(self, step: Step | None = None) -> bool:
        """Keep all that was appended until now, and with the last of it a step that was built on it.

        False where the store does not take it (`failure` says why): then the step is not kept.
        """
        if self._store is None:
            return True
        async with self._storing:
            self._urgent = anyio.Event()
            while step is not None or self._stored < len(self._events):
                batch = self._events[self._stored : self._stored + BATCH]
                last = self._stored + len(batch) == len(self._events)
                try:
                    await self._store(batch, step if last else None)
                except StoreError as error:
                    if self.failure is None:
                        log.warning("what task %s did last is not kept: %s", self._events[-1].task_id, error)
                    self.failure = error
                    return False
                self._stored += len(batch)
                step = None if last else step
            self.failure = None
        return True

    def hidden(self, value: Any) -> Any:
        """JSON data with every secret hidden."""
        return self._hidden(value) if self._redaction else value

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
    """The names and fixed values of the events' and the steps' fields, without which one is none."""
    words: set[str] = set()
    rest: list[Any] = [EVENT.json_schema(), StepRecord.model_json_schema()]
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
