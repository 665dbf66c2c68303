"""Records what a model is asked and answers, and replays it later without the model: no key, no network, no cost.

    tape = Writer(Path("fix.cassette"))
    result = await kinfold.run("…", model=RecordingModel(AnthropicModel("claude-…"), tape))
    tape.close()
    result = await kinfold.run("…", model=ReplayModel(Path("fix.cassette")))

`kinfold.run(record=FILE)` and `model="cassette:FILE"` are the same, with the task's own secrets hidden. A request is
found by who asks (main agent, or a subagent's type and label), its step and what it is for, never by the order in which
subagents that run at once happened to ask. Of several that agree in this, as one agent run twice, the one counts that
asks the same, in the order of the recording. `cassette_compare.py` says what "the same" leaves out. A replay costs
nothing, so no budget ends it: where one ended the recorded run, the replay's next request was not recorded.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import anyio.lowlevel

from kinfold.errors import ModelError
from kinfold.models.base import Model, ModelEvent, ModelRequest, Reply
from kinfold.models.cassette_compare import RULES, Rule, diff, lines_of
from kinfold.models.cassette_file import Exchange, Hide, Writer, hidden, hidden_request, read

__all__ = ["RecordingModel", "ReplayModel", "Writer"]

PREFIX = "cassette:"
"""Before the name of the model that was recorded: its windows are the recorded one's, its price is nothing."""
_STRAYED = "the task does something else now: mend it, or record it again with `--record FILE`"
_Who = tuple[Any, ...]


class RecordingModel:
    """Another model, with every request and what came of it kept on a tape: retries, errors, and streams left early.

    It counts no tokens ahead, though the other may: a replay could not, and would decide otherwise.
    """

    def __init__(self, model: Model, tape: Writer) -> None:
        self.name = model.name
        self._model = model
        self._tape = tape
        self.overrides_definitions = bool(getattr(model, "overrides_definitions", False))
        tape.also_hide(getattr(model, "secrets", ()))

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Stream the other model's reply."""
        heard: list[ModelEvent | ModelError] = []
        events = cast("AsyncGenerator[ModelEvent, None]", self._model.stream(request))
        try:
            async with aclosing(events):
                async for event in events:
                    heard.append(event)
                    yield event
        except ModelError as error:
            heard.append(error)
            raise
        finally:
            self._tape.add(self.name, request, heard)


