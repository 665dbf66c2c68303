"""The ledger: every request to a model is one row, whatever became of it, from which cost and usage are added up."""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Self

import anyio

from kinfold.errors import ModelError, StoreError
from kinfold.messages import Usage
from kinfold.models import estimate
from kinfold.models.base import Model, ModelEvent, ModelRequest, Purpose, Reply, RetryNotice, TextChunk, ThinkingChunk
from kinfold.models.pricing import cost_usd

if TYPE_CHECKING:
    from kinfold.agent.run import Run

Fate = Literal["ok", "failed", "retried", "cancelled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRow:
    """One attempt of one request. Times are seconds since the epoch."""

    id: str
    """The message id; `req_…` where the model told none, or told one twice."""
    run_id: str
    label: str | None
    step: int
    attempt: int
    """1-based; one that is made again after a failure is a row of its own."""
    purpose: Purpose
    model: str
    ended: Fate
    error: str | None = None
    """`ModelError.kind`, the name of another exception, or why an attempt is made again."""
    usage: Usage
    estimated: bool = False
    """The request was cut off before its usage was told: these tokens are our estimate, and in no run's usage."""
    cost: float | None
    """US dollars; None: the model's price is not known, which is not 0."""
    started_at: float
    ended_at: float


Keep = Callable[[Sequence[RequestRow]], Awaitable[None]]


class Ledger:
    """The rows of one task, in memory; behind that, with a `keep`, in the store."""

    def __init__(self, keep: Keep | None = None) -> None:
        """`keep` takes rows all or none, may get one twice, and raises `StoreError`."""
        self._keep = keep
        self._rows: dict[str, RequestRow] = {}
        self._kept = 0
        self._keeping = anyio.Lock()
        self.failure: StoreError | None = None
        """Why rows are in memory only; None: none are, as of the last `flush`."""

    @property
    def rows(self) -> tuple[RequestRow, ...]:
        """All so far, in the order in which they ended."""
        return tuple(self._rows.values())

    def note(self, row: RequestRow) -> None:
        """Add a row. An id that is there already is a server's that repeats itself: the row gets one of ours."""
        if not row.id or row.id in self._rows:
            row = replace(row, id=f"req_{secrets.token_hex(8)}")
        self._rows[row.id] = row

    async def flush(self) -> None:
        """Keep what was noted. A store that does not take it ends no run: the rows wait for the next flush."""
        if self._keep is None:
            return
        async with self._keeping:
            new = list(self._rows.values())[self._kept :]
            if not new:
                return
            try:
                await self._keep(new)
            except StoreError as error:
                self.failure = error
            else:
                self._kept += len(new)
                self.failure = None


class Meter:
    """A `with` block around one request: hears its events, and books each attempt when it has ended, however.

    What an attempt's usage was, where it was told, counts in the run's usage and in its purse and those above,
    also when the attempt failed: the service bills it.
    """

    def __init__(self, run: Run, model: Model, request: ModelRequest) -> None:
        self._run = run
        self._model = model.name
        self._request = request
        self._attempt = 1
        self._heard: list[str] = []
        self._booked = False
        self._started = time.time()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._booked:
            return
        if isinstance(exc, ModelError):
            self._attempt = max(self._attempt, exc.attempts)
            self._book("failed", exc.usage, message_id=exc.message_id, error=exc.kind)
        elif exc is None or isinstance(exc, Exception):
            self._book("failed", None, error=type(exc).__name__ if exc is not None else "stream")
        else:
            self._book_cancelled()

    def heard(self, event: ModelEvent) -> None:
        """Note the next event of the request's stream."""
        match event:
            case TextChunk(text=text) | ThinkingChunk(text=text):
                self._heard.append(text)
            case RetryNotice(attempt=attempt, delay=delay, reason=reason, usage=usage, message_id=message_id):
                self._attempt = attempt
                self._book("retried", usage, message_id=message_id, error=reason)
                self._heard.clear()
                self._attempt, self._booked, self._started = attempt + 1, False, time.time() + delay
            case Reply(usage=usage, message_id=message_id, model=model):
                self._model = model
                self._book("ok", usage, message_id=message_id)

    def _book_cancelled(self) -> None:
        """Nobody will tell its usage any more, but it was sent, and what was heard was made."""
        if time.time() < self._started:
            return  # it was waiting to be made again
        usage = Usage(
            input_tokens=estimate.request_tokens(self._request),
            output_tokens=estimate.text_tokens("".join(self._heard)),
        )
        self._book("cancelled", usage, estimated=True)

    def _book(
        self,
        ended: Fate,
        usage: Usage | None,
        *,
        message_id: str | None = None,
        error: str | None = None,
        estimated: bool = False,
    ) -> None:
        run, billed, now = self._run, usage or Usage(), time.time()
        cost = cost_usd(self._model, billed)
        run.config.ledger.note(
            RequestRow(
                id=message_id or "", run_id=run.context.run_id, label=run.input.label, step=self._request.step,
                attempt=self._attempt, purpose=self._request.purpose, model=self._model, ended=ended, error=error,
                usage=billed, estimated=estimated, cost=cost, started_at=min(self._started, now), ended_at=now,
            )
        )  # fmt: skip
        if usage is not None:
            run.purse.charge(cost, self._model)
            if not estimated:
                run.usage = run.usage + usage
        self._booked = True
