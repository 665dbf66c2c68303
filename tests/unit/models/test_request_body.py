"""The body of a request: what the service takes, the same bytes each time, with its cache in mind."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.models.asking import BASH, COMPLETE, question

from kinfold.messages import (
    Block,
    ImageBlock,
    Message,
    OpaqueBlock,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from kinfold.models.request_body import build_body
from kinfold.testing.api_validation import validate

CACHED = {"type": "ephemeral"}


def body_of(*messages: Message, force: bool = True, **more: Any) -> dict[str, Any]:
    """The body, which must be one that the service takes."""
    body = build_body(question(messages=messages, **more), "claude-sonnet-5", force=force)
    validate({**body, "stream": True})
    return body


def step(calls: int, *, step_number: int = 1) -> tuple[Message, Message]:
    """An assistant turn with so many calls and the user turn that answers them."""
    ids = [f"toolu_{step_number}_{number}" for number in range(calls)]
    asked = Message(role="assistant", content=tuple(ToolCall(id=call, name="bash", input={}) for call in ids))
    return asked, Message(role="user", content=tuple(ToolResult(tool_use_id=call) for call in ids))


def marked(body: dict[str, Any]) -> list[int]:
    """Which blocks of all messages carry a breakpoint, counted from 0."""
    blocks = [block for message in body["messages"] for block in message["content"]]
    return [place for place, block in enumerate(blocks) if "cache_control" in block]


def test_breakpoints_stand_on_the_last_system_block_and_on_the_last_block() -> None:
    body = body_of(Message.user("Go."), *step(2), system=("You are an agent.", "Work alone."))
    assert [block.get("cache_control") for block in body["system"]] == [None, CACHED]
    assert marked(body) == [4]


def test_without_a_system_the_last_tool_carries_the_breakpoint() -> None:
    body = body_of(Message.user("Go."), system=())
    assert "system" not in body
    assert body["tools"][-1]["cache_control"] == CACHED


@pytest.mark.parametrize(
    ("calls", "expected"), [(7, [14]), (8, [1, 16]), (12, [9, 24]), (20, [10, 25, 40]), (40, [50, 65, 80])]
)
def test_a_turn_that_adds_many_blocks_gets_breakpoints_in_between(calls: int, expected: list[int]) -> None:
    assert marked(body_of(Message.user("Go."), *step(calls))) == expected


def test_the_next_request_begins_with_the_bytes_of_the_one_before() -> None:
    history = [Message.user("Go.")]
    before = ""
    for number in range(1, 5):
        body = body_of(*history)
        for block in (block for message in body["messages"] for block in message["content"]):
            block.pop("cache_control", None)
        text = json.dumps([body["tools"], body["system"], body["messages"]])
        assert text.startswith(before)
        before = text.rstrip("]}")
        history += step(2, step_number=number)


def test_tools_are_sorted_by_name_and_their_keys_keep_their_order() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    body = body_of(Message.user("Go."), tools=(COMPLETE, ToolSpec(name="alpha", description="A.", input_schema=schema)))
    assert [tool["name"] for tool in body["tools"]] == ["alpha", "complete"]
    assert list(body["tools"][0]["input_schema"]["properties"]) == ["z", "a"]


def test_results_come_first_in_a_user_turn_and_all_in_one() -> None:
    asked, _ = step(2)
    late = Message(
        role="user", content=(TextBlock(text="Note this."), ToolResult(tool_use_id="toolu_1_1", is_error=True))
    )
    early = Message(role="user", content=(ToolResult(tool_use_id="toolu_1_0", content=(TextBlock(text="fine"),)),))
    body = body_of(Message.user("Go."), asked, early, late)
    assert [block["type"] for block in body["messages"][2]["content"]] == ["tool_result", "tool_result", "text"]
    assert [block.get("is_error") for block in body["messages"][2]["content"]] == [None, True, None]


def test_what_the_service_refuses_is_left_out() -> None:
    thoughts = ThinkingBlock(thinking="unsigned")
    answer = ToolResult(tool_use_id="toolu_1_0", content=(TextBlock(text=""), TextBlock(text=" \n")))
    asked, _ = step(1)
    body = body_of(
        Message(role="user", content=(TextBlock(text=""), TextBlock(text="Go."))),
        Message(role="assistant", content=(thoughts, *asked.content)),
        Message(role="user", content=(answer,)),
        Message(role="assistant", content=(TextBlock(text="  "),)),
        Message.user("Go on."),
    )
    assert [[block["type"] for block in message["content"]] for message in body["messages"]] == [
        ["text"],
        ["tool_use"],
        ["tool_result", "text"],
    ]
    assert "content" not in body["messages"][2]["content"][0]


def test_breakpoints_pass_over_blocks_that_cannot_carry_one() -> None:
    said: tuple[Block, ...] = (
        TextBlock(text="Hm."),
        ThinkingBlock(thinking="a", signature="s"),
        RedactedThinkingBlock(data="d"),
        OpaqueBlock(raw={"type": "hologram"}),
    )
    request = question(messages=(Message.user("Go."), Message(role="assistant", content=said)))
    assert marked(build_body(request, "claude-sonnet-5")) == [1]


def test_a_forced_tool_is_a_tool_choice_or_words_at_the_end() -> None:
    forced = body_of(Message.user("Go."), *step(1), tool_choice="complete")
    assert forced["tool_choice"] == {"type": "tool", "name": "complete"}
    asked = body_of(Message.user("Go."), *step(1), tool_choice="complete", force=False)
    assert "tool_choice" not in asked
    assert asked["tools"] == forced["tools"]
    assert [block["type"] for block in asked["messages"][-1]["content"]] == ["tool_result", "text"]


def test_nothing_is_asked_for_that_the_request_does_not_ask() -> None:
    body = body_of(Message.user("Go."), tools=())
    assert set(body) == {"model", "max_tokens", "system", "messages"}


def test_a_lone_surrogate_does_not_break_the_encoding() -> None:
    call = Message(role="assistant", content=(ToolCall(id="toolu_1_0", name="bash", input={"command": "\ud800"}),))
    body = body_of(Message.user("a\udcffb"), call, step(1)[1])
    json.dumps(body, ensure_ascii=False).encode("utf-8")
    assert body["messages"][0]["content"][0]["text"] == "a?b"


def test_images_travel_as_base64() -> None:
    picture = ImageBlock(media_type="image/jpeg", data="/9j/")
    body = body_of(Message(role="user", content=(picture, TextBlock(text="What is it?"))), tools=(BASH,))
    assert body["messages"][0]["content"][0] == {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/jpeg", "data": "/9j/"},
    }
