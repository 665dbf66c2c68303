"""Keeps the steps of a task's runs in the store, behind the events that led to them."""

from __future__ import annotations

from typing import Any

from kinfold.agent.kept import StepRecord
from kinfold.events import Warned
from kinfold.messages import ThinkingBlock
from kinfold.tasks.log import EventLog


class StoreJournal:
    """`agent.kept.Journal` of one task."""

    def __init__(self, task_id: str, events: EventLog) -> None:
        self._task_id = task_id
        self._events = events
        self._said = False

    async def keep(self, run_id: str, record: StepRecord) -> bool:
        """See `Journal.keep`. No secret of the spec is kept: who resumes reads the sign for one in its place."""
        if await self._events.flush((run_id, self._shown(record))):
            return True
        if not self._said:
            self._said = True
            words = "its steps cannot be kept now: after a crash the task could not be resumed from here"
            self._events.add(Warned(task_id=self._task_id, code="steps_not_kept", message=words))
        return False

    def _shown(self, record: StepRecord) -> dict[str, Any]:
        data = record.model_dump(mode="json")
        hidden: dict[str, Any] = self._events.hidden(data)
        if hidden is not data:
            for block, shown in _thinking(record, hidden):
                if block.thinking != shown["thinking"]:  # its signature would not fit any more, so it is none
                    shown.update({"type": "text", "text": shown["thinking"]})
        return hidden


def _thinking(record: StepRecord, data: dict[str, Any]) -> list[tuple[ThinkingBlock, dict[str, Any]]]:
    """The blocks that are signed, each with its data."""
    pairs = list(zip(record.messages, data["messages"], strict=True))
    if record.open is not None:
        pairs.append((record.open.message, data["open"]["message"]))
    return [
        (block, shown)
        for message, dumped in pairs
        for block, shown in zip(message.content, dumped["content"], strict=True)
        if isinstance(block, ThinkingBlock)
    ]
