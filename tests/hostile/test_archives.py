"""Archives in both directions: what goes in stays in its place and its bounds, what comes out harms nobody."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from pathlib import Path
from typing import Any

import pytest
from tests.hostile.file_requests import pieces, tar_of
from tests.hostile.hostile_support import racing
from tests.hostile.test_paths_raced import raced

from kinfold.errors import PathError
from kinfold.sandbox.archive import ArchiveLimits
from kinfold.sandbox.base import GIB, MIB
from kinfold.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


def member(name: str, kind: bytes = tarfile.REGTYPE, **fields: object) -> tarfile.TarInfo:
    """A header and nothing behind it."""
    info = tarfile.TarInfo(name)
    info.type = kind
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def built(*members: tarfile.TarInfo | tuple[tarfile.TarInfo, bytes], format: int = tarfile.GNU_FORMAT) -> bytes:
    """A tar stream of these, in this order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=format) as tar:
        for entry in members:
            info, data = entry if isinstance(entry, tuple) else (entry, b"")
            info.size = len(data) or info.size
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def with_size(size: str) -> bytes:
    """A header whose size field is these bytes, its checksum right."""
    header = bytearray(member("f").tobuf(tarfile.GNU_FORMAT))
    header[124:136] = size.encode("latin-1").ljust(12, b"\0")[:12]
    header[148:156] = b" " * 8
    header[148:156] = f"{sum(header):06o}\0 ".encode()
    return bytes(header) + bytes(1024)


def pax(**keywords: str) -> bytes:
    """A member whose extended header says this."""
    info = member("f", size=4)
    info.pax_headers = dict(keywords)
    return info.tobuf(tarfile.PAX_FORMAT) + b"data" + bytes(508) + bytes(1024)


def sparse(size: int, count: int = 1) -> bytes:
    """Members that hold nothing and say that they are so large."""
    one = []
    for number in range(count):
        header = bytearray(member(f"s{number}", tarfile.GNUTYPE_SPARSE).tobuf(tarfile.GNU_FORMAT))
        header[345:] = bytes(167)
        header[386 : 386 + 24] = b"%011o\0%011o\0" % (size, 0)
        header[483:495] = b"%011o\0" % size
        header[148:156] = b" " * 8
        header[148:156] = f"{sum(header):06o}\0 ".encode()
        one.append(bytes(header))
    return b"".join(one) + bytes(1024)


SAFELY: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
"""Debian 12's Python is older than the filter."""
LINK = member("l", tarfile.SYMTYPE, linkname="../../elsewhere")
CHAIN = [member("/".join(["d" * 247] * depth), tarfile.DIRTYPE) for depth in range(1, 17)]

HOSTILE: dict[str, tuple[bytes, str]] = {
    "climbs": (tar_of(("../x", b"x")), "path_escape"),
    "climbs in the middle": (tar_of(("a/../../x", b"x")), "path_escape"),
    "is absolute": (tar_of(("/workspace/x", b"x")), "path_escape"),
    "is a link out": (built(member("l", tarfile.SYMTYPE, linkname="/etc")), "path_escape"),
    "is a relative link out": (built(member("l", tarfile.SYMTYPE, linkname="../" * 9 + "etc")), "path_escape"),
    "lies behind a link": (built(LINK, (member("l/x"), b"x")), "path_escape"),
    "lies far behind a link": (built(LINK, (member("l/sub/x"), b"x")), "path_escape"),
    "is a directory behind a link": (built(LINK, member("l/d", tarfile.DIRTYPE)), "path_escape"),
    "is a link behind a link": (built(LINK, member("l/x", tarfile.SYMTYPE, linkname="y")), "path_escape"),
    "is a chain of long names behind a link": (
        built(*CHAIN, member("a", tarfile.SYMTYPE, linkname="d" * 247 + "/../" * 16), (member("a/x"), b"x")),
        "path_escape",
    ),
    "has a negative size": (with_size("\xff" * 12), "invalid"),
    "is spoiled": (built((member("e"), b"x"))[:1024] + b"spoiled" * 74 + bytes(2042), "invalid"),
    "is missing, and the end with it": (built((member("e"), b"x"))[:1024], "invalid"),
    "has a size of no number": (with_size("99999999999"), "invalid"),
    "has a negative size by pax": (pax(size="-1"), "invalid"),
    "has an endless size by pax": (pax(size="9" * 30), "too_large"),
    "has a sparse map of words": (pax(**{"GNU.sparse.map": "a,b", "GNU.sparse.size": "1"}), "invalid"),
    "climbs by pax": (pax(path="../../x"), "path_escape"),
    "is larger than one may be": (with_size("77777777777"), "too_large"),
    "grows out of nothing": (sparse(GIB), "too_large"),
    "grows out of nothing in many": (sparse(15 * MIB, 20), "too_large"),
    "is a compressed stream": (gzip.compress(tar_of(("f", bytes(200 * MIB)))), "invalid"),
    "ends in the middle": (tar_of(("f", b"x" * 5000))[:3000], "invalid"),
}


