"""The one policy of repeating a failed request: how often, after how long, and when not at all."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import anyio
import tenacity

from kinfold.models.failures import AttemptFailed, Failure, too_long_a_wait


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """Full jitter: before attempt n + 1 a random wait between 0 and first · 2^(n − 1) seconds, at most `longest`."""

    attempts: int = 6
    first: float = 1.0
    longest: float = 32.0
    longest_asked: float = 60.0
    """A service that asks for a longer wait than this is not waited for; its answer is raised at once."""
    sleep: Callable[[float], Awaitable[object]] = anyio.sleep
    """How to wait; a test puts its own clock here."""


class Attempts:
    """Counts the attempts of one request and decides after each failure; tenacity holds the rules."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._rules = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(policy.attempts),
            wait=_jitter_over_floor(policy),
            retry=tenacity.retry_if_exception(_may_help(policy)),
        )
        self._state = tenacity.RetryCallState(self._rules, None, (), {})

    @property
    def number(self) -> int:
        """The attempt that is being made, counted from 1."""
        return self._state.attempt_number

    def delay_after(self, error: AttemptFailed) -> float:
        """Seconds to wait before the next attempt; raises `ModelError` when there is to be none."""
        state = self._state
        state.set_exception((type(error), error, error.__traceback__))
        if not self._rules.retry(state) or self._rules.stop(state):
            raise self._final(error.failure).as_error(state.attempt_number) from error
        delay = float(self._rules.wait(state))
        state.prepare_for_next_attempt()
        return delay

    def _final(self, failure: Failure) -> Failure:
        if failure.retryable and _asks_too_much(failure, self._policy):
            return too_long_a_wait(failure, self._policy.longest_asked)
        return failure


def _asks_too_much(failure: Failure, policy: RetryPolicy) -> bool:
    return failure.retry_after is not None and failure.retry_after > policy.longest_asked


def _may_help(policy: RetryPolicy) -> Callable[[BaseException], bool]:
    def predicate(error: BaseException) -> bool:
        return (
            isinstance(error, AttemptFailed) and error.failure.retryable and not _asks_too_much(error.failure, policy)
        )

    return predicate


def _jitter_over_floor(policy: RetryPolicy) -> Callable[[tenacity.RetryCallState], float]:
    """The jitter, but never less than the service asked for."""
    jitter = tenacity.wait_random_exponential(multiplier=policy.first, max=policy.longest)

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome is not None else None
        asked = error.failure.retry_after if isinstance(error, AttemptFailed) else None
        return max(jitter(state), asked or 0.0)

    return wait
