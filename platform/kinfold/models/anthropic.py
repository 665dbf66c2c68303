"""The Messages API through its official SDK: always streaming, from the raw events, with our own retries.

The SDK takes seconds to import, so it is imported when the first request is made. A client lives as long as one
request with its retries: a pool of connections that outlived it would have nobody to close it.
"""

from __future__ import annotations

import functools
import json
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import anyio
import anyio.to_thread

from kinfold.errors import ConfigError
from kinfold.models.base import ModelEvent, ModelRequest, RetryNotice, TextChunk, ThinkingChunk
from kinfold.models.failures import KEY_HINT, KEY_VARIABLE, AttemptFailed, Failure, classify, stream_failure
from kinfold.models.families import family_of
from kinfold.models.gate import LIMITED, gate_of
from kinfold.models.prefixes import prefix_of
from kinfold.models.request_body import build_body
from kinfold.models.retry import Attempts, RetryPolicy
from kinfold.models.stream_decoder import MalformedStream, StreamDecoder

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

IDLE_TIMEOUT = 300.0
"""Seconds without progress of the reply (pings are none) after which a stream counts as dead."""
CONNECT_TIMEOUT = 15.0
COUNT_TIMEOUT = 15.0
"""Seconds for a count, which is only a precaution."""
URL_VARIABLE = "ANTHROPIC_BASE_URL"


class AnthropicModel:
    """One model of the Messages API, or of any server that speaks it at `base_url`.

    The key comes from the argument or from ANTHROPIC_API_KEY; without one the constructor raises `ConfigError`.
    """

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        base_url: str | None = None,
        retry: RetryPolicy | None = None,
        idle_timeout: float = IDLE_TIMEOUT,
    ) -> None:
        key = (api_key if api_key is not None else os.environ.get(KEY_VARIABLE, "")).strip()
        if not key:
            raise ConfigError(f"no key for model {name!r}: {KEY_VARIABLE} is not set", hint=KEY_HINT)
        if not (key.isascii() and key.isprintable()):
            raise ConfigError(f"{KEY_VARIABLE} holds characters that no key has", hint=KEY_HINT)
        self.name = name
        self._key = key
        self._base_url = _usable_base_url(base_url)
        self._retry = retry or RetryPolicy()
        self._idle_timeout = idle_timeout
        family = family_of(name)
        self._forces = family is None or not family.bound

    def __repr__(self) -> str:
        return f"AnthropicModel({self.name!r})"

    @property
    def secrets(self) -> tuple[str, ...]:
        """What nothing that is kept may hold: a service may repeat a key in its refusal."""
        return (self._key,)

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        """Stream the reply, trying again as the policy says; raises `ModelError`."""
        prefix = prefix_of(f"{self._base_url}\0{self._key}", self.name, request)
        async with prefix.turn() as answered, aclosing(self._attempts(request, answered)) as events:
            async for event in events:
                yield event

    async def count_tokens(self, request: ModelRequest) -> int:
        """What the service counts in a request, asked once; raises `ModelError`."""
        body = build_body(request, self.name, force=False)
        del body["max_tokens"]  # nothing is answered
        try:
            async with self._client() as client:
                with _translated(COUNT_TIMEOUT), anyio.fail_after(COUNT_TIMEOUT):
                    counted = await client.messages.count_tokens(**body)
        except AttemptFailed as error:
            raise error.failure.as_error(1) from error
        return counted.input_tokens

    async def _attempts(self, request: ModelRequest, answered: Callable[[], None]) -> AsyncGenerator[ModelEvent]:
        """All attempts; `answered` is called at a first token."""
        attempts = Attempts(self._retry)
        gate, waited_until = gate_of(self._base_url, self._key), 0.0
        async with self._client() as client:
            while True:
                try:
                    turn = gate.turn(self._retry.sleep, waited_until=waited_until)
                    async with aclosing(self._attempt(client, request, turn, answered)) as events:
                        async for event in events:
                            yield event
                    return
                except AttemptFailed as error:
                    if self._was_refused_forcing(request, error):
                        continue
                    failure, failed = error.failure, attempts.number
                    if failure.kind in LIMITED:  # told first, for this may be the last attempt: the siblings go on
                        gate.refused(failure.retry_after or 0.0)
                    delay = attempts.delay_after(error)
                    if failure.kind in LIMITED:
                        waited_until = max(waited_until, gate.refused(delay))
                yield RetryNotice(
                    attempt=failed,
                    delay=delay,
                    reason=failure.message,
                    usage=failure.usage,
                    message_id=failure.message_id,
                    request_id=failure.request_id,
                )
                await self._retry.sleep(delay)

    def _was_refused_forcing(self, request: ModelRequest, error: AttemptFailed) -> bool:
        """Models that always reason answer a forced tool with a 400; from then on the tool is asked for in words.

        The refusal has no code of its own, so any 400 to a forced tool counts, once: if it had another reason, the
        next answer says it again.
        """
        if error.failure.kind != "invalid_request" or request.tool_choice is None or not self._forces:
            return False
        self._forces = False
        return True

    async def _attempt(
        self,
        client: AsyncAnthropic,
        request: ModelRequest,
        turn: AbstractAsyncContextManager[None],
        answered: Callable[[], None],
    ) -> AsyncGenerator[ModelEvent]:
        """One attempt; raises `AttemptFailed` while nothing of the reply is complete."""
        body = build_body(request, self.name, force=self._forces)
        async with self._open(client, body, turn) as (events, request_id):
            decoder = StreamDecoder(request_id)
            idle = 0.0
            try:
                while not decoder.stopped:
                    started = anyio.current_time()
                    event = await self._next(events, self._idle_timeout - idle)
                    if event is None:
                        break
                    had_begun = decoder.began
                    shown, progress = _feed(decoder, event)
                    if decoder.began and not had_begun:
                        answered()
                    idle = 0.0 if progress else idle + anyio.current_time() - started
                    if shown is not None:
                        yield shown
            except AttemptFailed as error:
                # What is complete stands: to ask again would be to do it, and to pay for it, twice.
                if not (decoder.finished or decoder.has_completed):
                    raise AttemptFailed(_billed(error.failure, decoder, request_id)) from error
        if not (decoder.finished or decoder.has_completed):
            failure = stream_failure("the stream ended before the reply did")
            raise AttemptFailed(_billed(failure, decoder, request_id))
        yield decoder.reply()

    async def _next(self, events: AsyncIterator[object], patience: float) -> object:
        """The next event but a ping, or None at the stream's end; `patience` seconds are what is left of the timer."""
        with _translated(self._idle_timeout), anyio.fail_after(max(0.0, patience)):
            return await anext(events, None)

    @asynccontextmanager
    async def _open(
        self, client: AsyncAnthropic, body: dict[str, Any], turn: AbstractAsyncContextManager[None]
    ) -> AsyncIterator[tuple[AsyncIterator[object], str | None]]:
        """Make the request; gives the raw events, as plain objects, and the request's id."""
        from anthropic import AsyncStream

        async with turn:
            with _translated(self._idle_timeout), anyio.fail_after(self._idle_timeout):
                create: Any = client.messages.with_raw_response.create
                response = await create(**body, stream=True)
                stream = await response.parse(to=AsyncStream[object])
            gate_of(self._base_url, self._key).answered(response.headers)
        try:
            _expect_events(response.headers)
            yield aiter(stream), response.headers.get("request-id")
        finally:
            with anyio.CancelScope(shield=True):
                await stream.close()

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[AsyncAnthropic]:
        tls = await anyio.to_thread.run_sync(_load_sdk)
        from anthropic import AsyncAnthropic, DefaultAsyncHttpxClient, Timeout

        timeout = Timeout(self._idle_timeout, connect=CONNECT_TIMEOUT)
        client = AsyncAnthropic(
            api_key=self._key,
            base_url=self._base_url,
            max_retries=0,
            timeout=timeout,
            http_client=DefaultAsyncHttpxClient(timeout=timeout, verify=tls),
        )
        try:
            yield client
        finally:
            with anyio.CancelScope(shield=True):
                await client.close()


