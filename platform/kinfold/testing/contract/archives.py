"""Trees out and in as tar streams: the same tree comes back, and a hostile stream changes nothing outside its place."""

from __future__ import annotations

import io
import tarfile
from collections.abc import AsyncIterator

import pytest

from kinfold.errors import PathError
from kinfold.sandbox.archive import ArchiveLimits
from kinfold.sandbox.base import FileStat
from kinfold.sandbox.sandbox import Sandbox

__all__ = [
    "test_a_bound_is_kept_in_both_directions",
    "test_a_hostile_member_is_refused",
    "test_a_single_file_is_an_archive_too",
    "test_a_stream_that_is_no_archive_is_one_clear_error",
    "test_a_tree_comes_back_as_it_went",
    "test_what_is_no_file_is_left_out",
]


async def _pieces(data: bytes, size: int = 10_000) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def _tar(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def _member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


async def test_a_tree_comes_back_as_it_went(sandbox: Sandbox, folder: str) -> None:
    script = "mkdir -p d/e empty; printf abc > d/f; ln -s f d/l; head -c 3000000 /dev/urandom > big; chmod 751 d/f"
    await sandbox.exec(script, cwd=folder)
    await sandbox.write(f"{folder}/d/\udcff \n{'n' * 200}", b"odd")
    data = b"".join([piece async for piece in sandbox.archive(folder)])
    extracted = await sandbox.extract(_pieces(data), f"{folder}-copy")
    assert (extracted.files, extracted.directories, extracted.symlinks, extracted.skipped) == (3, 3, 1, [])
    compared = await sandbox.exec(["diff", "-r", folder, f"{folder}-copy"])
    assert compared.exit_code == 0, compared.stdout_text
    link, file = await sandbox.stat([f"{folder}-copy/d/l", f"{folder}-copy/d/f"])
    assert isinstance(link, FileStat)
    assert link.target == "f"
    assert isinstance(file, FileStat)
    assert file.mode == 0o751
    again = await sandbox.extract(_pieces(data, 512), f"{folder}-copy")
    assert again.files == 3, "unpacking over what is there"


async def test_a_single_file_is_an_archive_too(sandbox: Sandbox, folder: str) -> None:
    await sandbox.write(f"{folder}/one", b"content")
    data = b"".join([piece async for piece in sandbox.archive(f"{folder}/one")])
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        [member] = tar.getmembers()
        source = tar.extractfile(member)
        assert member.name == "one"
        assert source is not None
        assert source.read() == b"content"
    with pytest.raises(PathError):
        _ = [piece async for piece in sandbox.archive(f"{folder}/gone")]


async def test_what_is_no_file_is_left_out(sandbox: Sandbox, folder: str) -> None:
    await sandbox.exec("mkfifo fifo; echo > f", cwd=folder)
    data = b"".join([piece async for piece in sandbox.archive(folder)])
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        assert tar.getnames() == ["f"]
    hostile = _tar(
        (_member("f"), b"x"), (_member("h", tarfile.LNKTYPE, "f"), b""), (_member("p", tarfile.FIFOTYPE), b"")
    )
    extracted = await sandbox.extract(_pieces(hostile), f"{folder}/in")
    assert (extracted.files, extracted.skipped) == (1, ["h", "p"])


@pytest.mark.parametrize(
    "member",
    [
        _member("../escaped"),
        _member("/workspace/escaped"),
        _member("a/../../escaped"),
        _member("link", tarfile.SYMTYPE, "/etc"),
        _member("link", tarfile.SYMTYPE, "../../../../etc"),
    ],
    ids=["climbs", "absolute", "climbs later", "link out", "relative link out"],
)
async def test_a_hostile_member_is_refused(sandbox: Sandbox, folder: str, member: tarfile.TarInfo) -> None:
    with pytest.raises(PathError) as caught:
        await sandbox.extract(_pieces(_tar((member, b"x" if member.isreg() else b""))), f"{folder}/in")
    assert caught.value.reason == "path_escape"
    assert isinstance((await sandbox.stat(["escaped"]))[0], PathError)


async def test_a_bound_is_kept_in_both_directions(sandbox: Sandbox, folder: str) -> None:
    data = _tar((_member("a"), b"x" * 1000), (_member("b"), b"y" * 1000))
    for limits in (ArchiveLimits(entries=1), ArchiveLimits(total_bytes=1500), ArchiveLimits(member_bytes=999)):
        with pytest.raises(PathError) as caught:
            await sandbox.extract(_pieces(data), f"{folder}/in", limits=limits)
        assert caught.value.reason == "too_large"
    await sandbox.extract(_pieces(data), f"{folder}/in")
    for limits in (ArchiveLimits(entries=1), ArchiveLimits(total_bytes=1500), ArchiveLimits(member_bytes=999)):
        with pytest.raises(PathError) as caught:
            _ = [piece async for piece in sandbox.archive(f"{folder}/in", limits=limits)]
        assert caught.value.reason == "too_large"


@pytest.mark.parametrize("data", [b"", b"no tar at all" * 100, _tar((_member("a"), b"x" * 5000))[:3000]])
async def test_a_stream_that_is_no_archive_is_one_clear_error(sandbox: Sandbox, folder: str, data: bytes) -> None:
    with pytest.raises(PathError) as caught:
        await sandbox.extract(_pieces(data), f"{folder}/in")
    assert caught.value.reason == "invalid"
