"""How a name from a workspace is shown: names are hostile bytes, and one name must never look like two lines."""

from __future__ import annotations


def shown(path: str) -> str:
    """`path` on one line: control, bidirectional and non-UTF-8 characters as escapes, everything else as it is."""
    if path.isascii() and path.isprintable() and "\\" not in path:
        return path
    return "".join(_escaped(char) for char in path)


def _escaped(char: str) -> str:
    code = ord(char)
    if 0xDC80 <= code <= 0xDCFF:  # a byte that was not UTF-8 (surrogateescape)
        return f"\\x{code - 0xDC00:02x}"
    if char == "\\":
        return "\\\\"
    return char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode("ascii")
