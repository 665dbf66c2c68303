"""Code that swaps, moves and resizes what a request is looking at gains nothing by it, however often it tries."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import resource
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from tests.hostile import file_requests
from tests.hostile.file_requests import REQUESTS, SECRET, tells_a_secret
from tests.hostile.hostile_support import racing, sandbox_with, workspace_on_the_host

from kinfold.errors import PathError
from kinfold.messages import Artifact
from kinfold.sandbox.base import GIB, MIB, ExecRequest, FileStat
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tasks.out import OutDirectory

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

TOGETHER = 32
TYPED = {"path_escape", "not_found", "not_a_directory", "is_directory", "not_regular", "conflict"}
"""What a file request may answer under a swap; anything else is a failure of ours."""
STOLEN = hashlib.sha256(SECRET).hexdigest()


@asynccontextmanager
async def raced(box: Sandbox, folder: str, *command: str) -> AsyncIterator[None]:
    """A program of racers/ at work in that directory, and proved dead after it."""
    process = await box.start(
        ExecRequest(command=["/workspace/" + command[0], *command[1:]], cwd=folder, owner="racer")
    )
    try:
        yield
        assert not process.ended, "the racer gave up: nothing was raced"
    finally:
        await box.end("racer", grace=0)
        assert (await process.wait()).survivors == 0


async def many(passes: int, attempt: Callable[[int], Awaitable[object]]) -> Counter[str]:
    """Attempts, many at a time; how often which outcome came. An untyped failure and a secret fail the test."""
    numbers = iter(range(passes))
    outcomes: Counter[str] = Counter()

    async def one_after_the_other() -> None:
        for number in numbers:
            try:
                found = await attempt(number)
            except PathError as error:
                outcomes[error.reason] += 1
            else:
                assert not tells_a_secret(found)
                outcomes["done"] += 1

    await asyncio.gather(*[one_after_the_other() for _ in range(TOGETHER)])
    return outcomes


BATCH = 500


async def stat_many(box: Sandbox, path: str, **how: bool) -> None:
    """One request for many looks at a path; none of them may have hashed a file from outside."""
    for found in await box.stat([path] * BATCH, **how):
        assert isinstance(found, FileStat) or found.reason in TYPED
        assert isinstance(found, PathError) or found.sha256 != STOLEN


RACED: dict[str, tuple[int, Callable[[Sandbox, str, int], Awaitable[object]]]] = {
    "read": (200_000, lambda box, at, n: box.read(f"{at}/d/f")),
    "read up and down": (20_000, lambda box, at, n: box.read(f"{at}/d/sub/../f")),
    "stat": (200_000 // BATCH, lambda box, at, n: stat_many(box, f"{at}/d/f")),
    "claim": (200_000 // BATCH, lambda box, at, n: stat_many(box, f"{at}/d/f", claim=True)),
    "list": (200_000, lambda box, at, n: box.list(f"{at}/d/sub")),
    "write": (200_000, lambda box, at, n: box.write(f"{at}/d/w{n % 40}", b"x")),
    "make_dir": (200_000, lambda box, at, n: box.make_dir(f"{at}/d/m{n % 40}/m")),
    "remove": (200_000, lambda box, at, n: box.remove(f"{at}/d/sub/{'f' if n % 2 else 'gone'}")),
    "rename": (200_000, lambda box, at, n: box.rename(f"{at}/d/f", f"{at}/d/sub/f", replace=True)),
    "symlink": (200_000, lambda box, at, n: box.symlink("f", f"{at}/d/s{n % 40}")),
    "archive": (2_000, lambda box, at, n: REQUESTS["archive"](box, f"{at}/d")),
    "extract": (2_000, lambda box, at, n: REQUESTS["extract"](box, f"{at}/d")),
    "exec in it": (20_000, lambda box, at, n: REQUESTS["exec in it"](box, f"{at}/d/sub")),
}
"""Each request, and how many passes are all."""


@pytest.mark.threat("P04")
@racing
@pytest.mark.parametrize("request_name", RACED)
async def test_a_directory_swapped_for_a_link_lets_no_request_out(
    box: Sandbox, folder: str, request_name: str, share: float
) -> None:
    before = await file_requests.lay_outside(box)
    made = await box.exec(
        f"mkdir -p d/sub; for f in d/f d/sub/f; do echo fine > $f; done; ln -s {file_requests.OUTSIDE} l", cwd=folder
    )
    assert made.exit_code == 0
    passes, attempt = RACED[request_name]
    async with raced(box, folder, "swap", "d", "l"):
        outcomes = await many(round(passes * share), lambda n: attempt(box, folder, n))
    assert set(outcomes) <= TYPED | {"done"}
    assert request_name in ("stat", "claim") or outcomes["path_escape"] or outcomes["not_a_directory"], outcomes
    assert await file_requests.look_outside(box) == before


@pytest.mark.threat("P05")
@racing
async def test_what_is_read_is_what_was_looked_at(box: Sandbox, folder: str, share: float) -> None:
    before = await file_requests.lay_outside(box)
    contents = {"one": b"1" * 9000, "two": b"2" * 40_000}
    for name, content in contents.items():
        await box.write(f"{folder}/{name}", content)
    await box.exec(
        f"mkfifo fifo pipe; for l in link away; do ln -s {file_requests.OUTSIDE}/f $l; done; "
        "cp one three; mkdir directory",
        cwd=folder,
    )
    by_size = {len(content): hashlib.sha256(content).hexdigest() for content in contents.values()}

    async def attempt(number: int) -> None:
        name = ("one", "three")[number % 2]
        assert await box.read(f"{folder}/{name}", digest=True) in contents.values()
        for found in await box.stat([f"{folder}/one", f"{folder}/three"] * 5, claim=True):
            if isinstance(found, FileStat) and found.type == "file":
                assert found.sha256 == by_size[found.size]
            else:
                assert isinstance(found, FileStat) or found.reason in TYPED
        await box.write(f"{folder}/written", b"w")

    swaps = ["one", "two", "three", "fifo", "three", "link", "three", "directory", "written", "away", "written", "pipe"]
    async with raced(box, folder, "swap", *swaps):
        outcomes = await many(round(5_000 * share), attempt)
    assert set(outcomes) <= TYPED | {"done"} and outcomes["done"] and outcomes["not_regular"]
    assert await file_requests.look_outside(box) == before


@pytest.mark.threat("P06")
async def test_a_workspace_renamed_on_the_host_stays_the_same_tree(own_state: Path, tmp_path: Path) -> None:
    decoy = tmp_path / "decoy"
    decoy.mkdir()
    (decoy / "f").write_bytes(SECRET)
    async with sandbox_with(own_state) as box:
        await box.write("f", b"fine")
        place = workspace_on_the_host(box)
        for number in itertools.count():
            if number == 20:
                place.rename(place.with_name("moved"))
                place.symlink_to(decoy)
            if number == 60:
                break
            assert await box.read("f") == b"fine"
            await box.write(f"sub/{number}", b"x")
            assert (await box.exec(["cat", "f"])).stdout == b"fine"
        assert len((await box.list("sub")).entries) == 60
    assert [entry.name for entry in decoy.iterdir()] == ["f"] and (decoy / "f").read_bytes() == SECRET
    assert not place.parent.exists(), "what was made is gone, moved or not"


@pytest.mark.threat("P06")
@racing
async def test_a_parent_that_is_renamed_all_the_time_loses_no_write_to_elsewhere(
    box: Sandbox, folder: str, share: float
) -> None:
    await box.exec("mkdir -p a/b/c x/y; echo fine > a/b/c/f", cwd=folder)
    async with raced(box, folder, "swap", "a", "x", "a/b", "x/y"):
        for request in ("read", "write", "list"):
            path = f"{folder}/a/b/../b/c{'' if request == 'list' else '/f'}"
            outcomes = await many(round(10_000 * share), lambda _, r=request, p=path: REQUESTS[r](box, p))  # type: ignore[misc]
            assert set(outcomes) <= TYPED | {"done"} and outcomes["done"]


def peak_memory() -> int:
    """The most that this process ever held, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.threat("P12")
