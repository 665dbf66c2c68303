"""Reading, writing and editing files, on real ones."""

from __future__ import annotations

import base64
import hashlib
import struct
import zlib
from pathlib import Path

import pytest
from tests.unit.tools.bench import Bench, text_of

from kinfold.messages import ImageBlock
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tools.registry import SHIPPED

pytestmark = pytest.mark.anyio


def png(width: int = 2, height: int = 2, *, rows: int | None = None) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = zlib.compress(b"".join(b"\0" + b"\x10\x20\x30" * width for _ in range(height if rows is None else rows)))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


def jpeg(width: int = 3, height: int = 4) -> bytes:
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 11, 8, height, width, 1) + b"\x01\x11\x00"
    return b"\xff\xd8" + b"\xff\xe0\x00\x04ab" + frame + b"\xff\xda\x00\x02" + b"scan" + b"\xff\xd9"


# --- read_file -----------------------------------------------------------------------------------------------------


async def test_text_comes_with_line_numbers_and_its_version_is_remembered(real: Bench, sandbox: Sandbox) -> None:
    data = "one\n\n drei ü\nno newline at the end".encode()
    await sandbox.write("a.txt", data)
    text = await real.text("read_file", path="a.txt")
    assert text == "     1\tone\n     2\t\n     3\t drei ü\n     4\tno newline at the end"
    assert real.state.read_versions == {"/workspace/a.txt": hashlib.sha256(data).hexdigest()}


