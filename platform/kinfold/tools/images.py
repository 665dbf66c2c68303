"""Checks that a picture is one before a model is shown it.

A service refuses a whole request for one broken image, and the image would stay in the history: a file that only begins
like a PNG must never get there.
"""

from __future__ import annotations

import zlib
from typing import Literal

from kinfold.tools.sniff import JPEG, PNG

MAX_IMAGE_BYTES = 3_500_000
"""Of the file; base64 adds a third, and the service takes 5 MB."""
MAX_SIDE = 8_000
"""Pixels; the service takes no longer side."""

MediaType = Literal["image/png", "image/jpeg"]


def media_type(head: bytes) -> MediaType | None:
    """Which of the two kinds a file that begins so claims to be."""
    if head.startswith(PNG):
        return "image/png"
    return "image/jpeg" if head.startswith(JPEG) else None


def dimensions(data: bytes, media: MediaType) -> tuple[int, int]:
    """Width and height of a picture that is whole. Raises `ValueError` saying what is wrong with it."""
    width, height = _png(data) if media == "image/png" else _jpeg(data)
    if not (0 < width <= MAX_SIDE and 0 < height <= MAX_SIDE):
        raise ValueError(f"it measures {width} × {height} pixels; 1 to {MAX_SIDE} a side can be shown")
    return width, height


def _png(data: bytes) -> tuple[int, int]:
    """Walk the chunks, check every CRC and that the pixels unpack."""
    at, first, size, pixels = len(PNG), True, (0, 0), zlib.decompressobj()
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + length]
        crc = data[at + 8 + length : at + 12 + length]
        if len(body) != length or zlib.crc32(kind + body) != int.from_bytes(crc, "big"):
            raise ValueError("a chunk of the PNG is damaged")
        if first and (kind != b"IHDR" or length != 13):
            raise ValueError("the PNG has no header")
        if first:
            size, first = (int.from_bytes(body[:4], "big"), int.from_bytes(body[4:8], "big")), False
        if kind == b"IDAT":
            _unpack(pixels, body)
        if kind == b"IEND":
            if not pixels.eof:
                raise ValueError("the PNG has no complete pixels")
            return size
        at += 12 + length
    raise ValueError("the PNG ends too early")


def _unpack(stream: zlib._Decompress, body: bytes) -> None:
    """Run the decompressor over `body`, keeping nothing: 64 KiB at a time, whatever the pixels blow up to."""
    try:
        while body and not stream.eof:
            stream.decompress(body, 65_536)
            body = stream.unconsumed_tail
    except zlib.error as error:
        raise ValueError("the pixels of the PNG are damaged") from error


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
            return int.from_bytes(data[at + 7 : at + 9], "big"), int.from_bytes(data[at + 5 : at + 7], "big")
        if length < 2:
            break
        at += 2 + length
    raise ValueError("the JPEG has no frame header")