@functools.cache
def _load_sdk() -> ssl.SSLContext:
    """Import the SDK, in a thread so that nobody's heartbeat waits for it; returns the TLS setting of all clients."""
    import anthropic.resources.messages  # noqa: F401  (the package alone would leave most of itself for later)
    import httpx2

    return httpx2.create_ssl_context()


def _usable_base_url(base_url: str | None) -> str | None:
    url = base_url or os.environ.get(URL_VARIABLE) or None
    if url is not None and not url.startswith(("http://", "https://")):
        raise ConfigError(f"the model's service is not at an http address: {url!r}", hint=f"correct {URL_VARIABLE}")
    return url


def _feed(decoder: StreamDecoder, event: object) -> tuple[TextChunk | ThinkingChunk | None, bool]:
    try:
        return decoder.feed(event)
    except MalformedStream as error:
        raise AttemptFailed(stream_failure(f"the stream makes no sense: {error}")) from error


def _billed(failure: Failure, decoder: StreamDecoder, request_id: str | None) -> Failure:
    """The failure of a stream with what it had told of its message: a failed stream is billed for what it produced."""
    return replace(
        failure,
        usage=decoder.usage,
        message_id=decoder.message_id,
        request_id=failure.request_id or request_id,
    )


def _expect_events(headers: Mapping[str, str]) -> None:
    content_type = headers.get("content-type", "")
    if not content_type.startswith("text/event-stream"):
        said = f"the model's service answered with {content_type or 'no content type'} where a stream was asked for"
        failure = stream_failure(said)
        raise AttemptFailed(replace(failure, retryable=False, hint=f"check {URL_VARIABLE}: this is no Messages API"))


@contextmanager
def _translated(idle_timeout: float) -> Iterator[None]:
    """Turn what the SDK and its transport raise into `AttemptFailed`; anything else is a bug and stays one."""
    import anthropic
    import httpx2

    try:
        yield
    except anthropic.APIStatusError as error:
        failure = classify(error.status_code, error.body, error.response.headers)
        raise AttemptFailed(failure) from error
    except (TimeoutError, anthropic.APITimeoutError, httpx2.TimeoutException) as error:
        waited = "the connection timed out" if _is_connecting(error) else f"no progress for {idle_timeout:g} s"
        raise AttemptFailed(stream_failure(f"the model's service: {waited}", kind="timeout")) from error
    except anthropic.APIConnectionError as error:
        said = f"cannot reach the model's service: {error.__cause__ or error}"
        raise AttemptFailed(stream_failure(said, kind="connection")) from error
    except (
        anthropic.APIError,
        httpx2.HTTPError,
        httpx2.StreamError,
        json.JSONDecodeError,
        UnicodeDecodeError,
    ) as error:
        raise AttemptFailed(stream_failure(f"the stream broke: {str(error) or type(error).__name__}")) from error


def _is_connecting(error: BaseException) -> bool:
    import httpx2

    return isinstance(error, httpx2.ConnectTimeout) or isinstance(error.__cause__, httpx2.ConnectTimeout)
