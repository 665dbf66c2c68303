"""Terminals: a program that asks for one controls it, sees its size, is interrupted by keys and dies with proof."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from kinfold.errors import NotFound
from kinfold.sandbox.base import ExecRequest, ExecResult, TerminalSize
from kinfold.sandbox.processes import ProcessTable
from kinfold.sandbox.sandbox import Sandbox

_RESIZED = """
import os, signal
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGWINCH])
print("up", *os.get_terminal_size(), flush=True)
while signal.sigwait([signal.SIGWINCH]):
    print(*os.get_terminal_size(), flush=True)
"""
_STUBBORN = """
import os, signal, time
for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
for _ in range(5):
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
print("up", flush=True)
time.sleep(600)
"""
_HANGS_UP = """
import signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGHUP])
print("up", flush=True)
signal.sigwait([signal.SIGHUP])
sys.exit(6)
"""
_RAW = """
import hashlib, sys, tty
tty.setraw(0)
print("up", end="", flush=True)
print(hashlib.sha256(sys.stdin.buffer.read(2_000_000)).hexdigest(), end="")
"""
_LOOKS = 200


class _Screen:
    """A program on a terminal, and the person before it."""

    def __init__(self, sandbox: Sandbox, command: list[str] | str, **more: Any) -> None:
        tty = TerminalSize(rows=31, columns=117)
        self._request = ExecRequest(command=command, tty=tty, stream=True, stdin_open=True, timeout=20, **more)
        self._sandbox = sandbox

    async def __aenter__(self) -> _Screen:
        self.process = await self._sandbox.start(self._request)
        self._output = self.process.output()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._output.aclose()
        await self.process.kill(0)

    async def until(self, words: bytes) -> bytes:
        """Everything printed up to and with `words`."""
        seen = b""
        while words not in seen:
            piece = await anext(self._output, None)
            assert piece is not None and piece.stream == "stdout", seen
            seen += piece.data
        return seen

    async def end(self) -> tuple[bytes, ExecResult]:
        """What is still printed, and the result."""
        rest = b"".join([piece.data async for piece in self._output])
        return rest, await self.process.wait()


async def _table(sandbox: Sandbox) -> ProcessTable:
    """All processes, on a machine that is busy too."""
    for _ in range(_LOOKS):
        if (table := await sandbox.processes()).complete:
            return table
    raise AssertionError(f"none of {_LOOKS} looks at a handful of processes was complete")


async def test_a_program_on_a_terminal_knows_its_size_and_has_one_stream(sandbox: Sandbox) -> None:
    tty = TerminalSize(rows=31, columns=117)
    words = (
        "test -t 0 && test -t 1 && test -t 2 && stty size && echo $TERM; cat; echo err >&2; test -O $(tty) && exit 7"
    )
    result = await sandbox.run(ExecRequest(command=words, tty=tty, timeout=60))
    assert (result.stdout, result.stderr) == (b"31 117\r\nxterm-256color\r\nerr\r\n", b"")
    assert (result.exit_code, result.ended_by) == (7, "exited")


async def test_a_resize_reaches_the_program_and_later_is_an_error(sandbox: Sandbox) -> None:
    async with _Screen(sandbox, ["python3", "-c", _RESIZED]) as screen:
        await screen.until(b"up 117 31\r\n")
        await screen.process.resize(50, 200)
        await screen.until(b"200 50\r\n")
        with pytest.raises(ValueError, match="0 rows"):
            await screen.process.resize(0, 80)
        await screen.process.kill(0)
        await screen.end()
        with pytest.raises(NotFound, match="has ended"):
            await screen.process.resize(24, 80)
    plain = await sandbox.start(ExecRequest(command=["sleep", "60"]))
    with pytest.raises(ValueError, match="no terminal"):
        await plain.resize(24, 80)
    await plain.kill(0)


async def test_a_key_interrupts_what_is_in_the_foreground(sandbox: Sandbox) -> None:
    async with _Screen(sandbox, "trap 'echo got' INT; cat; exit 5") as screen:
        await screen.process.write(b"typed\n")
        await screen.until(b"typed\r\ntyped\r\n")
        await screen.process.write(b"\x03")
        await screen.until(b"got\r\n")
        _, result = await screen.end()
        assert (result.exit_code, result.background_pids) == (5, ())


async def test_closing_the_input_is_the_end_of_file_also_behind_half_a_line(sandbox: Sandbox) -> None:
    for typed in (b"", b"line\n", b"half"):
        async with _Screen(sandbox, "stty -echo; echo up; cat; echo over") as screen:
            await screen.until(b"up\r\n")
            await screen.process.write(typed)
            await screen.process.close_stdin()
            rest, result = await screen.end()
            assert (rest, result.exit_code) == (typed.replace(b"\n", b"\r\n") + b"over\r\n", 0)


async def test_megabytes_go_through_a_raw_terminal_and_a_flood_keeps_head_and_tail(sandbox: Sandbox) -> None:
    data = bytes(range(250)) * 8000
    async with _Screen(sandbox, ["python3", "-c", _RAW]) as screen:
        await screen.until(b"up")
        await screen.process.write(data)
        rest, _ = await screen.end()
        assert rest.decode() == hashlib.sha256(data).hexdigest()
    tty = TerminalSize()
    flood = await sandbox.run(ExecRequest(command="yes 0123456 | head -c 2000000", tty=tty, max_output_bytes=1001))
    lines = b"0123456\r\n" * 250_000
    assert flood.stdout == lines[:501] + lines[-500:]
    assert (flood.stdout_total, flood.stdout_head_bytes, flood.exit_code) == (len(lines), 501, 0)
    limited = await sandbox.run(ExecRequest(command=["yes"], tty=tty, output_limit=500_000))
    assert limited.ended_by == "output_limited"


async def test_a_kill_ends_all_that_a_terminal_held_with_proof(sandbox: Sandbox) -> None:
    async with _Screen(sandbox, ["python3", "-c", _STUBBORN]) as screen:
        await screen.until(b"up\r\n")
        assert {one.exec_id for one in (await _table(sandbox)).processes} >= {screen.process.id}
        ended = await screen.process.kill(0.1)
        assert (ended.killed, ended.survivors) == (6, 0)
        _, result = await screen.end()
        assert (result.ended_by, result.survivors) == ("cancelled", 0)
        assert screen.process.id not in {one.exec_id for one in (await _table(sandbox)).processes}


async def test_a_program_that_ignores_term_hears_the_hang_up(sandbox: Sandbox) -> None:
    async with _Screen(sandbox, ["python3", "-c", _HANGS_UP]) as screen:
        await screen.until(b"up\r\n")
        assert (await screen.process.kill(30)).killed == 0
        assert (await screen.process.wait()).exit_code == 6


async def test_the_processes_of_an_exec_are_told_with_the_names_they_give_themselves(sandbox: Sandbox) -> None:
    code = "import ctypes; ctypes.CDLL(None).prctl(15, b'\\x1b]0;(x) 1 2)'); print('up', flush=True); input()"
    process = await sandbox.start(
        ExecRequest(command=["sh", "-c", 'python3 -c "$0"; :', code], stdin_open=True, stream=True)
    )
    output = process.output()
    assert (await anext(output)).data == b"up\n"
    table = await _table(sandbox)
    shell, child = [one for one in table.processes if one.exec_id == process.id]
    assert table.complete and (shell.pid, shell.name) == (process.pid, "sh")
    assert (child.parent, child.name, child.threads) == (shell.pid, "\x1b]0;(x) 1 2)", 1)
    assert child.memory_bytes > 1_000_000 and child.cpu_seconds > 0
    await process.kill(0)
    await output.aclose()
