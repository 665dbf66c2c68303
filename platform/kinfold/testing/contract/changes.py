"""Writing, renaming, removing: in one step, only where it was meant, and never over what somebody else did."""

from __future__ import annotations

import anyio
import pytest

from kinfold.errors import PathError
from kinfold.sandbox.base import FileStat
from kinfold.sandbox.sandbox import Sandbox


async def _mode(sandbox: Sandbox, path: str) -> int:
    [stat] = await sandbox.stat([path])
    assert isinstance(stat, FileStat)
    return stat.mode


async def test_a_replaced_file_keeps_its_mode(sandbox: Sandbox, folder: str) -> None:
    await sandbox.write(f"{folder}/new", b"1")
    await sandbox.write(f"{folder}/script", b"#!/bin/sh\necho hi\n", mode=0o755)
    assert await _mode(sandbox, f"{folder}/new") == 0o644
    await sandbox.write(f"{folder}/script", b"#!/bin/sh\necho ho\n")
    assert await _mode(sandbox, f"{folder}/script") == 0o755
    assert (await sandbox.exec([f"./{folder}/script"])).stdout == b"ho\n"


async def test_a_write_is_refused_where_the_file_changed_meanwhile(sandbox: Sandbox, folder: str) -> None:
    path = f"{folder}/f"
    first = await sandbox.write(path, b"one", if_match="absent")
    second = await sandbox.write(path, b"two", if_match=first.sha256)
    for stale in (first.sha256, "absent", "0" * 63 + "1"):
        with pytest.raises(PathError) as caught:
            await sandbox.write(path, b"three", if_match=stale)
        assert caught.value.reason == "conflict"
    assert await sandbox.read(path) == b"two"
    await sandbox.remove(path)
    with pytest.raises(PathError) as caught:
        await sandbox.write(path, b"three", if_match=second.sha256)
    assert caught.value.reason == "conflict"


async def test_of_many_exclusive_writers_one_wins(sandbox: Sandbox, folder: str) -> None:
    won: list[int] = []

    async def attempt(number: int) -> None:
        try:
            await sandbox.write(f"{folder}/lock", str(number).encode(), exclusive=True)
            won.append(number)
        except PathError as error:
            assert error.reason == "conflict"

    async with anyio.create_task_group() as group:
        for number in range(12):
            group.start_soon(attempt, number)
    assert len(won) == 1
    assert await sandbox.read(f"{folder}/lock") == str(won[0]).encode()


async def test_a_refused_write_leaves_nothing_behind(sandbox: Sandbox, folder: str) -> None:
    await sandbox.write(f"{folder}/f", b"old")
    with pytest.raises(PathError):
        await sandbox.write(f"{folder}/f", b"x" * 5_000_000, exclusive=True)
    with pytest.raises(PathError):
        await sandbox.write(f"{folder}/no/parents", b"x", parents=False)
    assert (await sandbox.exec(["ls", "-A", folder])).stdout == b"f\n"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("dir", "is_directory"), ("new/", "is_directory"), ("fifo", "not_regular"), ("file/x", "not_a_directory")],
)
async def test_what_cannot_be_written_says_why(sandbox: Sandbox, folder: str, name: str, reason: str) -> None:
    await sandbox.exec(f"cd {folder}; mkdir dir; mkfifo fifo; touch file")
    with pytest.raises(PathError) as caught:
        await sandbox.write(f"{folder}/{name}", b"x")
    assert caught.value.reason == reason


async def test_a_file_can_be_written_piece_by_piece(sandbox: Sandbox, folder: str) -> None:
    writer = await sandbox.open_writer(f"{folder}/big", 0o600)
    piece = bytes(range(256)) * 2048
    for _ in range(20):
        await writer.write(piece)
    stat = await writer.finish()
    assert (stat.size, stat.mode) == (20 * len(piece), 0o600)
    assert await sandbox.read(f"{folder}/big", digest=True) == piece * 20


async def test_a_cancelled_write_changes_nothing(sandbox: Sandbox, folder: str) -> None:
    await sandbox.write(f"{folder}/f", b"old")
    with anyio.CancelScope() as scope:
        scope.cancel()
        await sandbox.write(f"{folder}/f", b"n" * 20_000_000)
    assert await sandbox.read(f"{folder}/f") == b"old"
    assert (await sandbox.exec(["ls", "-A", folder])).stdout == b"f\n"


async def test_directories_are_made_with_parents_or_not_at_all(sandbox: Sandbox, folder: str) -> None:
    made = await sandbox.make_dir(f"{folder}/a/b/c")
    assert (made.type, made.path) == ("directory", f"/workspace/{folder}/a/b/c")
    await sandbox.make_dir(f"{folder}/a/b/c")
    for path, reason in ((f"{folder}/a", "conflict"), (f"{folder}/x/y", "not_found")):
        with pytest.raises(PathError) as caught:
            await sandbox.make_dir(path, parents=False)
        assert caught.value.reason == reason


async def test_removing_takes_a_tree_only_where_asked(sandbox: Sandbox, folder: str) -> None:
    await sandbox.exec(f"cd {folder}; mkdir -p d/e; touch d/x d/e/y; ln -s ../.. d/link; chmod 000 d/e")
    with pytest.raises(PathError) as caught:
        await sandbox.remove(f"{folder}/d")
    assert caught.value.reason == "conflict"
    assert await sandbox.remove(f"{folder}/d", recursive=True) == 5
    for path, reason in ((f"{folder}/d", "not_found"), (".", "invalid"), ("/workspace", "invalid")):
        with pytest.raises(PathError) as caught:
            await sandbox.remove(path, recursive=True)
        assert caught.value.reason == reason


async def test_renaming_does_not_overwrite_unless_asked(sandbox: Sandbox, folder: str) -> None:
    await sandbox.write(f"{folder}/a", b"a")
    await sandbox.write(f"{folder}/b", b"b")
    with pytest.raises(PathError) as caught:
        await sandbox.rename(f"{folder}/a", f"{folder}/b")
    assert caught.value.reason == "conflict"
    moved = await sandbox.rename(f"{folder}/a", f"{folder}/b", replace=True)
    assert moved.path == f"/workspace/{folder}/b"
    assert await sandbox.read(f"{folder}/b") == b"a"
    with pytest.raises(PathError) as caught:
        await sandbox.rename(f"{folder}/a", f"{folder}/c")
    assert caught.value.reason == "not_found"


async def test_many_callers_at_once_each_get_their_own_answer(sandbox: Sandbox, folder: str) -> None:
    async def work(number: int) -> None:
        path = f"{folder}/{number}"
        await sandbox.write(path, str(number).encode() * 1000)
        assert await sandbox.read(path) == str(number).encode() * 1000
        assert (await sandbox.exec(["cat", path])).stdout == str(number).encode() * 1000

    async with anyio.create_task_group() as group:
        for number in range(24):
            group.start_soon(work, number)
