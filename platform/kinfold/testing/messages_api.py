"""A Messages API on 127.0.0.1, over real HTTP, that answers as the real one does and refuses what it refuses.

    async with MessagesApi([rate_limited("1"), Answer.text("Hello")]) as api:
        model = AnthropicModel("claude-sonnet-5", api_key=api.api_key, base_url=api.base_url)

Each valid request takes the next outcome of the script; an invalid one gets its 400 (401, 404) and takes none.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import anyio

from kinfold.testing.api_events import encode, timeline
from kinfold.testing.api_outcomes import (
    Answer,
    Hangup,
    Interruption,
    Outcome,
    Refusal,
    Silence,
    internal,
    overloaded,
    rate_limited,
)
from kinfold.testing.api_thinking import Thoughts, check_settings
from kinfold.testing.api_validation import Invalid, validate
from kinfold.testing.http_listener import Exchange, HttpListener, HttpRequest

__all__ = [
    "Answer", "Hangup", "Interruption", "MessagesApi", "Outcome", "Refusal", "Silence", "internal", "overloaded",
    "rate_limited",
]  # fmt: skip

Script = Iterable[Outcome] | Callable[[Mapping[str, Any]], Outcome]
STALL_PAUSE = 0.02
"""Seconds between the events of a stalled stream; the real service pings every few seconds."""


class MessagesApi:
    """The server; `requests` holds every JSON body that came with the right key, the refused ones too."""

    def __init__(
        self,
        script: Script,
        *,
        api_key: str = "sk-loopback",
        models: Iterable[str] | None = None,
        refuses_forced_tools: bool = False,
        count: int | Refusal | None = None,
    ) -> None:
        """`script`: the outcomes in order, or a function of the body. `models`: None takes every `claude-…`.

        `count`: what is answered where tokens are to be counted; None: the server's own estimate.
        """
        self._script = script if callable(script) else iter(tuple(script))
        self.api_key = api_key
        self._models = None if models is None else frozenset(models)
        self._refuses_forced_tools = refuses_forced_tools
        self._count = count
        self._listener = HttpListener(self._answer)
        self.requests: list[dict[str, Any]] = []
        self.counted: list[dict[str, Any]] = []
        """The bodies whose tokens were to be counted; they are no requests, and take no outcome."""
        self.headers: list[Mapping[str, str]] = []
        """Of each request in `requests`."""
        self.open_streams = 0
        """Streams that are being answered now; 0 again when clients have closed what they abandoned."""
        self._changed = anyio.Event()
        self._answered = 0
        self._thoughts = Thoughts()

    @property
    def base_url(self) -> str:
        """Where the server listens."""
        return self._listener.url

    async def __aenter__(self) -> Self:
        await self._listener.__aenter__()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._listener.__aexit__(*exc_info)
        if self._listener.failures:
            raise ExceptionGroup("the loopback Messages API failed", _exceptions(self._listener.failures))

    async def until_open(self, streams: int) -> None:
        """Wait until exactly so many streams are being answered."""
        while self.open_streams != streams:
            await self._changed.wait()

    def _count_stream(self, change: int) -> None:
        self.open_streams += change
        self._changed.set()
        self._changed = anyio.Event()

    async def _answer(self, request: HttpRequest, exchange: Exchange) -> None:
        self._answered += 1
        outcome = self._outcome(request)
        match outcome:
            case Refusal():
                await self._refuse(outcome, exchange)
            case Count():
                body = json.dumps({"input_tokens": outcome.tokens}).encode()
                await exchange.respond(200, {"content-type": "application/json"}, body)
            case Answer():
                self._count_stream(1)
                try:
                    await self._stream(outcome, exchange)
                finally:
                    self._count_stream(-1)
            case Hangup():
                exchange.abort()
            case Silence():
                await exchange.client_left()

    def _outcome(self, request: HttpRequest) -> Outcome | Count:
        path = request.path.partition("?")[0]
        if request.method != "POST" or path not in ("/v1/messages", "/v1/messages/count_tokens"):
            return Refusal(status=404, type="not_found_error", message="Not Found")
        given = request.headers.get("x-api-key") or request.headers.get("authorization", "").removeprefix("Bearer ")
        if given != self.api_key:
            message = "invalid x-api-key" if given else "x-api-key header is required"
            return Refusal(status=401, type="authentication_error", message=message)
        try:
            body = json.loads(request.body)
        except ValueError as error:
            return _bad_request(f"The request body is not valid JSON: {error}")
        if path.endswith("/count_tokens"):
            return self._counted(body)
        self.requests.append(body)
        self.headers.append(request.headers)
        if "anthropic-version" not in request.headers:
            return _bad_request("anthropic-version: header is required")
        return self._refused(body) or self._next(body)

    def _refused(self, body: Any) -> Refusal | None:
        """What a wrong body is answered with; None: it is right."""
        try:
            validate(body, refuses_forced_tools=self._refuses_forced_tools)
            check_settings(body)
            self._thoughts.check(body)
        except Invalid as error:
            return _bad_request(str(error))
        if not self._knows(body["model"]):
            return Refusal(status=404, type="not_found_error", message=f"model: {body['model']}")
        return None

    def _counted(self, body: Any) -> Refusal | Count:
        """A count takes what a request does, but for the fields that are about its answer."""
        self.counted.append(body)
        for name in ("max_tokens", "stream"):
            if name in body:
                return _bad_request(f"{name}: Extra inputs are not permitted")
        if (refusal := self._refused({**body, "max_tokens": 10**6, "stream": True})) is not None:
            return refusal
        if isinstance(self._count, Refusal):
            return self._count
        return Count(tokens=_estimated(body) if self._count is None else self._count)

    def _knows(self, model: object) -> bool:
        if self._models is None:
            return isinstance(model, str) and model.startswith("claude-")
        return model in self._models

    def _next(self, body: Mapping[str, Any]) -> Outcome:
        if callable(self._script):
            return self._script(body)
        outcome = next(self._script, None)
        if outcome is None:
            return _bad_request(f"the loopback server's script has no outcome left for request {self._answered}")
        return outcome

    async def _refuse(self, refusal: Refusal, exchange: Exchange) -> None:
        request_id = f"req_loopback_{self._answered}"
        kind = "application/json" if refusal.body is None else "text/html"
        headers = {"content-type": kind, "request-id": request_id, **refusal.headers}
        await exchange.respond(refusal.status, headers, refusal.encode(request_id))

    async def _stream(self, answer: Answer, exchange: Exchange) -> None:
        body, number = self.requests[-1], self._answered
        self._thoughts.give(body, answer.blocks)
        plan = timeline(
            answer,
            message_id=f"msg_loopback_{number}",
            model=body["model"],
            prompt_tokens=_estimated(body),
        )
        await exchange.begin(200, {"content-type": "text/event-stream", "request-id": f"req_loopback_{number}"})
        stop = answer.interruption
        events = plan.events if stop is None else plan.events[: getattr(plan, stop.where)]
        for event in events:
            await exchange.send(encode(event))
        if stop is not None:
            await self._interrupt(stop, exchange)
        else:
            await exchange.end()

    @staticmethod
    async def _interrupt(stop: Interruption, exchange: Exchange) -> None:
        if stop.how == "error":
            error = {"type": stop.error_type, "message": stop.error_message}
            await exchange.send(encode({"type": "error", "error": error}))
            await exchange.end()
        elif stop.how == "end":
            await exchange.end()
        elif stop.how == "stall":
            await _repeat(exchange, encode(stop.stall_event))
        # Else the connection closes behind what was sent, without the end that its encoding promises.


async def _repeat(exchange: Exchange, event: bytes) -> None:
    """Send an event again and again until the client leaves."""
    while True:
        await exchange.send(event)
        with anyio.move_on_after(STALL_PAUSE):
            await exchange.client_left()
            return


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """The tokens of a body, which is all that was asked."""

    tokens: int


def _estimated(body: Mapping[str, Any]) -> int:
    return len(json.dumps(body)) // 4


def _bad_request(message: str) -> Refusal:
    return Refusal(status=400, type="invalid_request_error", message=message)


def _exceptions(failures: Iterable[BaseException]) -> list[Exception]:
    return [failure for failure in failures if isinstance(failure, Exception)]
