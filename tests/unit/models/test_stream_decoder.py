"""The decoder under any cut: what it lets out is whole, and is what the service said."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfold.messages import Usage
from kinfold.models.stream_decoder import MalformedStream, StreamDecoder
from kinfold.testing.api_events import timeline
from kinfold.testing.api_outcomes import Answer

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
INPUTS = st.dictionaries(st.text(max_size=6), JSON, max_size=4)
BLOCKS = st.lists(
    st.builds(lambda text: {"type": "text", "text": text}, st.text(min_size=1, max_size=20))
    | st.builds(lambda value: {"type": "tool_use", "id": "toolu_x", "name": "bash", "input": value}, INPUTS)
    | st.builds(
        lambda text: {"type": "thinking", "thinking": text, "signature": "s"}, st.text(min_size=1, max_size=20)
    ),
    max_size=4,
)


@settings(max_examples=60, deadline=None)
@given(blocks=BLOCKS, keep=st.floats(0, 1), fragment=st.integers(1, 9))
def test_a_stream_cut_anywhere_yields_its_completed_blocks_and_nothing_else(
    blocks: list[dict[str, Any]], keep: float, fragment: int
) -> None:
    answer = Answer(blocks=tuple(blocks), fragment=fragment)
    events = timeline(answer, message_id="msg_1", model="claude-sonnet-5", prompt_tokens=3).events
    kept = events[: round(keep * len(events))]
    decoder = StreamDecoder()
    for event in kept:
        decoder.feed(json.loads(json.dumps(event)))
    stops = sum(event["type"] == "content_block_stop" for event in kept)
    reply = decoder.reply()
    assert [_wire(block.model_dump()) for block in reply.message.content] == blocks[:stops]
    assert reply.incomplete == (not any(event["type"] == "message_delta" for event in kept))


def _wire(block: dict[str, Any]) -> dict[str, Any]:
    assert block.pop("input_error", None) is None
    return block


def test_counts_of_a_cut_stream_are_the_last_ones_seen() -> None:
    answer = Answer.text("abc", usage={"cache_read_input_tokens": 50, "output_tokens": 9})
    events = timeline(answer, message_id="msg_1", model="claude-sonnet-5", prompt_tokens=3).events
    decoder = StreamDecoder()
    for event in events[:-2]:
        decoder.feed(event)
    assert decoder.reply().usage == Usage(input_tokens=3, cache_read_tokens=50, output_tokens=1)


def test_a_tool_input_that_came_whole_in_the_start_is_kept() -> None:
    decoder = StreamDecoder()
    block = {"type": "tool_use", "id": "toolu_x", "name": "bash", "input": {"command": "ls"}}
    decoder.feed({"type": "content_block_start", "index": 0, "content_block": block})
    decoder.feed({"type": "content_block_stop", "index": 0})
    assert decoder.reply().message.tool_calls[0].input == {"command": "ls"}


def test_replies_of_a_server_that_names_no_message_have_ids_of_their_own() -> None:
    assert StreamDecoder().reply().message_id != StreamDecoder().reply().message_id


@pytest.mark.parametrize("event", [None, [], "text", {"type": "message_start"}, {"type": "message_delta", "delta": 1}])
def test_what_is_no_event_is_a_malformed_stream(event: object) -> None:
    with pytest.raises(MalformedStream):
        StreamDecoder().feed(event)


def test_halves_of_a_surrogate_pair_are_joined_over_deltas_and_replaced_where_they_stand_alone() -> None:
    decoder = StreamDecoder()
    decoder.feed({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}})
    for text in ("a\ud83d", "\ude00b", "\udc00"):
        chunk, _ = decoder.feed(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}}
        )
        assert chunk is not None
        chunk.text.encode()
    decoder.feed({"type": "content_block_stop", "index": 0})
    assert decoder.reply().message.text == "a\U0001f600b\ufffd"
