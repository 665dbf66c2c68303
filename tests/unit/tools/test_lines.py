"""The window of lines, against the obvious way to cut a text into lines."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kinfold.tools.lines import MAX_LINE, Window

PIECES = st.lists(st.sampled_from([b"a", b"\n", b"\r", b"\r\n", b"\n\n", "é".encode(), b"word " * 30]), max_size=40)


@settings(deadline=None)
@given(pieces=PIECES, first=st.integers(1, 5), limit=st.integers(1, 5))
def test_however_a_text_is_chunked_its_lines_are_the_same(pieces: list[bytes], first: int, limit: int) -> None:
    window = Window(first=first, limit=limit, budget=1_000_000)
    for piece in pieces:
        window.feed(piece)
    window.close()
    text = b"".join(pieces)
    lines = text.split(b"\n")
    if not lines[-1]:
        lines.pop()
    terminated = text.count(b"\n")
    expected = [line.removesuffix(b"\r") if number < terminated else line for number, line in enumerate(lines)]
    assert window.total == len(expected)
    assert window.lines == expected[first - 1 : first - 1 + limit]


@settings(deadline=None)
@given(length=st.integers(1, 3 * MAX_LINE), chunk=st.integers(1, 700))
def test_a_long_line_is_cut_and_its_length_is_true(length: int, chunk: int) -> None:
    window = Window(first=1, limit=9, budget=1_000_000)
    data = b"x" * length + b"\r\nnext"
    for start in range(0, len(data), chunk):
        window.feed(data[start : start + chunk])
    window.close()
    assert window.lines == [b"x" * min(length, MAX_LINE), b"next"]
    assert window.cut == ({1: length} if length > MAX_LINE else {})


def test_a_window_is_full_before_its_budget_is_passed() -> None:
    window = Window(first=1, limit=100, budget=100)
    window.feed(b"0123456789\n" * 50)
    window.close()
    assert sum(len(line) + 8 for line in window.lines) <= 100
    assert window.full
    assert window.total == 50
