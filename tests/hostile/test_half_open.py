"""Ends that come from one side only: half-closed and cut streams, terminals of the dead, readers that never read."""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
from tests.docker.provider_support import docker_provider, engine_api, spec

from kinfold.errors import NotFound
from kinfold.events import TextDelta
from kinfold.sandbox.base import ExecRequest, TerminalSize
from kinfold.sandbox.docker.stream import open_engine_stream
from kinfold.tasks.log import EventLog

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


def held() -> tuple[int, int]:
    """Descriptors and threads of this process."""
    return len(os.listdir("/proc/self/fd")), threading.active_count()


@pytest.mark.threat("K12")
async def test_a_stream_closed_on_one_side_ends_on_both_and_leaves_nothing(own_state: Path) -> None:
    async with docker_provider(own_state, channel="engine") as provider, await provider.create(spec()) as sandbox:

        async def cut_by_us() -> None:
            stream = await open_engine_stream(provider.engine, sandbox.ref.handle)
            await stream.aclose()  # `close` alone would leave the relay, and its end of the stream, open

        async def cut_by_the_relay() -> None:
            stream = await open_engine_stream(provider.engine, sandbox.ref.handle)
            await stream.send(b"no frame at all " * 8)  # for which the supervisor hangs up, and the relay goes
            with anyio.fail_after(10), suppress(anyio.EndOfStream, anyio.BrokenResourceError):
                while True:
                    await stream.receive()
            await stream.aclose()

        def relays() -> int:
            with engine_api() as api:
                seen = api.top(sandbox.ref.handle, ps_args="-eo pid,args")
            return sum(" connect" in line[-1] for line in seen["Processes"])

        for cut in (cut_by_us, cut_by_the_relay):
            await cut()  # what is made once is made
            before = held()
            for _ in range(5):
                await cut()
            descriptors, threads = held()  # the SDK keeps a connection or two for the next call
            assert descriptors < before[0] + 3
            assert threads < before[1] + 3
        with anyio.fail_after(10):
            while await anyio.to_thread.run_sync(relays) > 1:
                await anyio.sleep(0.05)
        echoed = await sandbox.exec(["cat"], stdin=b"x" * 100_000)  # its standard input ends, its output does not yet
        assert (echoed.exit_code, len(echoed.stdout)) == (0, 100_000)


@pytest.mark.threat("K13")
async def test_a_terminal_whose_program_is_gone_takes_no_size_and_says_so_once(own_state: Path) -> None:
    async with docker_provider(own_state) as provider, await provider.create(spec()) as sandbox:
        tty = TerminalSize(rows=24, columns=80)
        ended = await sandbox.start(ExecRequest(command=["true"], tty=tty))
        await ended.wait()
        hung_up = await sandbox.start(ExecRequest(command=["sh", "-c", "sleep 60"], tty=tty))
        await hung_up.kill(0)
        for process in (ended, hung_up):
            with pytest.raises(NotFound, match="has ended"), anyio.fail_after(5):
                await process.resize(50, 200)
        absent = await sandbox.start(ExecRequest(command=["no-such-program"], tty=tty))
        await absent.wait()
        with pytest.raises(NotFound, match="has ended"), anyio.fail_after(5):
            await absent.resize(50, 200)
        assert (await sandbox.exec(["true"])).exit_code == 0


@pytest.mark.threat("S06")
async def test_runs_of_one_task_are_not_kept_from_each_other_and_the_manual_says_so(own_state: Path) -> None:
    async with docker_provider(own_state) as provider, await provider.create(spec()) as sandbox:
        await sandbox.exec(["sh", "-c", "mkdir -p ~/tmp/run_a && echo mine > ~/tmp/run_a/note"], owner="run_a")
        read = await sandbox.exec(["sh", "-c", "cat ~/tmp/run_a/note; stat -c '%u %a' ~"], owner="run_b")
        assert read.stdout_text.split() == ["mine", str(sandbox.agent_uid), "700"], "shared by runs, closed to others"
        sleeper = await sandbox.start(ExecRequest(command=["sleep", "60"], env={"KEY": "of-run-a"}, owner="run_a"))
        environ = await sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/environ 2>&1 | tr '\\0' '\\n'"], owner="run_b")
        assert "KEY=of-run-a" in environ.stdout_text, "one uid: what a run is given, its siblings can read"
        await sleeper.kill(0)
    manual = (Path(__file__).parents[2] / "platform" / "OPERATING.md").read_text()
    assert "Subagents\nof one task share one sandbox: they are not kept from each other." in manual


@pytest.mark.threat("R13")
async def test_who_follows_a_log_and_never_reads_holds_nobody_up_and_has_no_queue_of_its_own() -> None:
    log = EventLog()
    followers = [log.follow() for _ in range(100)]
    await log.append(TextDelta(task_id="task_1", run_id="run_1", text="0"))
    for follower in followers:
        assert (await anext(follower)).seq == 1
    with anyio.fail_after(20):
        for number in range(1, 20_000):
            await log.append(TextDelta(task_id="task_1", run_id="run_1", text=str(number)))
    late = followers[0]
    assert [(await anext(late)).seq for _ in range(19_999)] == list(range(2, 20_001)), "nothing was dropped for it"
    for follower in followers:
        await follower.aclose()
