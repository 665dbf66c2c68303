"""Every request to a model as one event: what it sent, what came of it, what it cost. The ledger is made of these."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from typing import Any

import anyio

from kinfold.agent.run import Run
from kinfold.errors import ModelError
from kinfold.events import ModelRequested, RequestEnd
from kinfold.messages import Message, ToolResult, Usage
from kinfold.models import estimate
from kinfold.models.base import Model, ModelEvent, ModelRequest, Reply, RetryNotice, TextChunk
from kinfold.models.pricing import cost_usd

CLOSE_STREAM = 5.0
"""Seconds that a model's stream may take to close."""


async def metered(run: Run, model: Model, request: ModelRequest) -> AsyncGenerator[ModelEvent]:
    """The model's stream, with each of its attempts counted, paid and told; closed also when the run is ended."""
    meter = _Meter(run, model.name, request)
    stream: Any = model.stream(request)
    try:
        async for event in stream:
            await meter.hear(event)
            yield event
        if not meter.told:
            raise ModelError("the model's stream ended without a reply", kind="stream")
    except ModelError as error:
        await meter.tell("failed", error.usage, error.message_id, error=error.kind, request_id=error.request_id)
        raise
    except Exception as error:
        await meter.tell("failed", None, None, error=type(error).__name__)
        raise
    finally:
        with anyio.CancelScope(shield=True):
            await meter.tell_cancelled()
        if (close := getattr(stream, "aclose", None)) is not None:
            with anyio.move_on_after(CLOSE_STREAM, shield=True):
                await close()


class _Meter:
    """One request and its attempts."""

    def __init__(self, run: Run, model: str, request: ModelRequest) -> None:
        self._run = run
        self._request = request
        self._attempt = 1
        self._began = time.monotonic()
        self._sent_at = self._began
        self.model = model
        self.heard = ""
        self.told = False

    async def hear(self, event: ModelEvent) -> None:
        """Take note of what ends an attempt."""
        match event:
            case TextChunk(text=text):
                self.heard += text
            case RetryNotice(attempt=attempt, usage=usage, message_id=message_id):
                told: dict[str, Any] = {"error": event.reason, "request_id": event.request_id}
                await self.tell("retried", usage, message_id, next_attempt=attempt + 1, **told)
                self._sent_at = self._began + event.delay
            case Reply(usage=usage, message_id=message_id, model=answered):
                self.model = answered
                told = {"stop_reason": event.stop_reason, "request_id": event.request_id}
                await self.tell("ok", usage, message_id, **told)

    async def tell(
        self,
        ended: RequestEnd,
        usage: Usage | None,
        message_id: str | None,
        *,
        next_attempt: int = 0,
        **told: Any,
    ) -> None:
        """Count what the service reported of this attempt, pay it, here and in every purse above, and say so."""
        used = usage or Usage()
        self._run.usage = self._run.usage + used
        cost = cost_usd(self.model, used)
        if cost is None and self._run.purse.limited and self.model not in self._run.purse.unpriced:
            words = f"the price of {self.model} is not known: the budget does not hold for it"
            await self._run.warn("price_unknown", words)
        self._run.purse.charge(cost, self.model)
        await self._emit(ended, used, message_id or "", cost=cost, **told)
        self._attempt, self._began, self.heard = next_attempt, time.monotonic(), ""
        self.told = ended != "retried"

    async def tell_cancelled(self) -> None:
        """Of a request that was left nothing is reported: its row holds an estimate, which nobody is charged."""
        if self.told or time.monotonic() < self._sent_at:  # it has ended, or waits to be made again
            return
        said = Usage(
            input_tokens=estimate.request_tokens(self._request), output_tokens=estimate.text_tokens(self.heard)
        )
        self.told = True
        await self._emit("cancelled", said, "", estimated=True, cost=cost_usd(self.model, said))

    async def _emit(self, ended: RequestEnd, usage: Usage, message_id: str, **more: Any) -> None:
        messages = self._request.messages
        await self._run.emit(
            ModelRequested,
            step=self._run.steps,
            attempt=self._attempt,
            purpose=self._request.purpose,
            model=self.model,
            ended=ended,
            message_id=message_id,
            usage=usage,
            seconds=time.monotonic() - self._began,
            sent_tokens=estimate.request_tokens(self._request),
            card_tokens=sum(map(estimate.card_tokens, messages)),
            results=_new_results(messages),
            **more,
        )


def _new_results(messages: tuple[Message, ...]) -> dict[str, int]:
    """By call id, what the newest calls and their results add to every request from this one on."""
    asked = {call.id: call for message in messages[-2:] for call in message.tool_calls}
    return {
        block.tool_use_id: estimate.block_tokens(block)
        + (estimate.block_tokens(asked[block.tool_use_id]) if block.tool_use_id in asked else 0)
        for message in messages[-1:]
        for block in message.content
        if isinstance(block, ToolResult)
    }
