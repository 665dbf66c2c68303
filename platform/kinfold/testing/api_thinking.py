"""Reasoning as the Messages API keeps it: signed by the model that made it, and refused once it is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kinfold.testing.api_validation import Invalid

_SEAL = {"thinking": "signature", "redacted_thinking": "data"}


class Thoughts:
    """What reasoning the server gave out, to which model's name."""

    def __init__(self) -> None:
        self._given: dict[tuple[str, str], str] = {}

    def give(self, model: str, blocks: Iterable[Mapping[str, Any]]) -> None:
        """Remember the reasoning in an answer."""
        for block in blocks:
            if (field := _SEAL.get(block["type"])) is not None:
                self._given[model, block.get(field, "")] = block.get("thinking", "")

    def check(self, body: Mapping[str, Any]) -> None:
        """Raise `Invalid` for reasoning that this model did not make, or that is not as it was."""
        for index, message in enumerate(body["messages"]):
            content = message["content"] if isinstance(message["content"], list) else []
            for place, block in enumerate(content):
                if (field := _SEAL.get(block["type"])) is not None:
                    self._check(f"messages.{index}.content.{place}", body["model"], block, field)

    def _check(self, where: str, model: str, block: Mapping[str, Any], field: str) -> None:
        said = self._given.get((model, block[field]))
        if said is None:
            raise Invalid(f"{where}: Invalid `{field}` in `{block['type']}` block")
        if said != block.get("thinking", ""):
            raise Invalid(
                f"{where}: `thinking` or `redacted_thinking` blocks in the latest assistant message cannot be "
                "modified. These blocks must remain as they were in the original response."
            )
