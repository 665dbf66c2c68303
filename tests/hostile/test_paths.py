"""Racing code in the container never makes a file request leave the workspace, block, or fail other than typed."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Awaitable
from pathlib import Path

import pytest
from tests.hostile.hostile_support import sandbox_with

from kinfold.errors import PathError
from kinfold.sandbox.base import ExecRequest, FileStat
from kinfold.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

SECONDS = 4.0
SECRET = hashlib.sha256(b"SECRET\n").hexdigest()
OUTSIDE = "find /home/agent/out | sort; find /home/agent/out -type f | sort | xargs cat"
STAGE = """
set -e
mkdir -p /home/agent/out/sub/deep d/sub/deep e
for f in f sub/f sub/deep/f; do echo SECRET > /home/agent/out/$f; echo fine > d/$f; done
cp -r d/sub swapped; cp -r d/sub e/sub; ln -s /home/agent/out l; ln -s /home/agent/out e/l
echo fine > g; ln -s /home/agent/out/f lg; echo fine > h; mkfifo fifo
"""


async def attempt(work: Awaitable[object], reached: list[object]) -> object:
    """The outcome, or None for a typed refusal; slow ones and secrets go to `reached`."""
    began = time.monotonic()
    try:
        found = await work
    except PathError:
        found = None
    if time.monotonic() - began > 3:
        reached.append("a request that took more than 3 s")
    if isinstance(found, bytes) and b"SECRET" in found:
        reached.append(found)
    return found


async def one_round(box: Sandbox, number: int, reached: list[object]) -> None:
    """Each file request once, through what is being swapped."""
    for path in ("d/f", "d/sub/f", "d/sub/deep/f", "d/sub/../f", "g", "h", "e/sub/f", "/workspace/d/sub/f"):
        await attempt(box.read(path), reached)
    claims = await box.stat(["d", "d/f", "d/sub/f", "g", "h", "l", "lg"], claim=True)
    reached += [claimed for claimed in claims if isinstance(claimed, FileStat) and claimed.sha256 == SECRET]
    name = f"n{number % 10}"
    await attempt(box.write(f"d/{name}", b"x"), reached)
    await attempt(box.write("d/f", b"fine\n"), reached)
    await attempt(box.write("g", b"fine\n"), reached)
    await attempt(box.make_dir(f"d/sub/{name}/x"), reached)
    await attempt(box.rename(f"d/{name}", f"d/sub/{name}.moved", replace=True), reached)
    await attempt(box.symlink("f", f"d/sub/{name}.link"), reached)
    await attempt(box.remove(f"d/sub/{name}.link"), reached)
    await attempt(box.remove(f"d/sub/{name}", recursive=True), reached)
    await attempt(box.list("d", depth=9), reached)
    where = await attempt(box.exec(["cat", "f"], cwd="d/sub"), reached)
    if where is not None and b"SECRET" in getattr(where, "stdout", b""):
        reached.append(where)


async def test_swapped_links_lead_no_file_request_outside(own_state: Path) -> None:
    async with sandbox_with(own_state, "swap") as box:
        staged = await box.exec(STAGE)
        assert staged.exit_code == 0, staged.stderr_text
        before = (await box.exec(OUTSIDE)).stdout
        swaps = ["./swap", "d", "l", "d/sub", "swapped", "e/sub", "e/l", "g", "lg", "h", "fifo"]
        racer = await box.start(ExecRequest(command=swaps, owner="racer"))
        reached: list[object] = []
        until, rounds = time.monotonic() + SECONDS, 0
        while time.monotonic() < until:
            await one_round(box, rounds, reached)
            rounds += 1
        await box.end("racer", grace=0)
        assert (await racer.wait()).survivors == 0
        assert reached == []
        assert rounds > 20
        assert (await box.exec(OUTSIDE)).stdout == before


async def test_a_tree_removed_while_its_directories_are_swapped_takes_nothing_outside_with_it(own_state: Path) -> None:
    async with sandbox_with(own_state, "swap") as box:
        await box.exec("mkdir -p /home/agent/out; cd /home/agent/out; for i in $(seq 40); do echo SECRET > $i; done")
        for _ in range(15):
            await box.exec("mkdir -p t/a/b; for i in $(seq 40); do : > t/a/b/$i; done; ln -sfn /home/agent/out t/a/l")
            racer = await box.start(ExecRequest(command=["./swap", "t/a/b", "t/a/l"], owner="racer"))
            try:
                await box.remove("t", recursive=True)
            except PathError as refusal:
                assert refusal.reason in ("conflict", "not_found")
            await box.end("racer", grace=0)
            await racer.wait()
            await box.remove("t", recursive=True) if await _is_there(box, "t") else None
        assert (await box.exec("ls /home/agent/out | wc -l")).stdout.strip() == b"40"


async def _is_there(box: Sandbox, path: str) -> bool:
    return isinstance((await box.stat([path]))[0], FileStat)


MAGIC = {
    "root": "/proc/self/root/etc/passwd",
    "thread": "/proc/thread-self/root/etc/passwd",
    "first": "/proc/1/root/etc/passwd",
    "cwd": "/proc/self/cwd/etc/passwd",
    "descriptor": "/proc/self/fd/3",
    "up": "../../etc/passwd",
    "out": "/workspace/../etc/passwd",
    "beside": "/workspace-evil",
    "loop": "loop",
}


async def test_links_that_leave_lead_nowhere_in_any_request(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        for name, target in MAGIC.items():
            await box.exec(["ln", "-s", target, name])
        for name in MAGIC:
            refusals = (
                box.read(name),
                box.write(name, b"x"),
                box.read(f"{name}/x"),
                box.make_dir(f"{name}/x"),
                box.exec(["true"], cwd=name),
            )
            for refused in refusals:
                with pytest.raises(PathError):
                    await refused
            [claimed] = await box.stat([name], claim=True)
            assert isinstance(claimed, PathError), name


async def test_what_is_no_file_blocks_no_request(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        await box.exec("mkfifo p; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"s\")'; ln -s p lp")
        async with asyncio.timeout(5):
            for name in ("p", "s", "lp"):
                for refused in (box.read(name), box.write(name, b"x")):
                    with pytest.raises(PathError) as refusal:
                        await refused
                    assert refusal.value.reason == "not_regular"
                [claimed] = await box.stat([name], claim=True)
                assert isinstance(claimed, PathError)


async def test_a_write_breaks_a_hard_link_and_leaves_the_other_name_alone(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        await box.exec("echo old > a; ln a b")
        await box.write("a", b"new\n")
        assert await box.read("b") == b"old\n"
        assert (await box.exec("ln /etc/passwd x || ln /home/agent/.profile x")).exit_code != 0


LEASE = """
import fcntl, os, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = open("leased", "w+")
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("ready", flush=True)
signal.pause()
"""


async def test_a_file_that_a_program_has_leased_is_a_conflict_and_no_failure_of_the_sandbox(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        holder = await box.start(ExecRequest(command=["python3", "-c", LEASE], stream=True, owner="holder"))
        async for _ in holder.output():
            break
        async with asyncio.timeout(5):
            with pytest.raises(PathError) as refusal:
                await box.read("leased")
            assert refusal.value.reason == "conflict"
            [claimed] = await box.stat(["leased"], claim=True)
            assert isinstance(claimed, PathError) and claimed.reason == "conflict"
            await box.write("leased", b"new")
            assert await box.read("leased") == b"new"
        await box.end("holder", grace=0)