class ReplayModel:
    """Answers from a cassette. A request that was not recorded is a `ModelError` of kind `script` that shows a diff.

    After the first stray every request gets that same error: what follows from it would hide it.
    """

    def __init__(
        self, path: Path, *, hide: Hide = str, rules: Sequence[Rule] = (), exchanges: Sequence[Exchange] | None = None
    ) -> None:
        """`hide`: what the recording hid. `rules`: further ones of `cassette_compare.py`. Raises `ConfigError`."""
        found = read(path) if exchanges is None else exchanges
        main = next((one for one in found if one.request["run_kind"] == "main"), found[0])
        self._deck = _Deck(path, found, hide, (*RULES, *rules))
        self._recorded = main.model
        self.tool_names = frozenset(str(tool["name"]) for tool in main.request["tools"])
        """What the recorded main agent could do, by its first request."""
        self.name = PREFIX + main.model
        self.overrides_definitions = main.model == "scripted"

    def stand_in(self, name: str) -> ReplayModel:
        """What answers for the model `name` of a definition: the same recording, with that model's window."""
        other = object.__new__(ReplayModel)
        other._deck, other._recorded, other.name = self._deck, name, PREFIX + name
        other.overrides_definitions, other.tool_names = False, self.tool_names
        return other

    def hiding(self, hide: Hide) -> None:
        """Hide what `hide` finds in requests before they are compared, as it was hidden when they were recorded."""
        self._deck.hide = hide

    @property
    def unasked(self) -> tuple[str, ...]:
        """Who asked what is recorded and was not asked for now."""
        return tuple(_said(_who(one.request)) for one in self._deck.left)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Stream what was recorded, chunk by chunk; no wait between attempts is repeated."""
        for event in self._deck.take(self._recorded, request).stream:
            await anyio.lowlevel.checkpoint()
            if event is None:
                raise ModelError(
                    f"{_said(_who(hidden_request(request, str)))}: the recorded run was ended while this reply came",
                    kind="script",
                    hint="replay it under the limits that ended it, or record it again",
                )
            if isinstance(event, ModelError):
                raise _fresh(event)
            if isinstance(event, Reply):
                yield replace(event, model=self.name)
            else:
                yield event


class _Deck:
    """What is recorded and was not asked for yet; shared by all who stand in for a model of one task."""

    def __init__(self, path: Path, exchanges: Sequence[Exchange], hide: Hide, rules: Sequence[Rule]) -> None:
        self.hide = hide
        self.left = list(exchanges)
        self._path = path
        self._rules = rules
        self._asked: dict[_Who, int] = {}
        self._lines: dict[int, list[str]] = {}
        self._stray: ModelError | None = None

    def take(self, model: str, request: ModelRequest) -> Exchange:
        """The exchange that answers this request. Raises `ModelError` where there is none."""
        if self._stray is not None:
            raise _fresh(self._stray)
        data = hidden_request(request, lambda text: hidden(text, self.hide))
        who = _who(data)
        mine = [one for one in self.left if _who(one.request) == who]
        asked = lines_of(model, data, self._rules)
        for one in mine:
            if self._lines_of(one) == asked:
                self.left.remove(one)
                self._asked[who] = self._asked.get(who, 0) + 1
                return one
        self._stray = self._error(who, mine, asked)
        raise _fresh(self._stray)

    def _lines_of(self, one: Exchange) -> list[str]:
        if one.number not in self._lines:
            self._lines[one.number] = lines_of(one.model, one.request, self._rules)
        return self._lines[one.number]

    def _error(self, who: _Who, mine: Sequence[Exchange], asked: list[str]) -> ModelError:
        if mine:
            nearest = max(mine, key=lambda one: _alike(self._lines_of(one), asked))
            what = f"the run strays from {self._path} at {_said(who)}:\n{diff(self._lines_of(nearest), asked)}"
        elif who in self._asked:
            times = "once" if self._asked[who] == 1 else f"{self._asked[who]} times"
            what = f"the run strays from {self._path}: {_said(who)} was recorded {times} and is asked for once more"
        else:
            last = "\n".join(asked[-8:])
            others = sorted({_said(_who(one.request)) for one in self.left}) or ["nothing"]
            what = (
                f"the run strays from {self._path}: {_said(who)} was not recorded; not asked for yet: "
                f"{', '.join(others[:8])}{' …' if len(others) > 8 else ''}. It ends with:\n{last}"
            )
        return ModelError(what, kind="script", hint=_STRAYED)


def _who(request: dict[str, Any]) -> _Who:
    return tuple(request[name] for name in ("run_kind", "subagent_type", "label", "purpose", "step"))


def _said(who: _Who) -> str:
    kind, type_, label, purpose, step = who
    name = "the main agent" if kind == "main" else f"subagent {label!r} ({type_})"
    return f"{name}, step {step}{'' if purpose == 'step' else f' ({purpose})'}"


def _alike(recorded: Sequence[str], asked: Sequence[str]) -> int:
    """Lines that agree from the beginning: siblings of one label differ early, in their prompt."""
    return next(
        (at for at, (one, other) in enumerate(zip(recorded, asked, strict=False)) if one != other),
        min(len(recorded), len(asked)),
    )


def _fresh(error: ModelError) -> ModelError:
    """The same error without the traceback of who was given it before."""
    return ModelError(
        error.message, kind=error.kind, retryable=error.retryable, attempts=error.attempts,
        request_id=error.request_id, hint=error.hint, usage=error.usage, message_id=error.message_id,
    )  # fmt: skip
