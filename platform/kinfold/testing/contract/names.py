"""Names are bytes: whatever a file is called, it is listed, read, renamed and removed by that name."""

from __future__ import annotations

import pytest

from kinfold.errors import PathError
from kinfold.sandbox.base import FileStat
from kinfold.sandbox.sandbox import Sandbox

__all__ = [
    "test_a_name_that_no_file_can_have_is_invalid",
    "test_a_tree_deeper_than_any_path_is_bounded_not_silent",
    "test_odd_names_go_all_the_way_round",
    "test_programs_see_odd_names_byte_for_byte",
]

ODD = [
    "-rf",
    "*",
    "$(id)",
    "...",
    " ",
    "a\nb",
    "\x1b]0;x\x07",
    "\u202eevil",
    "\udcff\udcfe",
    "x" * 255,
    "é",
    "e\u0301",
    "A",
    "a",
    "~",
    "%s",
    "\\",
    "'\"",
]


async def test_odd_names_go_all_the_way_round(sandbox: Sandbox, folder: str) -> None:
    for number, name in enumerate(ODD):
        await sandbox.write(f"{folder}/{name}", str(number).encode())
    found = (await sandbox.list(folder)).entries
    assert {entry.path.removeprefix(f"/workspace/{folder}/") for entry in found} == set(ODD)
    for number, name in enumerate(ODD):
        [stat] = await sandbox.stat([f"{folder}/{name}"])
        assert isinstance(stat, FileStat)
        assert stat.path == f"/workspace/{folder}/{name}"
        assert await sandbox.read(f"{folder}/{name}") == str(number).encode()
        await sandbox.rename(f"{folder}/{name}", f"{folder}/moved")
        await sandbox.rename(f"{folder}/moved", f"{folder}/{name}")
    assert await sandbox.remove(folder, recursive=True) == len(ODD) + 1


async def test_programs_see_odd_names_byte_for_byte(sandbox: Sandbox, folder: str) -> None:
    program = "import os, sys; sys.stdout.buffer.write(b'\\0'.join(sorted(os.listdir(b'.'))))"
    for name in ODD:
        await sandbox.write(f"{folder}/{name}", b"")
    result = await sandbox.exec(["python3", "-c", program], cwd=folder)
    assert result.stdout.split(b"\0") == sorted(name.encode("utf-8", "surrogateescape") for name in ODD)


@pytest.mark.parametrize("name", ["x" * 256, "a\0b", "\ud800", "é" * 128])
async def test_a_name_that_no_file_can_have_is_invalid(sandbox: Sandbox, folder: str, name: str) -> None:
    with pytest.raises(PathError) as caught:
        await sandbox.write(f"{folder}/{name}", b"")
    assert caught.value.reason == "invalid"


async def test_a_tree_deeper_than_any_path_is_bounded_not_silent(sandbox: Sandbox, folder: str) -> None:
    program = "import os\nfor _ in range(400):\n    os.mkdir('d' * 40); os.chdir('d' * 40)"
    assert (await sandbox.exec(["python3", "-c", program], cwd=folder)).exit_code == 0
    assert (await sandbox.list(folder, depth=1000)).truncated
    assert await sandbox.remove(folder, recursive=True) == 401
