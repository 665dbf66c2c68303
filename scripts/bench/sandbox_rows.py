"""The sandbox's rows of the design's bars, beside plain engine execs through the SDK and a bare host subprocess."""

from __future__ import annotations

import functools
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from typing import cast

import anyio
import docker
from docker.models.containers import Container
from measure import Row, blocking, paired

from kinfold.sandbox import DockerProvider, ExecRequest, PoolSpec, SandboxSpec
from kinfold.sandbox.sandbox import Sandbox

IMAGE = "kinfold/base"
MIB = 1024 * 1024


def engine_exec(container: Container, *command: str) -> Callable[[], object]:
    """The same command through the engine's own exec."""
    return functools.partial(container.exec_run, list(command), user="1000")


async def exec_row(sockets: Sandbox, engine: Sandbox, container: Container) -> Row:
    """`true`: ours by both streams, the host's subprocess, the engine's exec."""
    true = shutil.which("true") or "/bin/true"
    seconds = await paired(
        {
            "kinfold, local socket": lambda: sockets.exec(["true"]),
            "kinfold, engine stream": lambda: engine.exec(["true"]),
            "bare host subprocess": blocking(lambda: subprocess.run([true], check=True, capture_output=True)),
        },
        rounds=400,
        warmup=20,
    )
    slow = await paired({"engine exec (SDK)": blocking(engine_exec(container, "true"))}, rounds=30, warmup=2)
    bar = "≤ 1.5 × a host subprocess by socket, ≤ 1.9 × by engine stream; ≥ 30 × faster than the engine's exec"
    return Row(name='exec `["true"]`', bar=bar, seconds={**seconds, **slow})


async def file_rows(sockets: Sandbox, engine: Sandbox, container: Container) -> list[Row]:
    """read, write and stat of a 1 KiB file."""
    data = b"x" * 1024
    await sockets.write("small.txt", data)
    await engine.write("small.txt", data)
    slow = await paired({"engine exec of cat": blocking(engine_exec(container, "cat", "/etc/hostname"))}, rounds=20)
    rows = []
    for name, work in (
        ("read 1 KiB", lambda box: box.read("small.txt")),
        ("write 1 KiB", lambda box: box.write("small.txt", data)),
        ("stat", lambda box: box.stat(["small.txt"])),
    ):
        seconds = await paired(
            {
                "kinfold, local socket": functools.partial(work, sockets),
                "kinfold, engine stream": functools.partial(work, engine),
            },
            rounds=300,
            warmup=10,
        )
        rows.append(Row(name=name, bar="< 0.5 ms; ≥ 100 × faster than an engine exec", seconds={**seconds, **slow}))
    return rows


async def stat_many_row(sockets: Sandbox, engine: Sandbox) -> Row:
    """10,000 paths in one call."""
    for box in (sockets, engine):
        await box.exec(["sh", "-c", "mkdir -p many && cd many && seq 10000 | xargs touch"])
    paths = [f"many/{index}" for index in range(1, 10001)]
    seconds = await paired(
        {"kinfold, local socket": lambda: sockets.stat(paths), "kinfold, engine stream": lambda: engine.stat(paths)},
        rounds=15,
    )
    return Row(name="stat of 10,000 paths", bar="one round trip, < 60 ms", seconds=seconds)


async def bulk_rows(sockets: Sandbox, engine: Sandbox, container: Container) -> list[Row]:
    """256 MiB through read and write; the engine's own plain stream beside it."""
    size = 256 * MIB
    data = bytes(size)
    for box in (sockets, engine):
        await box.exec(["sh", "-c", f"head -c {size} /dev/zero > big.bin"])

    async def drain(box: Sandbox) -> int:
        return sum([len(chunk) async for chunk in box.read_stream("big.bin")])

    def plain() -> int:
        stream = container.exec_run(["head", "-c", str(size), "/dev/zero"], stream=True).output
        return sum(map(len, cast(Iterator[bytes], stream)))

    read = await paired(
        {"kinfold, local socket": lambda: drain(sockets), "kinfold, engine stream": lambda: drain(engine),
         "engine's plain stream": blocking(plain)},
        rounds=5, warmup=1,
    )  # fmt: skip
    write = await paired(
        {
            "kinfold, local socket": lambda: sockets.write("big.bin", data),
            "kinfold, engine stream": lambda: engine.write("big.bin", data),
        },
        rounds=5,
        warmup=1,
    )
    bar = "local socket ≥ 1 GB/s"
    return [
        Row(name="read 256 MiB", bar=bar + "; engine stream ≥ 0.6 × its plain stream", seconds=read, byte_count=size),
        Row(name="write 256 MiB", bar=bar, seconds=write, byte_count=size),
    ]