async def test_a_file_that_is_larger_than_it_is_costs_what_was_asked_for(box: Sandbox, folder: str) -> None:
    assert (await box.exec("truncate -s 2G sparse", cwd=folder)).exit_code == 0
    [sparse] = await box.stat([f"{folder}/sparse"])
    assert isinstance(sparse, FileStat) and sparse.size == 2 * GIB
    huge = workspace_on_the_host(box) / folder / "huge"
    huge.touch()
    os.truncate(huge, 8 * 1024 * GIB)
    before = peak_memory()
    for name in ("sparse", "huge"):
        with pytest.raises(PathError) as refused:
            await box.read(f"{folder}/{name}")
        assert refused.value.reason == "too_large"
        assert await box.read(f"{folder}/{name}", offset=GIB, limit=10) == bytes(10)
    async with asyncio.timeout(10):
        [claimed] = await box.stat([f"{folder}/huge"], claim=True)
        assert isinstance(claimed, FileStat) and claimed.sha256 is None
        with pytest.raises(PathError) as refused:
            await REQUESTS["archive"](box, folder)
        assert refused.value.reason == "too_large"
    assert peak_memory() - before < 160 * MIB


@pytest.mark.threat("P12")
@racing
async def test_a_file_that_grows_and_shrinks_under_a_request_gives_whole_answers(
    box: Sandbox, folder: str, share: float
) -> None:
    await box.write(f"{folder}/f", b"")  # there before the racer is
    async with raced(box, folder, "resize", "f"):
        for _ in range(round(300 * share)):
            data = await box.read(f"{folder}/f", digest=True)
            assert data == b"x" * len(data)
            [claimed] = await box.stat([f"{folder}/f"], claim=True)
            assert isinstance(claimed, FileStat) or claimed.reason == "conflict"
            try:
                packed = await REQUESTS["archive"](box, folder)
            except PathError as error:
                assert error.reason == "conflict"
            else:
                assert isinstance(packed, bytes) and len(packed) % 512 == 0


