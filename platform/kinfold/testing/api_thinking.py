"""Reasoning as the Messages API keeps it: signed by the model that made it, and refused once it is changed."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from kinfold.testing.api_validation import Invalid

_NO_EFFORT = re.compile(r"claude-(sonnet-4-5|haiku-4-5|opus-4-1)")
_NO_ADAPTIVE = re.compile(r"claude-\w+-4-[15]")
_NO_BUDGET = re.compile(r"claude-(\w+-5|opus-4-[78])")
_NOT_OFF = re.compile(r"claude-((fable|mythos)-5|(opus|sonnet)-5-5)")
_BOUND = re.compile(r"claude-((fable|mythos)-5-1|\w+-5-5)")
_SMALLEST_BUDGET = 1_024
_SEAL = {"thinking": "signature", "redacted_thinking": "data"}


class Thoughts:
    """What reasoning the server gave out: to which model's name, and behind which conversation."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], set[tuple[str, str]]] = {}

    def give(self, body: Mapping[str, Any], blocks: Iterable[Mapping[str, Any]]) -> None:
        """Remember the reasoning in an answer to a request."""
        messages = body["messages"]
        before = _digest(messages[:-1] if messages[-1]["role"] == "assistant" else messages)
        for block in blocks:
            if (field := _SEAL.get(block["type"])) is not None:
                known = self._given.setdefault((body["model"], block.get(field, "")), set())
                known.add((block.get("thinking", ""), before))

    def check(self, body: Mapping[str, Any]) -> None:
        """Raise `Invalid` for reasoning that this model did not make, or that is not as it was."""
        for index, message in enumerate(body["messages"]):
            content = message["content"] if isinstance(message["content"], list) else []
            for place, block in enumerate(content):
                if (field := _SEAL.get(block["type"])) is not None:
                    self._check(f"messages.{index}.content.{place}", body, body["messages"][:index], block, field)

    def _check(
        self, where: str, body: Mapping[str, Any], before: list[Any], block: Mapping[str, Any], field: str
    ) -> None:
        known = self._given.get((body["model"], block[field]))
        if known is None:
            raise Invalid(f"{where}: Invalid `{field}` in `{block['type']}` block")
        said = block.get("thinking", "")
        same = (said, _digest(before)) in known if _BOUND.match(body["model"]) else said in {text for text, _ in known}
        if not same:
            raise Invalid(
                f"{where}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
                "modified. These blocks must remain as they were in the original response."
            )


def _digest(messages: list[Any]) -> str:
    """Of a conversation, whatever of it is to be cached."""
    return re.sub(r', "cache_control": \{[^}]*\}', "", json.dumps(messages))


def check_settings(body: Mapping[str, Any]) -> None:
    """Raise `Invalid` for an effort, a thinking or a forced tool that the model does not take."""
    model = body["model"]
    if "effort" in body.get("output_config", {}) and _NO_EFFORT.match(model):
        raise Invalid("This model does not support the effort parameter.")
    if _BOUND.match(model) and body.get("tool_choice", {}).get("type") in ("tool", "any"):
        raise Invalid("tool_choice: forced tool use is not supported by this model")
    if (thinking := body.get("thinking")) is None:
        return
    refuses = {"adaptive": _NO_ADAPTIVE, "enabled": _NO_BUDGET, "disabled": _NOT_OFF}.get(thinking["type"])
    if refuses is not None and refuses.match(model):
        raise Invalid(f'"thinking.type.{thinking["type"]}" is not supported for this model.')
    if thinking["type"] == "enabled":
        _check_budget(body, thinking)


def _check_budget(body: Mapping[str, Any], thinking: Mapping[str, Any]) -> None:
    if thinking.get("budget_tokens", 0) < _SMALLEST_BUDGET:
        raise Invalid("thinking.enabled.budget_tokens: Input should be greater than or equal to 1024")
    if thinking["budget_tokens"] >= body["max_tokens"]:
        raise Invalid("`max_tokens` must be greater than `thinking.budget_tokens`.")
    _begins_with_reasoning(body["messages"])
    if body.get("tool_choice", {}).get("type") in ("tool", "any"):
        raise Invalid("Thinking may not be enabled when tool_choice forces tool use.")


def _begins_with_reasoning(messages: list[Any]) -> None:
    """With a budget, the turn whose calls are answered now must begin with reasoning."""
    last = next((at for at in range(len(messages) - 1, -1, -1) if messages[at]["role"] == "assistant"), None)
    if last is None or not isinstance(content := messages[last]["content"], list):
        return
    if content[0]["type"] not in _SEAL and any(block["type"] == "tool_use" for block in content):
        raise Invalid(
            f"messages.{last}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{content[0]['type']}`. When `thinking` is enabled, a final `assistant` message must start with a "
            "thinking block (preceeding the lastmost set of `tool_use` and `tool_result` blocks)."
        )