async def flood_row(sockets: Sandbox) -> Row:
    """`yes` until it has written 4 GiB, drained by the supervisor; and drained by `dd` in the same container."""
    size = 4096 * MIB
    flood = ExecRequest(command=["yes"], output_limit=size, timeout=60)
    pipe = f"yes | dd of=/dev/null bs=64k iflag=fullblock count={size // 65536} 2>/dev/null"
    seconds = await paired(
        {
            "kinfold": lambda: sockets.run(flood),
            "a pipe into dd, in the container": lambda: sockets.exec(pipe, timeout=60),
        },
        rounds=3,
        warmup=1,
    )
    return Row(name="output flood of 4 GiB", bar="≥ 1 GB/s drained", seconds=seconds, byte_count=size)


async def cold_row(client: docker.DockerClient) -> Row:
    """Create to first exec done, beside the engine's bare run of `true`; removal is timed for neither."""
    async with DockerProvider() as provider:
        created: list[Sandbox] = []
        containers: list[Container] = []

        async def ours() -> None:
            sandbox = await provider.create(SandboxSpec(image=IMAGE, keep=0))
            created.append(sandbox)
            await sandbox.exec(["true"])

        def theirs() -> None:
            container = client.containers.create(IMAGE, ["true"], network_mode="none")
            containers.append(container)
            container.start()
            container.wait()

        try:
            seconds = await paired({"kinfold": ours, "bare engine run of true": blocking(theirs)}, rounds=12, warmup=2)
        finally:
            for sandbox in created:
                await sandbox.aclose()
            for container in containers:
                container.remove(force=True)
    return Row(name="cold sandbox, create to first exec", bar="≤ 1.25 × bare run", seconds=seconds)


async def warm_row() -> Row:
    """Claim from the pool to first exec done, beside a cold create; each claim finds the pool full and still."""
    pool = PoolSpec(image=IMAGE, size=1)
    async with DockerProvider(pool=pool) as warm, DockerProvider() as cold:
        seconds: dict[str, list[float]] = {"kinfold, from the pool": [], "kinfold, cold": []}
        for _ in range(15):
            while warm.pool is not None and warm.pool.status().ready < 1:  # noqa: ASYNC110 - the pool tells nobody
                await anyio.sleep(0.02)
            await anyio.sleep(0.2)
            for name, provider in zip(seconds, (warm, cold), strict=True):
                before = time.perf_counter()
                sandbox = await provider.create(SandboxSpec(image=IMAGE, keep=0))
                await sandbox.exec(["true"])
                seconds[name].append(time.perf_counter() - before)
                await sandbox.aclose()
        missed = warm.pool.status().missed if warm.pool is not None else 0
    note = f"{missed} of the claims found the pool empty"
    return Row(name="warm sandbox, claim to first exec", bar="< 30 ms", seconds=seconds, note=note)


async def sandbox_rows() -> list[Row]:
    """All rows of this file."""
    client = docker.from_env()
    container = client.containers.run(IMAGE, ["sleep", "600"], detach=True, network_mode="none", init=True)
    try:
        async with (
            DockerProvider(channel="socket") as by_socket,
            DockerProvider(channel="engine") as by_engine,
            await by_socket.create(SandboxSpec(image=IMAGE, keep=0)) as sockets,
            await by_engine.create(SandboxSpec(image=IMAGE, keep=0)) as engine,
        ):
            rows = [await exec_row(sockets, engine, container), *await file_rows(sockets, engine, container)]
            rows.append(await stat_many_row(sockets, engine))
            rows += await bulk_rows(sockets, engine, container)
            rows.append(await flood_row(sockets))
        rows.append(await cold_row(client))
        rows.append(await warm_row())
    finally:
        container.remove(force=True)
        client.close()
    return rows
