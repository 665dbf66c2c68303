"""`kinfold sandbox shell`: the operator's own terminal becomes that of a shell in a sandbox.

What the sandbox prints goes to the terminal as it is: anything else would be no terminal. The settings of the terminal
are put back whatever happens.
"""

from __future__ import annotations

import os
import signal
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import aclosing, contextmanager

import anyio
import anyio.to_thread

from kinfold.cli.ending import EXIT_SANDBOX, say_error
from kinfold.cli.sandboxes import exit_code_of_result, with_sandbox
from kinfold.errors import ConfigError, NotFound, SandboxError
from kinfold.sandbox.base import ExecRequest, TerminalSize
from kinfold.sandbox.process import Process
from kinfold.sandbox.sandbox import Sandbox

_SHELL = "command -v bash >/dev/null 2>&1 && exec bash; exec sh"
_LEFT_ON = b"\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?2004l\x1b[?25h\x1b[0m"
"""Puts off what a program that was killed may have left on: reports of the mouse, marked pastes, colours."""
_READ = 65536


def shell_command(wanted: str) -> int:
    """Run the image's bash, or sh, on this terminal; the exit code is the shell's."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise ConfigError(
            "a shell needs a terminal, and standard input or output is none",
            hint=f"`kinfold sandbox exec {wanted} -- PROGRAM` runs a program without one",
        )
    return with_sandbox(wanted, _shell)


async def _shell(sandbox: Sandbox) -> int:
    if (await sandbox.usage()).paused:
        raise SandboxError(f"{sandbox.id} is paused: nothing can start", hint=f"`kinfold sandbox resume {sandbox.id}`")
    request = ExecRequest(command=_SHELL, tty=_size(), stdin_open=True, stream=True, grace=0.5)
    process = await sandbox.start(request)
    with _raw(sys.stdin.fileno()):
        await _converse(process, request)
        result = await process.wait()
    if result.stderr:  # a terminal has no second stream: it never started
        say_error(result.stderr_text, "the image has no shell that can run; `kinfold sandbox exec` needs none")
        return EXIT_SANDBOX
    return exit_code_of_result(result)


async def _converse(process: Process, request: ExecRequest) -> None:
    """Until the shell has ended; where this ends before it, by a signal or a lost terminal, it ends with us."""
    try:
        async with anyio.create_task_group() as group:
            group.start_soon(_type, process)
            group.start_soon(_watch, process, group.cancel_scope)
            await _show(process)
            group.cancel_scope.cancel()
    finally:
        if not process.ended:
            with anyio.CancelScope(shield=True):
                await process.kill(request.grace)


async def _show(process: Process) -> None:
    """In a thread: a terminal that was told to stop must stop the program, not this process."""
    async with aclosing(process.output()) as output:
        async for piece in output:
            data = memoryview(piece.data)
            while data:
                written = await anyio.to_thread.run_sync(os.write, sys.stdout.fileno(), data, abandon_on_cancel=True)
                data = data[written:]


async def _type(process: Process) -> None:
    source = sys.stdin.fileno()
    try:
        while True:
            await anyio.wait_readable(source)
            data = _read(source)
            if not data:
                await process.close_stdin()
                return
            await process.write(data)
    except NotFound:
        return  # typed after the shell's end


def _read(source: int) -> bytes:
    """What was typed; empty where the terminal is gone."""
    try:
        return os.read(source, _READ)
    except OSError:
        return b""


async def _watch(process: Process, conversation: anyio.CancelScope) -> None:
    """Pass the window's changes on; end the conversation with a terminal that hangs up."""
    with anyio.open_signal_receiver(signal.SIGWINCH, signal.SIGHUP) as signals:
        await _resize(process)  # it may have changed before we listened
        async for received in signals:
            if received == signal.SIGHUP:
                conversation.cancel()
                return
            await _resize(process)


async def _resize(process: Process) -> None:
    size = _size()
    try:
        await process.resize(size.rows, size.columns)
    except NotFound:
        return  # the shell has just ended


def _size() -> TerminalSize:
    columns, rows = os.get_terminal_size(sys.stdin.fileno())
    return TerminalSize(rows=rows or 24, columns=columns or 80)  # a serial line may not know its own


@contextmanager
def _raw(terminal: int) -> Iterator[None]:
    """Every key goes to the sandbox, those that stop programs too."""
    before = termios.tcgetattr(terminal)
    try:
        tty.setraw(terminal, termios.TCSADRAIN)
        yield
    finally:
        _restore(terminal, before)


def _restore(terminal: int, before: list[int | list[bytes | int]]) -> None:
    try:
        termios.tcsetattr(terminal, termios.TCSANOW, before)
        os.write(sys.stdout.fileno(), _LEFT_ON)
    except (OSError, termios.error):
        return  # the terminal itself is gone
