"""Reading, listing and looking: what is there, no more of it than asked for, and never what lies outside."""

from __future__ import annotations

import hashlib

import pytest

from kinfold.errors import PathError
from kinfold.sandbox.base import MIB, FileStat
from kinfold.sandbox.sandbox import READ_LIMIT, Sandbox


async def test_what_is_written_is_read(sandbox: Sandbox, folder: str) -> None:
    for data in (b"", b"x", bytes(range(256)) * 40, b"y" * (3 * MIB + 1)):
        stat = await sandbox.write(f"{folder}/a/b/file", data, digest=True)
        assert (stat.path, stat.type, stat.size) == (f"/workspace/{folder}/a/b/file", "file", len(data))
        assert stat.sha256 == hashlib.sha256(data).hexdigest()
        assert await sandbox.read(f"/workspace/{folder}/a/b/file", digest=True) == data


async def test_programs_and_file_requests_see_the_same_files(sandbox: Sandbox, folder: str) -> None:
    await sandbox.write(f"{folder}/in", b"from outside")
    assert (await sandbox.exec(["cat", f"{folder}/in"])).stdout == b"from outside"
    await sandbox.exec(f"printf 'from inside' > {folder}/out")
    assert await sandbox.read(f"{folder}/out") == b"from inside"


async def test_a_part_is_read_by_offset_and_limit(sandbox: Sandbox, folder: str) -> None:
    await sandbox.write(f"{folder}/f", b"0123456789")
    assert await sandbox.read(f"{folder}/f", offset=3, limit=4, digest=True) == b"3456"
    assert await sandbox.read(f"{folder}/f", offset=8, limit=40) == b"89"
    assert await sandbox.read(f"{folder}/f", offset=99) == b""
    assert await sandbox.read(f"{folder}/f", limit=0) == b""


async def test_a_file_over_the_limit_is_refused_before_it_travels(sandbox: Sandbox, folder: str) -> None:
    await sandbox.exec(f"truncate -s {READ_LIMIT + 1} {folder}/big")
    with pytest.raises(PathError) as caught:
        await sandbox.read(f"{folder}/big")
    assert caught.value.reason == "too_large"
    assert "read_stream" in caught.value.hint
    assert len(await sandbox.read(f"{folder}/big", limit=10)) == 10
    assert sum([len(piece) async for piece in sandbox.read_stream(f"{folder}/big")]) == READ_LIMIT + 1
    assert sum([len(piece) async for piece in sandbox.read_stream(f"{folder}/big", offset=READ_LIMIT)]) == 1


async def test_a_stream_that_is_not_read_to_its_end_harms_nothing(sandbox: Sandbox, folder: str) -> None:
    await sandbox.exec(f"truncate -s 200M {folder}/big")
    for _ in range(3):
        stream = sandbox.read_stream(f"{folder}/big")
        assert len(await anext(stream)) > 0
        await stream.aclose()
    assert (await sandbox.exec(["echo", "well"])).stdout == b"well\n"


@pytest.mark.parametrize(
    ("name", "reason"),
    [("gone", "not_found"), ("dir", "is_directory"), ("fifo", "not_regular"), ("file/x", "not_a_directory")],
)
async def test_what_cannot_be_read_says_why(sandbox: Sandbox, folder: str, name: str, reason: str) -> None:
    await sandbox.exec(f"cd {folder}; mkdir dir; mkfifo fifo; touch file")
    with pytest.raises(PathError) as caught:
        await sandbox.read(f"{folder}/{name}")
    assert caught.value.reason == reason
    with pytest.raises(PathError) as caught:
        _ = [piece async for piece in sandbox.read_stream(f"{folder}/{name}")]
    assert caught.value.reason == reason


@pytest.mark.needs_own_uid
async def test_what_the_agent_may_not_read_is_permission_denied(sandbox: Sandbox, folder: str) -> None:
    await sandbox.exec(f"cd {folder}; echo x > file; chmod 000 file; mkdir dir; touch dir/x; chmod 000 dir")
    for path in ("file", "dir/x"):
        with pytest.raises(PathError) as caught:
            await sandbox.read(f"{folder}/{path}")
        assert caught.value.reason == "permission_denied"
    [stat] = await sandbox.stat([f"{folder}/file"])
    assert isinstance(stat, FileStat)
    assert stat.mode == 0