@pytest.mark.threat("P18")
@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_member_changes_nothing_outside_its_place(box: Sandbox, folder: str, kind: str) -> None:
    await box.write(f"{folder}/elsewhere/x", b"kept")
    stream, reason = HOSTILE[kind]
    with pytest.raises(PathError) as refused:
        await box.extract(pieces(stream), f"{folder}/in/deep")
    assert refused.value.reason == reason, refused.value
    assert await box.read(f"{folder}/elsewhere/x") == b"kept"
    assert [entry.path for entry in (await box.list(f"{folder}/elsewhere", depth=5)).entries] == [
        f"/workspace/{folder}/elsewhere/x"
    ]
    inside = (await box.list(f"{folder}", depth=50)).entries
    assert sum(entry.size for entry in inside if entry.type == "file") < 400 * MIB


@pytest.mark.threat("P18")
async def test_a_name_that_comes_twice_replaces_a_link_and_is_not_written_through_it(box: Sandbox, folder: str) -> None:
    await box.write(f"{folder}/elsewhere", b"kept")
    stream = built(
        member("l", tarfile.SYMTYPE, linkname="../elsewhere"), (member("l"), b"second"), (member("l"), b"third")
    )
    await box.extract(pieces(stream), f"{folder}/in")
    assert await box.read(f"{folder}/in/l") == b"third"
    assert await box.read(f"{folder}/elsewhere") == b"kept"


@pytest.mark.threat("P18")
async def test_devices_and_hard_links_are_left_out_and_no_setuid_bit_comes_in(box: Sandbox, folder: str) -> None:
    stream = built(
        (member("f", mode=0o6755), b"x"),
        member("d", tarfile.DIRTYPE, mode=0o6777),
        member("hard", tarfile.LNKTYPE, linkname="/etc/passwd"),
        member("c", tarfile.CHRTYPE, devmajor=1, devminor=3),
        member("b", tarfile.BLKTYPE, devmajor=8, devminor=0),
        member("p", tarfile.FIFOTYPE),
    )
    extracted = await box.extract(pieces(stream), folder)
    assert extracted.skipped == ["hard", "c", "b", "p"]
    found = {entry.path.rpartition("/")[2]: entry.mode for entry in (await box.list(folder)).entries}
    assert found == {"f": 0o755, "d": 0o777}


async def downloaded(box: Sandbox, path: str, limits: ArchiveLimits | None = None) -> bytes:
    """The whole stream."""
    return b"".join([piece async for piece in box.archive(path, limits=limits)])


@pytest.mark.threat("P18")
async def test_a_download_has_ceilings_and_leaves_out_what_is_not_regular(box: Sandbox, folder: str) -> None:
    make = (
        "mkdir d; head -c 3000 /dev/zero > d/a; head -c 3000 /dev/zero > b; mkfifo p; ln -s d/a inside; ln -s / out; "
        f"ln -s ../../etc/passwd up; ln -s /workspace/{folder}/d/a absolute; ln -s ../elsewhere beside; touch -- -rf"
    )
    assert (await box.exec(make, cwd=folder)).exit_code == 0
    with tarfile.open(fileobj=io.BytesIO(await downloaded(box, folder))) as tar:
        assert {entry.name: entry.linkname for entry in tar.getmembers()} == {
            "-rf": "", "absolute": "d/a", "b": "", "d": "", "d/a": "", "inside": "d/a",
        }  # fmt: skip
    for limits in (ArchiveLimits(entries=5), ArchiveLimits(total_bytes=5999), ArchiveLimits(member_bytes=2999)):
        with pytest.raises(PathError) as refused:
            await downloaded(box, folder, limits)
        assert refused.value.reason == "too_large"


@pytest.mark.threat("P18")
@racing
async def test_a_download_under_a_racer_can_be_unpacked_by_anybody(
    box: Sandbox, folder: str, tmp_path: Path, share: float
) -> None:
    await box.exec(
        "mkdir -p d/e; echo 1 > d/f; echo 2 > d/e/f; ln -s / l; ln -s .. u; mkfifo p; echo 3 > g", cwd=folder
    )
    async with raced(box, folder, "swap", "d", "l", "d/e", "u", "g", "p"):
        for number in range(round(500 * share)):
            try:
                packed = await downloaded(box, folder)
            except PathError as error:
                assert error.reason in (
                    "conflict",
                    "not_found",
                    "not_regular",
                    "path_escape",
                    "is_directory",
                    "not_a_directory",
                )
                continue
            target = tmp_path / str(number)
            with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
                names = tar.getnames()
                assert len(names) == len(set(names))
                kinds = {entry.name: entry for entry in tar.getmembers()}
                for entry in kinds.values():
                    above = os.path.dirname(entry.name)
                    assert not above or kinds[above].isdir()
                    assert entry.isreg() or entry.isdir() or entry.issym()
                tar.extractall(target, **SAFELY)
    assert not [
        path for path in tmp_path.rglob("*") if path.is_symlink() and not path.resolve().is_relative_to(tmp_path)
    ]
