"""A window of lines out of a stream of bytes, in bounded memory however long the file or a single line is."""

from __future__ import annotations

from dataclasses import dataclass, field

MAX_LINE = 2_000
"""Bytes of one line that are kept."""


@dataclass(slots=True, kw_only=True)
class Window:
    """Feed chunks, then `close`; `lines` holds those from `first` on, at most `limit` and `budget` bytes of them."""

    first: int
    """1-based."""
    limit: int
    budget: int
    lines: list[bytes] = field(default_factory=list)
    """Without line ends; a long one cut to `MAX_LINE` bytes."""
    cut: dict[int, int] = field(default_factory=dict)
    """Number of a cut line → its whole length in bytes."""
    total: int = 0
    """Lines seen so far; all of the file's after `close`."""
    crlf: int = 0
    """How many lines seen so far ended in CR LF."""
    full: bool = False
    """The window holds all that it may: more lines may follow in the file."""
    _head: bytearray = field(default_factory=bytearray)
    _length: int = 0
    _last: int = -1
    """The last byte of the line so far."""
    _used: int = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes."""
        start = 0
        while (end := chunk.find(b"\n", start)) >= 0:
            self._extend(chunk[start:end])
            self._finish()
            start = end + 1
        self._extend(chunk[start:])

    def close(self) -> None:
        """The file ended; what follows the last line end is a line, too."""
        if self._length:
            self._finish(terminated=False)

    def _extend(self, piece: bytes) -> None:
        if piece:
            room = MAX_LINE + 1 - len(self._head)
            self._head += piece[:room]
            self._length += len(piece)
            self._last = piece[-1]

    def _finish(self, *, terminated: bool = True) -> None:
        self.total += 1
        length, line = self._length, bytes(self._head)
        if terminated and length and self._last == 0x0D:
            self.crlf += 1
            length -= 1
            line = line[:length]
        self._head.clear()
        self._length, self._last = 0, -1
        if self.total >= self.first and not self.full:
            self._keep(line[:MAX_LINE], length)

    def _keep(self, line: bytes, length: int) -> None:
        size = len(line) + 8  # its number and its line end
        if self.lines and self._used + size > self.budget:
            self.full = True
            return
        self._used += size
        self.lines.append(line)
        if length > len(line):
            self.cut[self.total] = length
        self.full = len(self.lines) >= self.limit
