"""What went wrong with one attempt at a request, and whether another attempt may help.

The service says what failed in its body's `error.type`. That comes before the HTTP status: an error that is reported
in mid-stream arrives under the status 200 of the stream. A status counts where a body says nothing, as a proxy's may.
"""

from __future__ import annotations

import email.utils
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kinfold.errors import ModelError, ModelErrorKind
from kinfold.messages import Usage

KEY_VARIABLE = "ANTHROPIC_API_KEY"
KEY_HINT = f"set {KEY_VARIABLE} to a valid key, or try without a service: `--model scripted:FILE`"
_SHOWN = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed attempt."""

    kind: ModelErrorKind
    message: str
    retryable: bool
    retry_after: float | None = None
    """Seconds that the service asks us to wait at least."""
    request_id: str | None = None
    hint: str = ""
    usage: Usage | None = None
    """What the attempt is billed for, as far as the stream told; None: it told nothing."""
    message_id: str | None = None

    def as_error(self, attempts: int) -> ModelError:
        """The error that ends the request after so many attempts."""
        tried = f" (after {attempts} attempts)" if attempts > 1 else ""
        return ModelError(
            f"{self.message}{tried}",
            kind=self.kind,
            retryable=self.retryable,
            attempts=attempts,
            request_id=self.request_id,
            hint=self.hint,
            usage=self.usage,
            message_id=self.message_id,
        )


class AttemptFailed(Exception):
    """Raised when one attempt failed; only the retry policy's caller sees it, others see `ModelError`."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


_BY_TYPE: dict[str, tuple[ModelErrorKind, bool]] = {
    "invalid_request_error": ("invalid_request", False),
    "authentication_error": ("authentication", False),
    "billing_error": ("billing", False),
    "permission_error": ("permission", False),
    "not_found_error": ("not_found", False),
    "request_too_large": ("too_large", False),
    "rate_limit_error": ("rate_limit", True),
    "timeout_error": ("timeout", True),
    "conflict_error": ("server", True),
    "api_error": ("server", True),
    "overloaded_error": ("overloaded", True),
}
_BY_STATUS: dict[int, tuple[ModelErrorKind, bool]] = {
    401: ("authentication", False),
    402: ("billing", False),
    403: ("permission", False),
    404: ("not_found", False),
    408: ("timeout", True),
    409: ("server", True),
    413: ("too_large", False),
    429: ("rate_limit", True),
    504: ("timeout", True),
    529: ("overloaded", True),
}
_SPEND_LIMITS = frozenset({"contract_spend_limit_reached", "enforced_spend_limit_reached"})
"""Codes of 429s that no waiting lifts."""
_REFUSALS: tuple[tuple[ModelErrorKind, tuple[str, ...]], ...] = (
    ("context", ("prompt is too long",)),
    ("context", ("exceed context limit",)),
    ("billing", ("credit balance is too low",)),
    ("unpaired_calls", ("`tool_use` ids were found without `tool_result`",)),
    ("unpaired_calls", ("unexpected `tool_use_id` found in `tool_result`",)),
    ("unpaired_calls", ("each tool_use must have a single result",)),
    ("thinking", ("thinking", "block")),
)
"""What 400s mean that have no type of their own, by the words that they all hold."""
_HINTS: dict[ModelErrorKind, str] = {
    "authentication": KEY_HINT,
    "permission": "the key may not use this model: choose another with --model, or ask for access",
    "not_found": "check the model's name, and ANTHROPIC_BASE_URL if it is set",
    "billing": "see to the account's credit or spend limit, then run again",
    "rate_limit": "wait, or run fewer subagents at once",
    "overloaded": "the service is overloaded: run again later",
    "unpaired_calls": "the conversation holds a tool call without its result: start it anew",
    "thinking": "the conversation holds reasoning that another model made, or that was changed: start it anew",
    "context": "the conversation outgrew the model's window: a smaller task, or a model with a larger window",
    "too_large": "the request has too many bytes: fewer or smaller images and results",
    "connection": "check the network, a proxy's settings, and ANTHROPIC_BASE_URL if it is set",
    "timeout": "the service did not answer in time: run again later",
    "stream": "the answer was cut off on its way: run again",
    "server": "the service failed: run again later",
}


def hint_for(kind: ModelErrorKind) -> str:
    """What an operator can do about a failure of this kind."""
    return _HINTS.get(kind, "")


def classify(status: int, body: object, headers: Mapping[str, str]) -> Failure:
    """The failure behind an error answer, or behind an `error` event in the stream of a status 200."""
    error_type, message, code = _read_body(body)
    kind, retryable = _BY_TYPE.get(error_type) or _by_status(status)
    kind, retryable = _special(kind, retryable, message, code)
    asked = headers.get("x-should-retry")
    if retryable and asked == "false":
        retryable = False
    said = message or f"HTTP status {status}"
    name = error_type or ("error in the stream" if status == 200 else f"HTTP {status}")
    return Failure(
        kind=kind,
        message=f"the model's service answered {name}: {said[:_SHOWN]}",
        retryable=retryable,
        retry_after=parse_retry_after(headers),
        request_id=headers.get("request-id") or _text(body, "request_id"),
        hint=hint_for(kind),
    )


def stream_failure(message: str, *, kind: ModelErrorKind = "stream", request_id: str | None = None) -> Failure:
    """The failure of an answer that stopped short or made no sense; another attempt may help."""
    return Failure(kind=kind, message=message, retryable=True, request_id=request_id, hint=hint_for(kind))


def too_long_a_wait(failure: Failure, longest: float) -> Failure:
    """The same failure, saying that the service asks for a longer wait than we are willing to sit out."""
    said = (
        f"{failure.message}; it asks for a wait of {failure.retry_after:.0f} s, over the {longest:.0f} s kinfold waits"
    )
    return replace(failure, message=said, hint=f"run again in {failure.retry_after:.0f} s")


def parse_retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds to wait by `retry-after-ms` or `retry-after` (seconds or an HTTP date); None where there are none."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            seconds = float(headers.get(name, "")) * unit
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    date = email.utils.parsedate_tz(headers.get("retry-after", ""))
    if date is None:
        return None
    return max(0.0, email.utils.mktime_tz(date) - (time.time() if now is None else now))


def _by_status(status: int) -> tuple[ModelErrorKind, bool]:
    if status in _BY_STATUS:
        return _BY_STATUS[status]
    if status >= 500:
        return "server", True
    return ("invalid_request", False) if status >= 400 else ("stream", True)


def _special(kind: ModelErrorKind, retryable: bool, message: str, code: str) -> tuple[ModelErrorKind, bool]:
    """What a general type hides: 400s that mean something else, and 429s that no waiting lifts."""
    if code in _SPEND_LIMITS:
        return "billing", False
    if kind != "invalid_request":
        return kind, retryable
    lowered = message.lower()
    return next((meant for meant, texts in _REFUSALS if all(text in lowered for text in texts)), kind), retryable


def _read_body(body: object) -> tuple[str, str, str]:
    """Type, message and code of an error body; empty where it has none. A plain text is the message."""
    if not isinstance(body, dict):
        return "", body.strip() if isinstance(body, str) else "", ""
    error: Any = body.get("error")
    if not isinstance(error, dict):
        return "", error if isinstance(error, str) else "", ""
    return _text(error, "type") or "", _text(error, "message") or "", _text(error.get("details"), "error_code") or ""


def _text(value: object, key: str) -> str | None:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, str) else None
