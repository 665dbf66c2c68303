"""`kinfold sandbox shell, stats, logs, top, pause, resume` as processes, on real terminals, for others' sandboxes."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.docker.test_cli import KINFOLD, script

from kinfold.cli.app import run_app

ATTACK = "\x1b]0;owned\x07\x1b[31m\u202egpj"
PROGRAM = f"printf '{ATTACK}\\nnext\\n'; printf 'wrong\x1b[2J\\n' >&2"


class Terminal:
    """`kinfold …` on a terminal of its own, which it controls, and the person before it."""

    def __init__(self, *arguments: str, env: dict[str, str]) -> None:
        self.master, self.slave = pty.openpty()
        self.resize(31, 117)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        self.process = subprocess.Popen(
            [KINFOLD, *arguments],
            stdin=self.slave,
            stdout=self.slave,
            stderr=self.slave,
            env={**env, "TERM": "xterm", "COLUMNS": "200"},
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for descriptor in (self.master, self.slave):
            if descriptor >= 0:
                os.close(descriptor)

    def resize(self, rows: int, columns: int) -> None:
        """As a window's owner does; the programs on it get SIGWINCH."""
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def type(self, keys: bytes) -> None:
        """Press these keys."""
        os.write(self.master, keys)

    def until(self, words: bytes) -> bytes:
        """All that has been shown since the last time, up to and with `words`."""
        deadline = time.monotonic() + 40
        while words not in self.seen:
            ready, _, _ = select.select([self.master], [], [], 1)
            self.seen += os.read(self.master, 65536) if ready else b""
            assert time.monotonic() < deadline, (words, self.seen)
        shown, found, self.seen = self.seen.partition(words)
        return shown + found

    def end(self) -> tuple[int, bytes]:
        """The exit code, and what was still shown."""
        while self.process.poll() is None:
            ready, _, _ = select.select([self.master], [], [], 0.05)
            self.seen += os.read(self.master, 65536) if ready else b""
        while select.select([self.master], [], [], 0)[0]:
            self.seen += os.read(self.master, 65536)
        return self.process.returncode, self.seen

    def hang_up(self) -> None:
        """The window is closed."""
        os.close(self.slave)
        os.close(self.master)
        self.master = self.slave = -1


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One state directory for all: what the engine enforces is measured once."""
    state = tmp_path_factory.mktemp("state")
    state.chmod(0o700)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("KINFOLD_", "ANTHROPIC_"))}
    own = {name: os.environ[name] for name in ("KINFOLD_SUPERVISOR",) if name in os.environ}
    return {**kept, **own, "KINFOLD_STATE": str(state)}


def kinfold(*arguments: str, env: dict[str, str], stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    """Run it to its end, without a terminal: in this process, which made none of the sandboxes and loads it once."""
    raw = [io.BytesIO(data) for data in (stdin, b"", b"")]
    files = [io.TextIOWrapper(file, write_through=True) for file in raw]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KINFOLD_STATE", env["KINFOLD_STATE"])
        patch.setattr(sys, "argv", ["kinfold", *arguments])
        for name, file in zip(("stdin", "stdout", "stderr"), files, strict=True):
            patch.setattr(sys, name, file)
        with pytest.raises(SystemExit) as ended:
            run_app()
    code = ended.value.code or 0
    assert isinstance(code, int)
    return subprocess.CompletedProcess(["kinfold", *arguments], code, raw[1].getvalue(), raw[2].getvalue())


@pytest.fixture(scope="module")
def sandbox(env: dict[str, str]) -> Iterator[str]:
    created = kinfold("sandbox", "create", "--name", "by-hand", env=env)
    assert created.returncode == 0, created.stderr.decode()
    yield created.stdout.decode().strip()
    assert kinfold("sandbox", "destroy", "by-hand", env=env).returncode == 0


def test_a_shell_is_a_real_terminal_that_follows_the_window_and_ends_with_the_shells_code(
    sandbox: str, env: dict[str, str]
) -> None:
    with Terminal("sandbox", "shell", "by-hand", env=env) as terminal:
        terminal.until(b"$ ")
        terminal.type(b"echo shell=$0 $((6*7)); stty size\r")
        assert b"shell=bash 42" in terminal.until(b"31 117\r\n")
        terminal.resize(50, 200)
        terminal.type(b"sleep 600\r")
        terminal.until(b"sleep 600\r\n")
        terminal.type(b"\x03")
        terminal.until(b"^C")
        terminal.type(b"stty size; tput -T xterm bold 2>/dev/null; printf '\\033[31mraw\\n'; exit 7\r")
        terminal.until(b"50 200\r\n")
        terminal.until(b"\x1b[31mraw\r\n")
        assert terminal.end()[0] == 7
        assert termios.tcgetattr(terminal.slave) == terminal.before


@pytest.mark.parametrize("how", ["terminated", "window_closed"])
def test_a_shell_ends_with_its_terminal_and_leaves_nothing_running(how: str, sandbox: str, env: dict[str, str]) -> None:
    with Terminal("sandbox", "shell", sandbox, env=env) as terminal:
        terminal.until(b"$ ")
        terminal.type(b"exec -a left_behind sleep 600\r")
        terminal.until(b"sleep 600\r\n")
        assert termios.tcgetattr(terminal.slave) != terminal.before
        if how == "terminated":
            terminal.process.send_signal(signal.SIGTERM)
            assert terminal.end()[0] == 128 + signal.SIGTERM
            assert termios.tcgetattr(terminal.slave) == terminal.before
        else:
            terminal.hang_up()
            terminal.process.wait(30)
    assert kinfold("sandbox", "top", sandbox, env=env).stdout == b""


def test_a_shell_without_a_terminal_or_in_a_paused_sandbox_is_one_error_with_a_hint(
    sandbox: str, env: dict[str, str]
) -> None:
    ended = kinfold("sandbox", "shell", sandbox, env=env)
    assert (ended.returncode, ended.stdout) == (2, b"")
    assert b"error: a shell needs a terminal" in ended.stderr
    assert b"hint: `kinfold sandbox exec" in ended.stderr
    assert kinfold("sandbox", "pause", sandbox, env=env).returncode == 0
    with Terminal("sandbox", "shell", sandbox, env=env) as terminal:
        code, shown = terminal.end()
    assert code == 3
    assert b"is paused" in shown
    assert b"sandbox resume" in shown
    assert kinfold("sandbox", "resume", sandbox, env=env).returncode == 0


def test_the_sandbox_of_a_running_task_is_looked_at_paused_and_resumed_by_others_and_completes(
    env: dict[str, str], tmp_path: Path
) -> None:
    loop = "echo begun; echo oops >&2; while [ ! -e go ]; do sleep 0.05; done; echo over"
    calls = f"[{{tool: bash, input: {{command: '{loop}'}}}}]"
    done = "[{tool: complete, input: {summary: made it, paths: []}}]"
    model = script(tmp_path / "s.yaml", f"main:\n  - calls: {calls}\n  - calls: {done}\n")
    command = [KINFOLD, "run", "wait", "--model", model, "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as task:
        assert task.stdout is not None
        next(line for line in task.stdout if b'"tool_started"' in line)
        rows = [json.loads(line) for line in kinfold("sandbox", "stats", "--json", env=env).stdout.splitlines()]
        [row] = [row for row in rows if row["execsRunning"]]
        own = row["id"]
        assert (row["state"], row["leaseEndsInSeconds"], row["pids"] > 1) == ("running", None, True)
        assert row["memoryLimitBytes"] > row["memoryBytes"] > 0
        assert row["cpuPercent"] is not None
        listed = kinfold("sandbox", "top", own, env=env).stdout.decode()
        exec_id = re.search(r"exec_[0-9a-f]{16}", listed)
        assert exec_id is not None, listed
        assert "\trun_" in listed
        logged = kinfold("sandbox", "logs", own, exec_id[0], env=env)
        assert (logged.stdout, logged.stderr) == (b"begun\n", b"oops\n")
        follow = [KINFOLD, "sandbox", "logs", own, exec_id[0], "-f"]
        with subprocess.Popen(follow, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env) as following:
            assert following.stdout is not None
            assert following.stdout.readline() == b"begun\n"
            assert kinfold("sandbox", "pause", own, env=env).returncode == 0
            assert b"\tpaused\t" in kinfold("sandbox", "stats", own, "--once", env=env).stdout
            assert kinfold("sandbox", "write", own, "go", env=env).returncode == 0
            assert kinfold("sandbox", "resume", own, env=env).returncode == 0
            rest, errors = task.communicate(timeout=60)
            assert following.wait(30) == 0
    assert task.returncode == 0, errors.decode()
    assert b'"completed"' in rest
    gone = kinfold("sandbox", "stats", own, env=env)
    assert (gone.returncode, b"hint: " in gone.stderr) == (2, True)


@pytest.mark.threat("S04")
def test_what_a_sandbox_prints_is_escaped_on_a_terminal_and_untouched_in_a_pipe(
    sandbox: str, env: dict[str, str]
) -> None:
    shell = ["sandbox", "exec", sandbox, "--", "sh", "-c", PROGRAM]
    piped = kinfold(*shell, env=env)
    assert piped.stdout == f"{ATTACK}\nnext\n".encode()
    assert piped.stderr == b"wrong\x1b[2J\n"
    hidden = f"import ctypes, time; ctypes.CDLL(None).prctl(15, b'\\x1b]0;x'); print('{ATTACK}', flush=True)"
    hidden_run = [KINFOLD, "sandbox", "exec", sandbox, "--", "python3", "-c", f"{hidden}; time.sleep(600)"]
    with Terminal(*shell, env=env) as terminal:
        _assert_harmless(terminal, b"\\x1b]0;owned\\x07\\x1b[31m\\x202egpj\r\nnext\r\n", b"wrong\\x1b[2J")
    with subprocess.Popen(hidden_run, stdout=subprocess.PIPE, env=env) as running:
        assert running.stdout is not None
        running.stdout.read(8)
        with Terminal("sandbox", "logs", sandbox, env=env) as terminal:
            _assert_harmless(terminal, b"== exec_", b"\\x1b]0;owned")
        with Terminal("sandbox", "top", sandbox, env=env) as terminal:
            _assert_harmless(terminal, b"\\x1b]0;x")
        assert b"\\x1b]0;x" in kinfold("sandbox", "top", sandbox, env=env).stdout
        with Terminal("sandbox", "stats", env=env) as terminal:
            terminal.until(b"by-hand")
            terminal.type(b"\x03")
            assert terminal.end()[0] == 130
        running.send_signal(signal.SIGINT)


def _assert_harmless(terminal: Terminal, *words: bytes) -> None:
    """It shows the words, and nothing on it but rich's own colours and weights is an escape sequence."""
    _, shown = terminal.end()
    for word in words:
        assert word in shown, shown
    left = re.sub(rb"\x1b\[[0-9;]*m", b"", shown)
    assert b"\x1b" not in left, shown
    assert b"\x1b[31m" not in shown
