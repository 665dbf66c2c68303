"""A sandbox that is full of something still answers: PID 1 lives, its own memory stays small, nobody else starves."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.docker.provider_support import docker_provider, engine_api, spec
from tests.hostile.hostile_support import sandbox_with, supervisor_memory
from tests.hostile.outside import as_root_inside, of_the_agent, processes_of

from kinfold.sandbox.base import MIB, ExecRequest
from kinfold.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

SMALL = 128 * MIB


async def works(box: Sandbox) -> None:
    """A program runs, soon."""
    async with asyncio.timeout(10):
        assert (await box.exec(["true"], timeout=8)).exit_code == 0


async def test_execs_that_keep_much_output_do_not_fill_the_sandboxs_memory(own_state: Path) -> None:
    async with sandbox_with(own_state, memory_bytes=SMALL) as box:
        for _ in range(4):
            flood = "head -c 67108864 /dev/zero; sleep 300 > /dev/null 2>&1 & exit 0"
            result = await box.exec(flood, timeout=20, max_output_bytes=64 * MIB)
            assert (result.exit_code, result.stdout_total) == (0, 64 * MIB)
            assert result.truncated and len(result.stdout) >= MIB
        usage = await box.usage()
        assert usage.memory_bytes is not None and usage.memory_bytes < SMALL * 3 // 4
        assert usage.oom_kills == 0
        await works(box)


async def test_output_of_many_background_execs_is_bounded_and_new_ones_still_keep_theirs(own_state: Path) -> None:
    async with sandbox_with(own_state, memory_bytes=SMALL) as box:
        for _ in range(60):
            left = await box.exec("head -c 2000000 /dev/zero; sleep 300 > /dev/null 2>&1 & exit 0", timeout=20)
            assert (left.exit_code, left.stdout_total) == (0, 2_000_000)
        usage = await box.usage()
        assert usage.oom_kills == 0 and usage.memory_bytes is not None and usage.memory_bytes < SMALL * 3 // 4
        assert (await box.exec(["echo", "kept"])).stdout == b"kept\n"


async def test_programs_that_do_not_read_their_input_do_not_make_the_supervisor_large(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        before = supervisor_memory(box)
        for _ in range(60):
            await box.start(ExecRequest(command=["sleep", "300"], stdin=b"x" * 400_000, owner="run"))
        assert supervisor_memory(box) - before < 3000
        await works(box)


async def test_the_supervisor_outlives_processes_that_eat_all_memory_in_any_size(own_state: Path) -> None:
    async with sandbox_with(own_state, "eat", memory_bytes=SMALL) as box:
        fill = "head -c 16M /dev/zero > /tmp/x; head -c 16M /dev/zero > /dev/shm/x"
        await box.exec(fill, timeout=10)
        for kib in (100, 2000, 60000):
            eaten = await box.exec(["./eat", str(kib)], timeout=1.5, grace=0)
            assert eaten.survivors == 0
            await works(box)


@pytest.mark.threat("R12")
async def test_a_flood_from_eight_programs_delays_nobody_for_long(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        before, ours = supervisor_memory(box), own_memory()
        floods = [asyncio.ensure_future(box.exec(["yes"], timeout=2, grace=0)) for _ in range(8)]
        await asyncio.sleep(0.5)
        for _ in range(10):
            began = time.monotonic()
            await works(box)
            assert time.monotonic() - began < 2
        assert supervisor_memory(box) - before < 3000
        for flood in floods:
            ended = await flood
            assert ended.ended_by == "timed_out" and len(ended.stdout) == MIB
            assert ended.stdout_total > 2 * MIB
        assert own_memory() - ours < 64 * MIB
        assert of_the_agent(box) == []


async def test_readers_that_never_read_cost_a_bounded_queue(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        before = supervisor_memory(box)
        held = [await box.start(ExecRequest(command=["yes"], stream=True, owner="run")) for _ in range(8)]
        await asyncio.sleep(0.5)
        assert supervisor_memory(box) - before < 4000
        await works(box)
        await box.end("run", grace=0)
        assert len(held) == 8


async def test_the_supervisor_is_as_large_after_hundreds_of_execs_as_before(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        await asyncio.gather(*[box.exec(["true"]) for _ in range(50)])
        before = supervisor_memory(box)
        for _ in range(24):
            await asyncio.gather(*[box.exec(["true"]) for _ in range(25)])
        assert supervisor_memory(box) - before < 200


def own_memory() -> int:
    """What this process has resident, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.threat("R01")
async def test_a_fork_bomb_stops_at_the_limit_of_processes_and_no_other_sandbox_feels_it(own_state: Path) -> None:
    async with sandbox_with(own_state, "tree") as box, sandbox_with(own_state / "other") as neighbour:
        bomb = await box.start(ExecRequest(command=["./tree", "bomb"], owner="bomb"))
        await until_full(box)
        assert len(processes_of(box.ref.handle)) <= 256
        async with asyncio.timeout(5):
            assert (await box.stat(["tree"]))[0].path == "/workspace/tree"
            assert (await neighbour.exec(["true"])).exit_code == 0
        began = time.monotonic()
        await box.end("bomb", grace=0)
        ended = await bomb.wait()
        assert time.monotonic() - began < 4
        assert ended.ended_by in ("cancelled", "pids_limited")  # on a slow machine the supervisor may have been first
        assert ended.survivors == 0 and ended.killed > 100
        assert of_the_agent(box) == []