async def test_stat_answers_each_path_in_order(sandbox: Sandbox, folder: str) -> None:
    await sandbox.exec(f"cd {folder}; printf abc > file; mkdir dir; ln -s file link; mkfifo fifo; chmod 741 file")
    names = ["file", "gone", "../../..", "dir", "link", "fifo", "", "a\0b"]
    found = await sandbox.stat([f"{folder}/{name}" if name else "" for name in names], digest=True)
    file, gone, outside, directory, link, fifo, empty, nul = found
    assert isinstance(file, FileStat)
    assert (file.type, file.size, file.mode) == ("file", 3, 0o741)
    assert file.sha256 == hashlib.sha256(b"abc").hexdigest()
    assert isinstance(directory, FileStat)
    assert (directory.type, directory.sha256) == ("directory", None)
    assert isinstance(link, FileStat)
    assert (link.type, link.target) == ("symlink", "file")
    assert isinstance(fifo, FileStat)
    assert fifo.type == "other"
    errors = [error.reason if isinstance(error, PathError) else "" for error in (gone, outside, empty, nul)]
    assert errors == ["not_found", "path_escape", "invalid", "invalid"]


async def test_thousands_of_paths_are_one_call(sandbox: Sandbox, folder: str) -> None:
    await sandbox.exec(f"cd {folder}; seq 5000 | xargs touch")
    found = await sandbox.stat([f"{folder}/{number}" for number in range(1, 10_001)])
    assert all(isinstance(stat, FileStat) for stat in found[:5000])
    assert all(isinstance(stat, PathError) and stat.reason == "not_found" for stat in found[5000:])
    assert isinstance(found[4], FileStat)
    assert found[4].path == f"/workspace/{folder}/5"
    assert await sandbox.stat([]) == []


async def test_a_claim_counts_and_hashes_what_lies_beneath(sandbox: Sandbox, folder: str) -> None:
    await sandbox.exec(
        f"cd {folder}; mkdir -p d/e; printf abc > d/x; printf de > d/e/y; ln -s d l; ln -s gone dangling"
    )
    directory, link, dangling = await sandbox.stat([f"{folder}/{name}" for name in ("d", "l", "dangling")], claim=True)
    lines = b"".join(
        name + b"\0" + hashlib.sha256(data).hexdigest().encode() + b"\n"
        for name, data in ((b"e/y", b"de"), (b"x", b"abc"))
    )
    expected = hashlib.sha256(lines).hexdigest()
    assert isinstance(directory, FileStat)
    assert (directory.size, directory.entries) == (5, 2)
    assert directory.sha256 == expected
    assert isinstance(link, FileStat)
    assert (link.target, link.target_type, link.sha256) == ("d", "directory", expected)
    assert isinstance(dangling, PathError)
    assert dangling.reason == "not_found"


async def test_a_listing_is_sorted_bounded_and_without_scratch(sandbox: Sandbox, folder: str) -> None:
    await sandbox.exec(f"cd {folder}; mkdir -p b/c; touch z a b/x b/c/y")
    flat = await sandbox.list(folder)
    assert [entry.path.rpartition("/")[2] for entry in flat.entries] == ["a", "b", "z"]
    deep = await sandbox.list(folder, depth=99)
    base = f"/workspace/{folder}/"
    assert [entry.path.removeprefix(base) for entry in deep.entries] == ["a", "b", "b/c", "b/c/y", "b/x", "z"]
    assert not deep.truncated
    cut = await sandbox.list(folder, depth=99, max_entries=4)
    assert cut.truncated
    assert len(cut.entries) == 4
    await sandbox.write(".kinfold/spill", b"")
    assert ".kinfold" not in {entry.path.rpartition("/")[2] for entry in (await sandbox.list()).entries}
    with pytest.raises(PathError) as caught:
        await sandbox.list(f"{folder}/a")
    assert caught.value.reason == "not_a_directory"


async def test_a_snapshot_holds_the_whole_tree_by_relative_path(sandbox: Sandbox, folder: str) -> None:
    await sandbox.exec(f"cd {folder}; mkdir -p b; echo > b/x")
    before = await sandbox.snapshot()
    assert before.entries[f"{folder}/b/x"].path == f"/workspace/{folder}/b/x"
    await sandbox.write(f"{folder}/b/x", b"changed")
    after = await sandbox.snapshot()
    assert before.entries[f"{folder}/b/x"] != after.entries[f"{folder}/b/x"]
    assert not after.truncated
    assert (await sandbox.snapshot(max_entries=1)).truncated
