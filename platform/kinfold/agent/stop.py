"""Stop conditions: whether a finished step meets one of a definition's."""

from __future__ import annotations

import re
from collections.abc import Iterable

from kinfold.definitions.definition import HasToolCall, StopCondition, TextMatches, TokensOver
from kinfold.messages import Message, Usage


def first_met(conditions: Iterable[StopCondition], reply: Message, usage: Usage) -> StopCondition | None:
    """The first condition that the step's reply, or the run's tokens so far, meets."""
    return next((condition for condition in conditions if _met(condition, reply, usage)), None)


def _met(condition: StopCondition, reply: Message, usage: Usage) -> bool:
    match condition:
        case HasToolCall(key=key):
            return any(call.name == key for call in reply.tool_calls)
        case TokensOver(n=n):
            return usage.total_tokens > n
        case TextMatches(pattern=pattern):
            return re.search(pattern, reply.text) is not None
