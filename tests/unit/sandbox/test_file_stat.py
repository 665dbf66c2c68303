"""Stats are decoded by a loop of their own, made for speed: it must say exactly what the plain decoder says."""

from __future__ import annotations

import gc
from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kinfold.sandbox import replies
from kinfold.sandbox.base import FileStat
from kinfold.sandbox.file_stat import Entries, file_stat, file_stats, listed
from kinfold.sandbox.protocol import ProtocolViolation
from kinfold.sandbox.replies import Failure, Record
from kinfold.sandbox.workspace import to_text

PATHS = [f"/workspace/{number}" for number in range(4)]


def extras(has: int) -> bytes:
    """What follows a record with these bits."""
    parts = (pack("<I", 3) + b"to\xff", bytes(range(32)), pack("<Q", 7), b"\x02")
    return b"".join(part for bit, part in enumerate(parts) if has & 1 << bit)


RECORDS = st.builds(
    lambda kind, mode, size, has: b"\x01" + pack("<BIQqqQB", kind, mode, size, -1, 2, 3, has) + extras(has),
    st.integers(1, 4),
    st.integers(0, 0o7777),
    st.integers(0, 2**64 - 1),
    st.integers(0, 15),
)
FAILURES = st.builds(lambda kind: b"\x00" + pack("<Bi", kind, 2), st.integers(1, 10))
ITEMS = st.lists(st.tuples(st.binary(max_size=9), RECORDS | FAILURES), max_size=5).map(
    lambda items: pack("<I", len(items)) + b"".join(pack("<I", len(path)) + path + entry for path, entry in items)
)


def plainly(payload: bytes) -> list[FileStat | Failure] | None:
    """What the plain decoder makes of a STAT's ITEMS; None: a violation."""
    try:
        items = replies.items(payload)
    except ProtocolViolation:
        return None
    if len(items) > len(PATHS):
        return None
    return [
        file_stat(path, entry) if isinstance(entry, Record) else entry
        for path, (_, entry) in zip(PATHS, items, strict=False)
    ]


def fast(payload: bytes) -> list[FileStat | Failure] | None:
    """The same by the loop for STAT."""
    try:
        return file_stats(memoryview(payload), PATHS)
    except ProtocolViolation:
        return None


@given(ITEMS)
def test_stats_are_what_the_plain_decoder_says(payload: bytes) -> None:
    expected = plainly(payload)
    assert fast(payload) == expected
    assert (expected is None) == (payload[0] > len(PATHS))


@settings(max_examples=400)
@given(ITEMS, st.data())
def test_broken_items_are_a_violation_for_both(payload: bytes, data: st.DataObject) -> None:
    broken = bytearray(payload)
    for _ in range(data.draw(st.integers(1, 3))):
        broken[data.draw(st.integers(0, len(broken) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(broken[: data.draw(st.integers(0, len(broken)))]) + data.draw(st.binary(max_size=3))
    assert fast(cut) == plainly(cut)


def leads_out(path: bytes) -> bool:
    """Whether it is not a path beneath."""
    return not path or b"\0" in path or any(part in (b"", b".", b"..") for part in path.split(b"/"))


LISTED = st.lists(
    st.tuples(
        st.lists(st.sampled_from([b"a", b"..", b".", b"/", b".x", b"\xff", b"\0"]), max_size=5).map(b"".join),
        RECORDS | FAILURES,
    ),
    max_size=3,
).map(lambda items: pack("<I", len(items)) + b"".join(pack("<I", len(path)) + path + entry for path, entry in items))


@settings(max_examples=300)
@given(LISTED, st.data())
def test_a_listing_is_what_the_plain_decoder_says_and_never_leads_out(payload: bytes, data: st.DataObject) -> None:
    if data.draw(st.booleans()):
        payload = payload[: data.draw(st.integers(0, len(payload)))] + data.draw(st.binary(max_size=2))
    plain: list[tuple[bytes, Record | Failure]] | None
    try:
        plain = replies.items(payload)
    except ProtocolViolation:
        plain = None
    if plain is None or any(leads_out(path) for path, _ in plain):
        with pytest.raises(ProtocolViolation):
            listed(payload)
        return
    entries = Entries("/workspace")
    entries.add(listed(payload))
    expected = {to_text(path): entry for path, entry in plain if isinstance(entry, Record)}
    assert dict(entries) == {name: file_stat(f"/workspace/{name}", entry) for name, entry in expected.items()}
    assert len(entries) == len(expected)


def test_what_is_kept_of_a_listing_is_nothing_that_the_garbage_collector_goes_over() -> None:
    entry = b"\x01" + pack("<BIQqqQB", 1, 0o644, 5, -1, 2, 3, 0)
    found = listed(pack("<II", 1, 1) + b"a" + entry)
    gc.collect()
    assert not gc.is_tracked(found[0][1])


def test_a_record_becomes_a_stat_with_everything_that_came() -> None:
    record = Record("symlink", 0o777, 1, 2, 3, 4, b"to\xff", "ab", 5, "file")
    stat = file_stat("/workspace/x", record)
    assert stat == FileStat(
        path="/workspace/x",
        type="symlink",
        mode=0o777,
        size=1,
        mtime_ns=2,
        ctime_ns=3,
        inode=4,
        target="to\udcff",
        sha256="ab",
        entries=5,
        target_type="file",
    )
    with pytest.raises(AttributeError):
        stat.size = 2  # type: ignore[misc]