async def test_a_window_says_what_it_shows_and_how_to_go_on(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.write("a.txt", b"".join(b"line %d\n" % n for n in range(1, 11)))
    assert await real.text("read_file", path="a.txt", offset=3, limit=2) == (
        "     3\tline 3\n     4\tline 4\n(lines 3–4 of 10 shown; go on with offset=5)"
    )
    assert await real.text("read_file", path="a.txt", offset=10) == "    10\tline 10\n(lines 10–10 of 10 shown)"
    assert "has 10 lines; line 11 is behind its end" in await real.refusal("read_file", path="a.txt", offset=11)
    assert "`offset` should be greater than or equal to 1" in await real.refusal("read_file", path="a.txt", offset=0)


async def test_a_large_file_is_shown_in_parts_that_are_never_spilled(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.write("a.txt", b"".join(b"%06d %s\n" % (n, b"x" * 90) for n in range(5_000)))
    text = await real.text("read_file", path="a.txt")
    assert len(text.encode()) < 32_768
    assert real.state.spills == 0
    assert "of 5000 shown; go on with offset=" in text


async def test_a_very_long_line_is_cut_with_its_length(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.write("a.txt", b"short\n" + "é".encode() * 500_000 + b"\nlast\n")
    text = await real.text("read_file", path="a.txt")
    assert "[… cut; the line has 1,000,000 bytes]" in text
    assert text.endswith("     3\tlast")
    assert "UTF-8" not in text


async def test_an_empty_file_is_called_empty_and_bad_bytes_are_called_bad(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.write("empty", b"")
    assert await real.text("read_file", path="empty") == "/workspace/empty is empty."
    await sandbox.write("latin", "größe\n".encode("latin-1"))
    text = await real.text("read_file", path="latin")
    assert "gr\ufffd\ufffde" in text
    assert "not all of it is UTF-8" in text


async def test_a_directory_is_listed(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.write("d/x.txt", b"abc")
    await sandbox.symlink("d", "link")
    assert "x.txt  3 bytes" in await real.text("read_file", path="d")
    assert "x.txt  3 bytes" in await real.text("read_file", path="link")


@pytest.mark.parametrize(("data", "media", "size"), [(png(), "image/png", "2 × 2"), (jpeg(), "image/jpeg", "3 × 4")])
async def test_a_picture_is_shown(real: Bench, sandbox: Sandbox, data: bytes, media: str, size: str) -> None:
    await sandbox.write("p", data)
    outcome = await real.answer(SHIPPED, "read_file", {"path": "p"})
    assert not outcome.is_error
    assert f"{media}, {size} pixels, {len(data)} bytes" in text_of(outcome)
    picture = outcome.content[1]
    assert isinstance(picture, ImageBlock)
    assert picture.media_type == media
    assert base64.b64decode(picture.data) == data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"\x7fELF\x02" + bytes(100), "ELF program or library, 105 bytes"),
        (b"\x00\x01\x02", "binary data of an unknown kind, 3 bytes"),
        (b"%PDF-1.7\nx", "PDF document"),
        ("héllo".encode("utf-16"), "UTF-16 text"),
        (png()[:-20], "PNG image, 53 bytes; cannot be shown: a chunk"),
        (png()[:40] + b"\xff" + png()[41:], "damaged"),
        (png(9_000, 1), "it measures 9000 × 1 pixels"),
        (png(2, 2, rows=1_000_000), "holds more pixels than its header says"),
        (png(2, 2)[:33] + png(2, 2)[-12:], "has no complete pixels"),
        (jpeg()[:-2], "the JPEG ends too early"),
        (b"\xff\xd8\xff\xe0", "the JPEG has no frame header"),
        (png()[:8] + b"\0" * 3_500_000, "too large to be shown"),
    ],
    ids=["elf", "unknown", "pdf", "utf16", "cut", "damaged", "wide", "bomb", "nopixels", "cutjpeg", "noframe", "large"],
)
async def test_of_any_other_file_type_size_and_first_bytes_are_told(
    real: Bench, sandbox: Sandbox, data: bytes, words: str
) -> None:
    await sandbox.write("f", data)
    outcome = await real.answer(SHIPPED, "read_file", {"path": "f"})
    assert not outcome.is_error
    assert len(outcome.content) == 1
    text = text_of(outcome)
    assert words in text
    assert f"00000000  {data[:2].hex(' ')}" in text


@pytest.mark.parametrize("path", ["nowhere", "../x", "/etc/passwd", "", "a\0b", "escape", "fifo"])
async def test_what_cannot_be_read_is_refused_at_once(real: Bench, sandbox: Sandbox, path: str) -> None:
    await sandbox.exec("ln -s /etc/passwd escape; mkfifo fifo")
    await real.refusal("read_file", path=path)


# --- write_file ----------------------------------------------------------------------------------------------------


async def test_a_new_file_is_made_with_its_directories(real: Bench, sandbox: Sandbox) -> None:
    assert await real.text("write_file", path="a/b/c.txt", content="äh") == "Created /workspace/a/b/c.txt (3 bytes)."
    assert await sandbox.read("a/b/c.txt") == "äh".encode()
    assert real.state.written == {"/workspace/a/b/c.txt"}
    assert await real.text("write_file", path="/workspace/a/b/c.txt", content="") == (
        "Replaced /workspace/a/b/c.txt (0 bytes)."
    )


async def test_a_file_that_was_never_read_is_not_overwritten(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.write("a.txt", b"somebody's")
    assert "exists, and you have not read it" in await real.refusal("write_file", path="a.txt", content="mine")
    assert await sandbox.read("a.txt") == b"somebody's"
    await real.text("read_file", path="a.txt", limit=1)
    await real.text("write_file", path="a.txt", content="mine")
    assert await sandbox.read("a.txt") == b"mine"


async def test_a_siblings_change_is_never_overwritten_unseen(real: Bench, other: Bench, sandbox: Sandbox) -> None:
    await real.text("write_file", path="a.txt", content="first")
    await other.text("read_file", path="a.txt")
    await other.text("write_file", path="a.txt", content="second")
    refused = await real.refusal("write_file", path="a.txt", content="third")
    assert "was changed or removed since you last read or wrote it" in refused
    assert await sandbox.read("a.txt") == b"second"
    await real.text("read_file", path="a.txt")
    await real.text("write_file", path="a.txt", content="third")


async def test_a_file_that_was_removed_meanwhile_is_not_made_anew_unseen(real: Bench, sandbox: Sandbox) -> None:
    await real.text("write_file", path="a.txt", content="first")
    await sandbox.remove("a.txt")
    await real.refusal("write_file", path="a.txt", content="second")
    await real.text("write_file", path="a.txt", content="third")


@pytest.mark.parametrize("path", ["../x", "/etc/x", "d", "", "dangling/../../x"])
async def test_nothing_is_written_outside_or_over_a_directory(
    real: Bench, sandbox: Sandbox, tmp_path: Path, path: str
) -> None:
    await sandbox.make_dir("d")
    await real.refusal("write_file", path=path, content="x")
    assert not (tmp_path / "x").exists()


async def test_a_link_that_leads_out_is_not_written_through(real: Bench, sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "workspace" / "out").symlink_to(tmp_path / "victim")
    await real.refusal("write_file", path="out", content="x")
    assert not (tmp_path / "victim").exists()


# --- edit_file -----------------------------------------------------------------------------------------------------


async def edit(bench: Bench, old: str, new: str, *, path: str = "a.txt", replace_all: bool = False) -> str:
    return await bench.text("edit_file", path=path, old_string=old, new_string=new, replace_all=replace_all)


async def no_edit(bench: Bench, old: str, new: str, *, path: str = "a.txt", replace_all: bool = False) -> str:
    return await bench.refusal("edit_file", path=path, old_string=old, new_string=new, replace_all=replace_all)


async def has_read(bench: Bench, data: bytes) -> None:
    await bench.sandbox.write("a.txt", data)
    await bench.text("read_file", path="a.txt")


async def test_an_exact_piece_is_replaced_and_shown_in_its_place(real: Bench, sandbox: Sandbox) -> None:
    await has_read(real, b"".join(b"%d\n" % n for n in range(1, 10)))
    assert await edit(real, "5\n", "five\nV\n") == (
        "Edited /workspace/a.txt:\n     3\t3\n     4\t4\n     5\tfive\n     6\tV\n     7\t6\n     8\t7\n     9\t8"
    )
    assert await sandbox.read("a.txt") == b"1\n2\n3\n4\nfive\nV\n6\n7\n8\n9\n"
    await edit(real, "V", "v")


async def test_what_stands_twice_is_replaced_only_when_all_are_meant(real: Bench, sandbox: Sandbox) -> None:
    await has_read(real, b"x = 1\ny = 1\n")
    assert "stands 2 times in /workspace/a.txt (lines 1, 2)" in await no_edit(real, "= 1", "= 2")
    assert await sandbox.read("a.txt") == b"x = 1\ny = 1\n"
    assert "Edited /workspace/a.txt 2 times" in await edit(real, "= 1", "= 2", replace_all=True)
    assert await sandbox.read("a.txt") == b"x = 2\ny = 2\n"


@pytest.mark.parametrize("old", ["one\ntwo", "one\r\ntwo"])
async def test_line_ends_stay_as_the_file_has_them(real: Bench, sandbox: Sandbox, old: str) -> None:
    await has_read(real, b"one\r\ntwo\r\nthree\r\n")
    await edit(real, old, "1\n2\n2b")
    assert await sandbox.read("a.txt") == b"1\r\n2\r\n2b\r\nthree\r\n"
    await edit(real, "three", "3\n4")
    assert await sandbox.read("a.txt") == b"1\r\n2\r\n2b\r\n3\r\n4\r\n"


async def test_a_file_of_unix_line_ends_gets_no_others(real: Bench, sandbox: Sandbox) -> None:
    await has_read(real, b"one\ntwo\nodd\r\nthree\n")
    await edit(real, "two", "2\n2b")
    assert await sandbox.read("a.txt") == b"one\n2\n2b\nodd\r\nthree\n"


async def test_a_stale_view_is_refused_and_nothing_is_lost(real: Bench, sandbox: Sandbox) -> None:
    await has_read(real, b"one\n")
    await sandbox.write("a.txt", b"one\nmore\n")
    assert "was changed since you last read or wrote it" in await no_edit(real, "one", "two")
    assert await sandbox.read("a.txt") == b"one\nmore\n"
    await real.text("read_file", path="a.txt")
    await edit(real, "one", "two")


async def test_a_file_must_be_read_before_it_is_edited(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.write("a.txt", b"one\n")
    assert "you have not read /workspace/a.txt" in await no_edit(real, "one", "two")
    assert "no such file" in await no_edit(real, "one", "two", path="b.txt")


@pytest.mark.parametrize(
    ("old", "words"),
    [
        ("def  run():", "the nearest is line 2: 'def run(self):'"),
        ("def run(self):", "line 2 differs in white space only"),
        ("    def run(self):\n        return 2", "line 2 is its first line, but what follows differs"),
        ("zzz qqq", "no line is like its first"),
        ("\n\n\n", "white space only"),
    ],
)
async def test_what_is_not_there_gets_a_hint_to_the_nearest(real: Bench, old: str, words: str) -> None:
    await has_read(real, b"class A:\n    def run(self):\n        return 1\n")
    if old == "def run(self):":
        old = "\tdef run(self):"
    assert words in await no_edit(real, old, "x")


async def test_an_edit_that_changes_nothing_or_damages_the_file_is_refused(real: Bench) -> None:
    await has_read(real, "größe\n".encode("latin-1"))
    assert "is not UTF-8" in await no_edit(real, "r", "x")
    assert "nothing would change" in await no_edit(real, "r", "r")
    assert "`old_string` must not be empty" in await no_edit(real, "", "x")


async def test_the_mode_of_a_script_survives_an_edit(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.write("a.txt", b"#!/bin/sh\necho 1\n", mode=0o755)
    await real.text("read_file", path="a.txt")
    await edit(real, "1", "2")
    (stat,) = await sandbox.stat(["a.txt"])
    assert not isinstance(stat, Exception)
    assert stat.mode == 0o755