async def deliver(box: Sandbox, path: str, out: Path) -> tuple[Artifact, list[str]] | None:
    """Claim a path and copy it out: what was promised, and what could not be kept; None where the claim was refused."""
    [found] = await box.stat([path], claim=True)
    if isinstance(found, PathError):
        assert found.reason in TYPED
        return None
    assert found.type != "other"
    artifact = Artifact(path=found.path, size=found.size, fs_type=found.type, sha256=found.sha256, change="created")
    directory = OutDirectory(out)
    try:
        return artifact, (await directory.take([artifact], box)).problems
    finally:
        directory.close()


@pytest.mark.threat("P17")
@racing
async def test_what_is_delivered_is_what_was_hashed(box: Sandbox, folder: str, tmp_path: Path, share: float) -> None:
    await file_requests.lay_outside(box)
    await box.exec(
        f"mkdir d e; echo one > f; echo two > g; ln -s {file_requests.OUTSIDE}/f l; mkfifo p; "
        f"cp f d/x; cp g e/x; cp f d/y; cp f e/y; ln -s {file_requests.OUTSIDE} o",
        cwd=folder,
    )
    kept = Counter[str]()
    async with raced(box, folder, "swap", "f", "g", "f", "l", "f", "p", "d", "e", "d", "o"):
        for number in range(round(1000 * share)):
            out = tmp_path / str(number)
            name = ("f", "d")[number % 2]
            delivered = await deliver(box, f"{folder}/{name}", out)
            if delivered is None or delivered[1]:
                kept["refused"] += 1
                continue
            artifact = delivered[0]
            place = out / folder / name
            if artifact.fs_type == "directory":
                lines = (b"%s\0%s\n" % (n, sha(place / n.decode()).encode()) for n in (b"x", b"y"))
                assert hashlib.sha256(b"".join(lines)).hexdigest() == artifact.sha256
            else:
                assert sha(place) == artifact.sha256
            kept["delivered"] += 1
        for path in (tmp_path).rglob("*"):
            assert path.is_dir() or (path.is_file() and not path.is_symlink() and path.read_bytes() != SECRET)
    assert kept["delivered"] and kept["refused"], kept


def sha(path: Path) -> str:
    """The sha256 of a file of this machine, in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.threat("P17")
@pytest.mark.parametrize("claim", ["/tmp/x", "/proc/1/environ", "/etc/passwd", "../tmp/x"])
async def test_no_file_outside_the_workspace_can_be_claimed(box: Sandbox, claim: str) -> None:
    [found] = await box.stat([claim], claim=True)
    assert isinstance(found, PathError) and found.reason == "path_escape"
