"""Checks that a picture is one before a model is shown it.

A service refuses a whole request for one broken image, and the image would stay in the history: a file that only begins
like a PNG must never get there.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import Literal

from kinfold.tools.sniff import JPEG, PNG

MAX_IMAGE_BYTES = 3_500_000
"""Of the file; base64 adds a third, and the service takes 5 MB."""
MAX_SIDE = 8_000
"""Pixels; the service takes no longer side."""

_CHANNELS = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}
"""By the colour type of a PNG."""

MediaType = Literal["image/png", "image/jpeg"]


def media_type(head: bytes) -> MediaType | None:
    """Which of the two kinds a file that begins so claims to be."""
    if head.startswith(PNG):
        return "image/png"
    return "image/jpeg" if head.startswith(JPEG) else None


def dimensions(data: bytes, media: MediaType) -> tuple[int, int]:
    """Width and height of a picture that is whole. Raises `ValueError` saying what is wrong with it.

    Unpacks all pixels of a PNG, which takes time: call it in a thread.
    """
    return _png(data) if media == "image/png" else _jpeg(data)


def _checked(width: int, height: int) -> tuple[int, int]:
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        raise ValueError(f"it measures {width} × {height} pixels; 1 to {MAX_SIDE} a side can be shown")
    return width, height


def _png(data: bytes) -> tuple[int, int]:
    """Walk the chunks, check every CRC and that the pixels unpack to what the header says."""
    chunks = _chunks(data)
    kind, header = next(chunks, (b"", b""))
    if kind != b"IHDR" or len(header) != 13:
        raise ValueError("the PNG has no header")
    size = _checked(int.from_bytes(header[:4], "big"), int.from_bytes(header[4:8], "big"))
    pixels = _Pixels(_unpacked_bytes(*size, depth=header[8], colour=header[9]))
    for kind, body in chunks:
        if kind == b"IDAT":
            pixels.feed(body)
        if kind == b"IEND":
            pixels.check_whole()
            return size
    raise ValueError("the PNG ends too early")


def _chunks(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = len(PNG)
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        crc = data[at + 8 + length : at + 12 + length]
        if len(crc) != 4 or zlib.crc32(kind + body) != int.from_bytes(crc, "big"):
            raise ValueError("a chunk of the PNG is damaged")
        yield kind, body
        at += 12 + length


def _unpacked_bytes(width: int, height: int, *, depth: int, colour: int) -> int:
    """The most that the pixels may unpack to: rows with a filter byte each, and room for interlacing's extra rows."""
    channels = _CHANNELS.get(colour)
    if channels is None or depth not in (1, 2, 4, 8, 16):
        raise ValueError("the header of the PNG is damaged")
    row = 1 + (width * depth * channels + 7) // 8
    return row * height + 16 * (width + height) + 1_024


class _Pixels:
    """Unpacks a PNG's pixels and keeps nothing, 64 KiB at a time: a few bytes may stand for gigabytes."""

    def __init__(self, limit: int) -> None:
        self._stream = zlib.decompressobj()
        self._left = limit

    def feed(self, body: bytes) -> None:
        try:
            while body and not self._stream.eof:
                self._left -= len(self._stream.decompress(body, 65_536))
                body = self._stream.unconsumed_tail
                if self._left < 0:
                    raise ValueError("the PNG holds more pixels than its header says")
        except zlib.error as error:
            raise ValueError("the pixels of the PNG are damaged") from error

    def check_whole(self) -> None:
        if not self._stream.eof:
            raise ValueError("the PNG has no complete pixels")


def _jpeg(data: bytes) -> tuple[int, int]:
    """Walk the segments to the frame header; the end marker must be there."""
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            raise ValueError("the JPEG has no frame header")
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
            continue
        length = int.from_bytes(data[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if at + 9 > len(data) or data.rfind(b"\xff\xd9") < at:
                raise ValueError("the JPEG ends too early")
            return _checked(int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big"))
        if length < 2:
            break
        at += 2 + length
    raise ValueError("the JPEG has no frame header")
