"""The conversation of one run, append-only; it cannot hold a tool call without its one answer."""

from __future__ import annotations

from collections.abc import Sequence

from kinfold.agent.instructions import words
from kinfold.messages import Block, Message, RedactedThinkingBlock, TextBlock, ThinkingBlock, ToolResult

_THOUGHTS = (ThinkingBlock, RedactedThinkingBlock)


class History:
    """The messages so far. A reply with tool calls enters together with all its results, in call order."""

    def __init__(self, messages: Sequence[Message], *, kept: int = 0) -> None:
        """`kept`: so many of them are kept elsewhere already."""
        self._messages = list(messages)
        self._kept = kept

    @property
    def messages(self) -> tuple[Message, ...]:
        """What a request sends."""
        return tuple(self._messages)

    @property
    def unkept(self) -> tuple[int, tuple[Message, ...]]:
        """How many messages at the beginning are kept elsewhere as they are, and those behind them."""
        return self._kept, tuple(self._messages[self._kept :])

    def kept(self, length: int) -> None:
        """So many messages at the beginning are kept elsewhere now."""
        self._kept = length

    def add_turn(self, reply: Message) -> None:
        """Append a reply without tool calls; one that says nothing at all leaves no trace."""
        if reply.tool_calls:
            raise ValueError("a reply with tool calls enters the history only with its results")
        if cleaned := echoed(reply):
            self._messages.append(cleaned)

    def add_exchange(self, reply: Message, results: Sequence[ToolResult]) -> None:
        """Append a reply and the one user message that answers its calls, results in call order."""
        expected = [call.id for call in reply.tool_calls]
        answered = [result.tool_use_id for result in results]
        if expected != answered:
            raise ValueError(f"tool calls {expected} were answered as {answered}")
        cleaned = echoed(reply)
        if cleaned is not None:
            self._messages.append(cleaned)
            self._messages.append(Message(role="user", content=tuple(results)))

    def replace(self, messages: Sequence[Message]) -> None:
        """Put a shorter conversation in place of this one. Raises `ValueError` where a call lost its answer."""
        for place, message in enumerate(messages):
            calls = [call.id for call in message.tool_calls]
            after = messages[place + 1] if place + 1 < len(messages) else None
            if message.role == "user":
                continue
            answers = [block.tool_use_id for block in after.content if isinstance(block, ToolResult)] if after else []
            if calls != answers:
                raise ValueError(f"tool calls {calls} would be answered as {answers}")
        same = next((at for at, (a, b) in enumerate(zip(self._messages, messages, strict=False)) if a != b), None)
        self._kept = min(self._kept, len(messages), len(self._messages) if same is None else same)
        self._messages = list(messages)

    def say(self, text: str) -> None:
        """Add a note of the loop as a user message of its own."""
        self._messages.append(Message.user(text))

    def say_last(self, text: str) -> None:
        """Add a note at the end of the last user message, behind its results."""
        if not self._messages or self._messages[-1].role != "user":
            self.say(text)
            return
        last = self._messages[-1]
        self._kept = min(self._kept, len(self._messages) - 1)
        self._messages[-1] = Message(role="user", content=(*last.content, TextBlock(text=text)))


def echoed(reply: Message) -> Message | None:
    """The reply as it is sent back: verbatim, without text blocks of white space, which the API refuses."""
    blocks: tuple[Block, ...] = tuple(
        block for block in reply.content if not (isinstance(block, TextBlock) and not block.text.strip())
    )
    return Message(role="assistant", content=blocks) if blocks else None


def without_thinking(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation for a model that did not think these thoughts: it would refuse their signatures."""
    kept = (
        message.model_copy(update={"content": tuple(b for b in message.content if not isinstance(b, _THOUGHTS))})
        for message in messages
    )
    return tuple(message for message in kept if message.content)


def paired(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The conversation with each call answered once, in the message behind it; answers of nothing are left out."""
    whole: list[Message] = []
    asked: tuple[str, ...] = ()
    for message in [*messages, None]:
        given = {b.tool_use_id: b for b in message.content if isinstance(b, ToolResult)} if message else {}
        answers = [given.get(call) or _unknown(call) for call in asked]
        rest = [b for b in message.content if not isinstance(b, ToolResult)] if message else []
        if answers and (message is None or message.role == "assistant"):
            whole.append(Message(role="user", content=tuple(answers)))
            answers = []
        if message is not None and (answers or rest):
            whole.append(Message(role=message.role, content=(*answers, *rest)))
        asked = tuple(dict.fromkeys(call.id for call in message.tool_calls)) if message else ()
    return tuple(whole)


def _unknown(call_id: str) -> ToolResult:
    return ToolResult(tool_use_id=call_id, content=(TextBlock(text=words("unanswered")),), is_error=True)
