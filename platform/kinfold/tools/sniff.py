"""What kind of bytes a file begins with: text, or a guess at the type of what is not."""

from __future__ import annotations

PNG = b"\x89PNG\r\n\x1a\n"
JPEG = b"\xff\xd8\xff"
SNIFFED = 4_096
"""Bytes from the start that decide."""

_MAGIC: tuple[tuple[int, bytes, str], ...] = (
    (0, PNG, "PNG image"),
    (0, JPEG, "JPEG image"),
    (0, b"GIF8", "GIF image"),
    (8, b"WEBP", "WebP image"),
    (0, b"BM", "BMP image"),
    (0, b"%PDF-", "PDF document"),
    (0, b"PK\x03\x04", "ZIP archive (also jar, docx, xlsx, whl)"),
    (0, b"PK\x05\x06", "empty ZIP archive"),
    (0, b"\x1f\x8b", "gzip data"),
    (0, b"BZh", "bzip2 data"),
    (0, b"\xfd7zXZ\x00", "xz data"),
    (0, b"\x28\xb5\x2f\xfd", "Zstandard data"),
    (0, b"7z\xbc\xaf\x27\x1c", "7-Zip archive"),
    (257, b"ustar", "tar archive"),
    (0, b"\x7fELF", "ELF program or library"),
    (0, b"MZ", "Windows program"),
    (0, b"\xca\xfe\xba\xbe", "Java class or Mach-O program"),
    (0, b"\xcf\xfa\xed\xfe", "Mach-O program"),
    (0, b"\x00asm", "WebAssembly module"),
    (0, b"SQLite format 3\x00", "SQLite database"),
    (4, b"ftyp", "MP4 or similar media"),
    (0, b"OggS", "Ogg media"),
    (0, b"ID3", "MP3 audio"),
    (0, b"RIFF", "RIFF media"),
    (0, b"\xff\xfe\x00\x00", "UTF-32 text"),
    (0, b"\xff\xfe", "UTF-16 text (iconv -f UTF-16 -t UTF-8 converts it)"),
    (0, b"\xfe\xff", "UTF-16 text (iconv -f UTF-16 -t UTF-8 converts it)"),
    (0, b"PAR1", "Parquet data"),
)
_TEXT_CONTROLS = frozenset(b"\t\n\r\f\v\b\x1b")


def is_text(head: bytes) -> bool:
    """Whether bytes that begin so are text: no NUL, and few control characters."""
    if head.startswith((PNG, JPEG, b"%PDF-")) or b"\0" in head:
        return False
    controls = sum(byte < 0x20 and byte not in _TEXT_CONTROLS for byte in head)
    return controls * 20 <= len(head)


def kind(head: bytes) -> str:
    """What a binary file seems to be."""
    for offset, magic, name in _MAGIC:
        if head.startswith(magic, offset):
            return name
    return "binary data of an unknown kind"


def hex_lines(data: bytes, width: int = 16) -> str:
    """Offset, hex and printable characters, `width` bytes a line."""
    rows = []
    for offset in range(0, len(data), width):
        row = data[offset : offset + width]
        seen = "".join(chr(byte) if 0x20 <= byte < 0x7F else "." for byte in row)
        rows.append(f"{offset:08x}  {row.hex(' '):<{width * 3 - 1}}  {seen}")
    return "\n".join(rows)