async def until_full(box: Sandbox) -> None:
    """Until the container has as many processes as it may."""
    async with asyncio.timeout(20):
        while ((await box.usage()).pids or 0) < 250:
            await asyncio.sleep(0.02)


@pytest.mark.threat("R02")
async def test_at_the_limit_of_processes_files_work_and_a_new_exec_ends_the_exec_with_the_most(own_state: Path) -> None:
    async with sandbox_with(own_state, "full") as box:
        small = await box.start(ExecRequest(command=["sleep", "300"], owner="small"))
        full = await box.start(ExecRequest(command=["./full"], stream=True))
        assert (await anext(full.output())).data == b"full\n"
        await until_full(box)
        await box.write("notes", b"still here")
        assert await box.read("notes") == b"still here"
        async with asyncio.timeout(10):
            assert (await box.exec(["true"])).exit_code == 0
        ended = await full.wait()
        assert (ended.ended_by, ended.survivors) == ("pids_limited", 0)
        assert of_the_agent(box) == ["sleep 300"]
        await small.kill(grace=0)


@pytest.mark.threat("R03")
async def test_children_that_nobody_waits_for_do_not_stay_as_zombies(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        orphans = "for i in $(seq 300); do (setsid sh -c 'exit 0' &); done; wait; echo done; exec sleep 300"
        running = await box.start(ExecRequest(command=orphans, stream=True))
        assert (await anext(running.output())).data == b"done\n"
        async with asyncio.timeout(10):
            while of_the_agent(box) != ["sleep 300"]:
                await asyncio.sleep(0.05)
        assert [seen for seen in processes_of(box.ref.handle) if seen.state == "Z"] == []
        await running.kill(grace=0)


@pytest.mark.threat("R04")
async def test_a_process_that_eats_all_memory_ends_alone_and_is_called_oom_killed(own_state: Path) -> None:
    async with sandbox_with(own_state, "hog", memory_bytes=SMALL) as box:
        await memory_bombs(box, 3)


@pytest.mark.slow
@pytest.mark.threat("R06")
async def test_the_supervisor_outlives_twenty_memory_bombs_of_twenty(own_state: Path) -> None:
    async with sandbox_with(own_state, "hog", memory_bytes=SMALL) as box:
        await memory_bombs(box, 20)


async def memory_bombs(box: Sandbox, count: int) -> None:
    """One after the other, beside a neighbour that must not notice."""
    neighbour = await box.start(ExecRequest(command=["sleep", "300"]))
    for _ in range(count):
        bomb = await box.exec(["./hog"], timeout=30)
        assert (bomb.ended_by, bomb.signal, bomb.exit_code) == ("oom_killed", 9, None)
        assert bomb.oom_kills >= 1
        await works(box)
    assert not neighbour.ended
    await neighbour.kill(grace=0)


EMPTY_FILES = """
import os, sys
made = 0
try:
    while True:
        os.close(os.open(f"{sys.argv[1]}/{made}", os.O_CREAT))
        made += 1
except OSError as error:
    print(error.errno, made)
"""


@pytest.mark.threat("R05")
async def test_a_sandbox_whose_memory_file_systems_are_full_still_works(own_state: Path) -> None:
    async with sandbox_with(own_state, "segments", memory_bytes=SMALL, tmp_bytes=15 * MIB, shm_bytes=15 * MIB) as box:
        filled = await box.exec("for d in /tmp /dev/shm; do cat /dev/zero > $d/x; : > $d/y; ls $d | wc -l; done")
        assert b"No space" in filled.stderr and filled.oom_kills == 0
        got = await box.exec(["./segments"], timeout=30)
        kib, messages, sets = (int(word) for word in got.stdout.split())
        assert kib <= 15 * 1024 and messages <= 16 * 16384 and sets <= 128
        for directory in ("/tmp", "/dev/shm"):
            await box.exec(f"rm -f {directory}/*")
            files = await box.exec(["python3", "-c", EMPTY_FILES, directory], timeout=60)
            assert files.stdout.split()[:1] == [b"28"], files
            await box.exec(f"rm -f {directory}/1*; cat /dev/zero > {directory}/x")
        usage = await box.usage()
        assert usage.oom_kills == 0 and usage.memory_bytes is not None and usage.memory_bytes < SMALL * 3 // 4
        for _ in range(5):
            await works(box)
        await box.write("fine", b"x" * MIB)
        assert (await box.exec("head -c 20000000 /dev/zero | tail -c 1 | wc -c")).stdout.strip() == b"1"


@pytest.mark.threat("R07", "R08")
async def test_a_workspaces_bytes_and_files_end_at_the_limits_or_the_limits_are_not_claimed(
    own_state: Path, tmp_path: Path
) -> None:
    async with (
        sandbox_with(own_state, disk_bytes=8 * MIB, disk_inodes=200) as box,
        sandbox_with(own_state / "other") as neighbour,
    ):
        claimed = "disk" not in {control.name for control in box.not_enforced}
        for directory in ("/workspace", "/home/agent"):
            filled = await box.exec(f"dd if=/dev/zero of={directory}/big bs=1M count=60", timeout=30)
            assert (b"No space left" in filled.stderr) == claimed, filled.stderr_text
            files = await box.exec(
                f"rm {directory}/big; for i in $(seq 400); do : > {directory}/$i; done; ls {directory}"
            )
            assert (len(files.stdout.split()) < 400) == claimed
            await box.exec(f"rm -f {directory}/*")
            await works(box)
        await neighbour.write("fine", b"x" * MIB)
    with_a_given = spec(workspace=str(given(tmp_path)))
    async with docker_provider(own_state) as provider, await provider.create(with_a_given) as box:
        assert "disk" in {control.name for control in box.not_enforced}


def given(place: Path) -> Path:
    """A directory of the operator's, which the agent may write."""
    directory = place / "given"
    directory.mkdir()
    directory.chmod(0o777)
    return directory


PLACES = {"/dev/mqueue", "/dev/shm", "/home/agent", "/tmp", "/workspace"}
"""All where an agent may write, and what is mounted so that it has an end."""


@pytest.mark.threat("R09")
async def test_an_agent_can_write_only_where_its_writing_has_an_end(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        found = await box.exec("find / -path /proc -prune -o -writable ! -type l ! -type c -print", timeout=60)
        written = {place for place in found.stdout_text.splitlines() if not place.startswith("/proc")}
        assert {place for place in written if not any(place.startswith(root) for root in PLACES)} == set()
        assert written >= PLACES - {"/dev/mqueue"}
        queues = (
            "import ctypes,os; l=ctypes.CDLL(None); n=0\nwhile l.mq_open(b'/q%d'%n,0o102,0o600,None)>=0: n+=1\nprint(n)"
        )
        assert int((await box.exec(["python3", "-c", queues])).stdout) < 300
        for name in ("hosts", "hostname", "resolv.conf"):
            refused = as_root_inside(box, f"echo x >> /etc/{name}; echo x > /usr/x; echo done")
            assert refused.count("Read-only file system") == 2, refused


@pytest.mark.threat("R10")
async def test_a_file_beyond_the_limit_ends_in_a_signal_however_it_is_made(own_state: Path) -> None:
    async with sandbox_with(own_state, file_bytes=8 * MIB) as box:
        for command in (
            "truncate -s 8T big",
            "exec head -c 9000000 /dev/zero > big",
            "exec dd if=/dev/zero of=/tmp/x bs=1M count=9",
        ):
            ended = await box.exec(f"exec {command.removeprefix('exec ')}", timeout=30)
            assert (ended.ended_by, ended.signal) == ("signalled", 25), (command, ended.stderr_text)
        [stat] = await box.stat(["big"])
        assert getattr(stat, "size", 0) <= 8 * MIB
        assert (await box.exec("trap '' XFSZ; truncate -s 8T big2", timeout=30)).exit_code != 0


@pytest.mark.threat("R11")
async def test_descriptors_end_at_the_limit_for_the_program_that_opens_them_alone(own_state: Path) -> None:
    opening = (
        "import os,sys,time\nfds=[]\ntry:\n  while True: fds.append(os.open('/dev/null',0))\nexcept OSError as e:\n"
        "  print(e.errno, len(fds)+3, flush=True)\nsys.stdin.read()"
    )
    async with sandbox_with(own_state, open_files=256) as box, sandbox_with(own_state / "other") as neighbour:
        program = ExecRequest(command=["python3", "-c", opening], stream=True, stdin_open=True)
        greedy = [await box.start(program) for _ in range(4)]
        for one in greedy:
            assert (await anext(one.output())).data == b"24 256\n"
        await works(box)
        await works(neighbour)
        for one in greedy:
            await one.kill(grace=0)


@pytest.mark.threat("R14")
async def test_nothing_that_an_agent_says_reaches_a_log_of_the_engines(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        said = await box.exec("for f in 0 1 2; do echo x > /proc/1/fd/$f; done; echo said; echo said >&2")
        assert said.stderr_text.count("Permission denied") == 3
        with engine_api() as api:
            found = api.inspect_container(box.ref.handle)
        assert found["HostConfig"]["LogConfig"]["Type"] == "none"
        assert found["LogPath"] == ""


@pytest.mark.slow
@pytest.mark.threat("R15")
async def test_a_sandbox_full_of_busy_programs_still_answers(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        busy = [await box.start(ExecRequest(command="while :; do :; done", owner="busy")) for _ in range(8)]
        slowest = 0.0
        for _ in range(100):
            began = time.monotonic()
            await works(box)
            slowest = max(slowest, time.monotonic() - began)
        assert slowest < 2
        await box.end("busy", grace=0)
        assert {(await one.wait()).ended_by for one in busy} == {"cancelled"}
