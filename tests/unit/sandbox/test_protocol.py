"""The frame format: byte for byte as the golden frames, and total on whatever arrives."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfold.sandbox import encode, protocol, replies
from kinfold.sandbox.collect import Answer, FileBytes, KeptBytes, ListItems, Plain, StatItems, Written
from kinfold.sandbox.output import STREAM_WINDOW, ExecAnswer, HeadAndTail, StreamAnswer
from kinfold.sandbox.protocol import HEADER, MAX_PAYLOAD, FrameSplitter, ProtocolViolation, Reply
from kinfold.sandbox.stdin import StdinFeed

DECODERS: list[Callable[[bytes], Any]] = [
    replies.failure,
    replies.nothing,
    replies.echo,
    replies.hello,
    replies.started,
    replies.window,
    replies.output,
    replies.end,
    replies.items,
    replies.record,
    replies.digest,
    replies.listing_end,
    replies.number32,
    replies.number64,
    replies.killed,
    replies.owner_ends,
    replies.usage,
    replies.execs,
    replies.kept_end,
    replies.egress_ready,
    replies.egress_stream,
    replies.egress_bytes,
    replies.egress_room,
]
Frame = tuple[int, int, bytes]


def split(data: bytes, step: int = MAX_PAYLOAD) -> tuple[list[Frame], FrameSplitter]:
    """All whole frames in `data`, fed in pieces."""
    splitter = FrameSplitter()
    frames: list[Frame] = []
    for at in range(0, len(data), step):
        splitter.feed(
            data[at : at + step], lambda kind, call_id, payload: frames.append((kind, call_id, bytes(payload)))
        )
    return frames, splitter


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: decoder.__name__)
@given(payload=st.binary(max_size=600))
def test_a_decoder_gives_a_value_or_a_violation(decoder: Callable[[bytes], Any], payload: bytes) -> None:
    try:
        decoder(payload)
    except ProtocolViolation:
        pass


@pytest.mark.parametrize("decoder", [replies.items, replies.owner_ends, replies.execs, replies.end])
def test_an_announced_count_allocates_nothing(decoder: Callable[[bytes], Any]) -> None:
    payload = b"\x01\x00" + b"\xff" * 60
    tracemalloc.start()
    try:
        with pytest.raises(ProtocolViolation):
            decoder(payload)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@settings(max_examples=300)
@given(st.binary(max_size=2000), st.integers(1, 700))
def test_the_splitter_gives_frames_or_a_violation_on_any_bytes(data: bytes, step: int) -> None:
    try:
        frames, splitter = split(data, step)
    except ProtocolViolation:
        return
    assert sum(16 + len(payload) for _, _, payload in frames) + splitter.pending == len(data)


@given(
    st.lists(st.tuples(st.sampled_from(list(Reply)), st.integers(1, 2**64 - 1), st.binary(max_size=300)), max_size=12),
    st.integers(1, 500),
)
def test_frames_survive_any_cutting(frames: list[tuple[Reply, int, bytes]], step: int) -> None:
    data = b"".join(protocol.frame(kind, call_id, payload) for kind, call_id, payload in frames)
    assert split(data, step)[0] == [(int(kind), call_id, payload) for kind, call_id, payload in frames]


def test_the_largest_frames_pass_through_a_buffer_that_holds_few_of_them() -> None:
    payloads = [bytes([number]) * MAX_PAYLOAD for number in range(9)]
    data = b"".join(protocol.frame(Reply.DATA, 7, payload) for payload in payloads)
    assert [payload for _, _, payload in split(data, 100_000)[0]] == payloads


@pytest.mark.parametrize(
    "header",
    [
        HEADER.pack(MAX_PAYLOAD + 1, Reply.DATA, 0, 0, 1),
        HEADER.pack(2**32 - 1, Reply.DATA, 0, 0, 1),
        HEADER.pack(0, Reply.DATA, 1, 0, 1),
        HEADER.pack(0, Reply.DATA, 0, 1, 1),
        HEADER.pack(0, Reply.DATA, 0, 0, 0),
        HEADER.pack(0, 0x4E, 0, 0, 1),
        HEADER.pack(0, 0x10, 0, 0, 1),
    ],
    ids=["over the limit", "huge", "padding", "wide padding", "id zero", "unknown type", "a request"],
)
def test_an_illegal_header_is_refused_before_its_payload_arrives(header: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        split(header)


RECORD = b"\x01" + (0o644).to_bytes(4, "little") + (5).to_bytes(8, "little") + bytes(24)


@pytest.mark.parametrize(
    ("decoder", "payload"),
    [
        (replies.failure, b"\x0b" + bytes(4) + bytes(4)),
        (replies.failure, b"\x01" + b"\xff" * 4 + bytes(4)),
        (replies.failure, b"\x01" + bytes(4) + (1025).to_bytes(4, "little") + bytes(1025)),
        (replies.failure, b"\x01" + bytes(4) + bytes(4) + b"x"),
        (replies.nothing, b"x"),
        (replies.window, b"\x01" + bytes(8)),
        (replies.output, b"\x03" + bytes(8)),
        (replies.output, b"\x01" + bytes(7)),
        (replies.record, b"\x05" + RECORD[1:] + b"\x00"),
        (replies.record, RECORD + b"\x10"),
        (replies.record, RECORD + b"\x08\x09"),
        (replies.record, b"\x01" + (0o10000).to_bytes(4, "little") + RECORD[5:] + b"\x00"),
        (replies.digest, b"\x02"),
        (replies.kept_end, b"\x04" + bytes(8)),
    ],
)
def test_a_value_out_of_its_range_is_a_violation(decoder: Callable[[bytes], Any], payload: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        decoder(payload)


def test_words_of_the_supervisor_cannot_move_a_terminal() -> None:
    payload = b"\x02" + bytes(4) + (6).to_bytes(4, "little") + b"\x1b[2J\r\n"
    assert replies.failure(payload).message.isprintable()


@given(st.lists(st.binary(max_size=200), max_size=50), st.integers(1, 10), st.integers(1, 500))
def test_stat_batches_keep_all_paths_in_order(paths: list[bytes], count: int, size: int) -> None:
    batches = list(encode.stat_batches(paths, count, size))
    assert [path for batch in batches for path in batch] == paths
    assert all(len(batch) <= count for batch in batches)


def exec_answer() -> ExecAnswer:
    return ExecAnswer(100, StdinFeed(b"x", stays_open=False), lambda: None)


def stream_answer() -> StreamAnswer:
    return StreamAnswer(100, StdinFeed(b"", stays_open=True), lambda: None)


ANSWERS: dict[str, Callable[[], Answer[Any]]] = {
    "exec": exec_answer,
    "stream": stream_answer,
    "stat": lambda: StatItems(["a", "b", "c"]),
    "list": lambda: ListItems(3),
    "read": lambda: FileBytes(50),
    "write": lambda: Written(50, digest=True),
    "kept": lambda: KeptBytes(1, 0, 50),
    "plain": lambda: Plain(replies.usage),
}
WORDS = st.binary(max_size=80) | st.builds(
    lambda stream, offset, data: bytes([stream]) + offset.to_bytes(8, "little") + data,
    st.integers(0, 3),
    st.integers(0, 200) | st.integers(0, 2**64 - 1),
    st.binary(max_size=60),
)


@pytest.mark.parametrize("name", ANSWERS)
@given(frames=st.lists(st.tuples(st.sampled_from(list(Reply)[2:]), WORDS), max_size=6), last=WORDS)
def test_an_answer_takes_any_frames_or_calls_them_a_violation(
    name: str, frames: list[tuple[Reply, bytes]], last: bytes
) -> None:
    answer = ANSWERS[name]()
    try:
        for kind, payload in frames:
            answer.accept(kind, memoryview(payload))
        answer.finish(memoryview(last))
    except ProtocolViolation:
        pass
    if isinstance(answer, StreamAnswer):
        waiting = [answer.queue.take() for _ in range(len(answer.queue))]
        assert sum(len(piece.data) for piece in waiting) <= 2 * STREAM_WINDOW
    elif isinstance(answer, ExecAnswer):
        assert sum(len(piece.data) for piece in answer.replay()) <= 2 * 100


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, 60))
def test_head_and_tail_are_the_first_and_last_bytes(pieces: list[bytes], keep: int) -> None:
    kept = HeadAndTail(keep)
    for piece in pieces:
        kept.add(piece, gap=False)
    everything = b"".join(pieces)
    data, head = kept.result(len(everything))
    if len(everything) <= keep:
        assert (data, head) == (everything, len(everything))
    else:
        assert head == (keep + 1) // 2
        assert data == everything[:head] + everything[len(everything) - keep // 2 :]
