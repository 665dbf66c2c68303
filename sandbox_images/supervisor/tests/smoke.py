"""A smoke test of the real binary, --local, over a dialled socket: `smoke.py BINARY`. Each check is a sentence."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from frames_client import (
    ALL,
    EGRESS_BYTES,
    EGRESS_ENDED,
    EGRESS_GONE,
    EGRESS_OPENED,
    EGRESS_READY,
    ERROR,
    OK,
    OUTPUT,
    WINDOW,
    Client,
    decode_end,
    new_id,
    pack_bytes,
)

CHECKS: list[Callable[[Local], None]] = []
STUBBORN = (
    "import os,signal,time\nfor s in range(1,32):\n  try: signal.signal(s, signal.SIG_IGN)\n  except OSError: pass\n"
)
DAEMONS = STUBBORN + (
    "for _ in range(8):\n  if os.fork() == 0:\n    os.setsid()\n    if os.fork(): os._exit(0)\n    time.sleep(600)\n"
    "print('up', flush=True)\ntime.sleep(600)\n"
)


class Local:
    """A supervisor started with --local, and a channel to it."""

    def __init__(self, binary: str) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="kf-smoke-"))
        for name in ("dial", "root", "home"):
            (self.directory / name).mkdir()
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(str(self.directory / "dial" / "host"))
        self.listener.listen(4)
        self.listener.settimeout(10)
        d = self.directory
        self.process = subprocess.Popen(
            [
                binary,
                "init",
                "--local",
                "--root",
                d / "root",
                "--home",
                d / "home",
                "--dial",
                d / "dial",
                "--orphan-grace",
                "30",
                "--egress",
                "0",
            ]
        )
        self.client = self.accept()

    def accept(self) -> Client:
        """The next connection that the supervisor dials, greeted."""
        sock, _ = self.listener.accept()
        sock.settimeout(30)
        client = Client(sock)
        self.about = client.hello()
        return client

    def close(self) -> None:
        """TERM ends it within two seconds, and with status 0."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=5)
        shutil.rmtree(self.directory)
        assert status == 0, status


def check(function: Callable[[Local], None]) -> Callable[[Local], None]:
    """Register a check."""
    CHECKS.append(function)
    return function


def descendants(pid: int) -> list[int]:
    """Living processes below `pid`, shims left out: what this test sees from outside."""
    parents: dict[int, tuple[int, str, str]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                name, rest = Path(f"/proc/{entry}/stat").read_text().rsplit(")", 1)
            except OSError:
                continue
            parents[int(entry)] = (int(rest.split()[1]), rest.split()[0], name.split("(", 1)[1])
    found = {pid}
    grown = True
    while grown:
        more = {p for p, (parent, _, _) in parents.items() if parent in found} - found
        found |= more
        grown = bool(more)
    return sorted(p for p in found - {pid} if parents[p][1] != "Z" and parents[p][2] != "kf-shim")


@check
def a_program_runs_and_its_output_and_status_come_back(box: Local) -> None:
    """Both streams, the exit status, a missing program, a directory."""
    end = box.client.run(["sh", "-c", "echo out; echo err >&2; exit 3"])
    assert (end.out, end.err, end.exit_code, end.ended_by) == (b"out\n", b"err\n", 3, "exited")
    assert box.client.run(["no-such-program"]).exit_code == 127
    assert box.client.run([str(box.directory)]).start_errno == 13
    assert box.client.run(["env"], env=("A=1", "A=2", "PATH=/usr/bin:/bin")).out.count(b"A=2\n") == 1


@check
def of_thousands_of_variables_each_is_set_once_and_the_last_one_wins(box: Local) -> None:
    """4,000 names, each given three times."""
    names = [f"{n:x}" for n in range(4000)]
    given = [f"V{name}={turn}" for turn in "123" for name in names]
    seen = box.client.run(["env"], env=(*given, "PATH=/usr/bin:/bin")).out.split()
    assert sorted(entry for entry in seen if entry.startswith(b"V")) == sorted(f"V{name}=3".encode() for name in names)


@check
def a_working_directory_outside_the_root_is_refused(box: Local) -> None:
    """Error kinds 1 (escape) and 2 (missing)."""
    for cwd, kind in ((b"../..", "error 1"), (b"/etc", "error 1"), (b"missing", "error 2")):
        try:
            box.client.run(["true"], cwd=cwd)
        except RuntimeError as error:
            assert str(error).startswith(kind), error
        else:
            raise AssertionError(cwd)


@check
def head_and_tail_of_a_flood_are_kept_and_its_totals_are_true(box: Local) -> None:
    """1,001 bytes kept of 10 MB: 501 head, 500 tail."""
    end = box.client.run(["sh", "-c", "yes 0123456 | head -c 10000000"], keep=1001)
    whole = b"0123456\n" * 1_250_000
    assert end.totals[0] == 10_000_000 and end.heads[0] == 501, end
    assert end.out == whole[:501] + whole[-500:]


@check
def stdin_goes_through_whole_and_a_program_that_does_not_read_it_ends(box: Local) -> None:
    """20 MB into sha256sum within the window; the same into `true`."""
    data = os.urandom(1 << 20) * 20
    assert send_all(box.client, ["sha256sum"], data).out[:64].decode() == hashlib.sha256(data).hexdigest()
    assert send_all(box.client, ["true"], data).exit_code == 0


def send_all(client: Client, argv: list[str], data: bytes) -> object:
    """EXEC with stdin; every byte is sent inside the granted window."""
    ident, sent, limit = client.start(argv, mode=2), 0, 262_144
    while sent < len(data):
        piece = data[sent : min(limit, sent + 200_000)]
        if piece:
            client.send("STDIN", ident, struct.pack("<Q", sent) + piece)
            sent += len(piece)
            continue
        kind, body = client.receive(ident)
        if kind == WINDOW:
            limit = struct.unpack("<BQ", body)[1]
        elif kind == OK:
            return decode_end(body)
    client.send("STDIN_EOF", ident, struct.pack("<Q", len(data)))
    return client.finish(ident)


@check
def daemons_that_ignore_every_signal_die_at_the_timeout(box: Local) -> None:
    """Double forks with sessions of their own; looked for from outside."""
    end = box.client.run(["python3", "-c", DAEMONS], timeout=1.5, grace=0.1)
    assert end.ended_by == "timed_out" and end.survivors == 0, end
    assert end.out == b"up\n" and end.killed >= 9, end
    assert descendants(box.process.pid) == []


@check
def a_program_controls_the_terminal_that_it_asked_for(box: Local) -> None:
    """One stream, a session of its own, the size asked for, Ctrl-C to the foreground, Ctrl-D as the end of input."""
    end = box.client.run(["sh", "-c", "stty size; tty; cat; echo err >&2"], mode=4, size=(31, 117))
    lines = end.out.decode().split("\r\n")
    assert lines[0] == "31 117" and lines[1].startswith("/dev/pts/") and lines[2:] == ["err", ""], end
    assert (end.exit_code, end.err, end.totals[1]) == (0, b"", 0), end
    ident = box.client.start(["sh", "-c", "trap 'echo got' INT; cat; cat; echo over"], mode=7, size=(24, 80))
    follow(box.client, ident, 0, b"typed\n", b"typed\r\ntyped\r\n")
    follow(box.client, ident, 6, b"\x03", b"got\r\n")
    follow(box.client, ident, 7, b"half", b"half")
    box.client.send("STDIN_EOF", ident, struct.pack("<Q", 11))
    end = box.client.finish(ident)
    assert end.out == b"halfover\r\n" and end.exit_code == 0, end
    try:
        box.client.run(["true"], mode=4, size=(0, 80))
    except RuntimeError as error:
        assert str(error).startswith("error 9"), error
    else:
        raise AssertionError("a terminal without rows")


def follow(client: Client, ident: int, offset: int, typed: bytes, wanted: bytes) -> None:
    """Type, and read until the answer is there."""
    client.send("STDIN", ident, struct.pack("<Q", offset) + typed)
    got = b""
    while not got.endswith(wanted):
        kind, body = client.receive(ident)
        assert kind != OK, (got, wanted)
        got += body[9:] if kind == OUTPUT else b""


@check
def a_resize_reaches_the_program_and_is_refused_where_none_can_hear_it(box: Local) -> None:
    """SIGWINCH and the new size; error 33, 9 and 38 for an unknown exec, one without a terminal, one that has ended."""
    size = "import os, signal as s; s.pthread_sigmask(s.SIG_BLOCK, [s.SIGWINCH]); print('up', flush=True);"
    size += "s.sigwait([s.SIGWINCH]); print(*os.get_terminal_size(), flush=True); input()"
    ident = box.client.start(["python3", "-c", size], mode=7, size=(24, 80))
    follow(box.client, ident, 0, b"", b"up\r\n")
    assert box.client.call("RESIZE", struct.pack("<QHH", ident, 50, 200)) == b""
    follow(box.client, ident, 0, b"", b"200 50\r\n")
    box.client.send("STDIN", ident, struct.pack("<Q", 0) + b"\n")
    assert box.client.finish(ident).exit_code == 0
    plain = box.client.start(["sleep", "60"])
    for whom, rows, kind in ((ident, 50, 38), (99, 50, 33), (plain, 50, 9), (ident, 0, 9)):
        box.client.send("RESIZE", 8, struct.pack("<QHH", whom, rows, 80))
        answer, body = box.client.receive(8)
        assert (answer, body[0]) == (ERROR, kind), (whom, rows, body)
    box.client.call("KILL", struct.pack("<QQ", plain, 0))


@check
def megabytes_typed_and_flooded_through_a_terminal_arrive_whole_and_a_kill_is_proved(box: Local) -> None:
    """3 MB in and out in raw mode; a flood is counted, kept within bounds, limited; a stubborn tree in it dies."""
    data = bytes(range(256)) * 12_000
    raw = "import hashlib, sys, tty; tty.setraw(0); print('up', end='', flush=True); "
    ident = box.client.start(["python3", "-c", raw + f"d = sys.stdin.buffer.read({len(data)}); print(hashlib.sha256(d)"
                              ".hexdigest(), end='')"], mode=7, size=(24, 80))  # fmt: skip
    follow(box.client, ident, 0, b"", b"up")
    sent, limit, out = 0, 262_144, b""
    while not out:
        if piece := data[sent : min(limit, sent + 100_000)]:
            box.client.send("STDIN", ident, struct.pack("<Q", sent) + piece)
            sent += len(piece)
            continue
        kind, body = box.client.receive(ident)
        limit = struct.unpack("<BQ", body)[1] if kind == WINDOW else limit
        out += body[9:] if kind == OUTPUT else b""
    end = box.client.finish(ident)
    assert (out + end.out).decode() == hashlib.sha256(data).hexdigest(), end
    end = box.client.run(["sh", "-c", "stty -opost; yes 0123456 | head -c 3000000"], mode=4, size=(24, 80), keep=1001)
    whole = b"0123456\n" * 375_000
    assert (end.out, end.totals[0], end.heads[0]) == (whole[:501] + whole[-500:], 3_000_000, 501), end.totals
    assert box.client.run(["yes"], mode=4, size=(24, 80), limit=1_000_000).ended_by == "output_limited"
    end = box.client.run(["python3", "-c", DAEMONS], mode=4, size=(24, 80), timeout=1.5, grace=0.1)
    assert (end.ended_by, end.survivors) == ("timed_out", 0) and end.killed >= 9, end
    assert descendants(box.process.pid) == []


@check
def the_processes_of_each_exec_are_named(box: Local) -> None:
    """PROCESSES: the shell and its child, with memory and the name each gave itself, whatever bytes; no shim."""
    name = b"\x1b]0;(x) 1 2)"
    code = (
        "import ctypes, time; ctypes.CDLL(None).prctl(15, b'\\x1b]0;(x) 1 2)'); print('up', flush=True); time.sleep(60)"
    )
    ident = box.client.start(["sh", "-c", 'python3 -c "$0"; :', code], mode=1)
    follow(box.client, ident, 0, b"", b"up\n")
    rows = processes(box.client)
    assert {row[0] for row in rows} == {ident} and [row[8] for row in rows] == [b"sh", name], rows
    shell, child = rows
    assert child[2] == shell[1] and child[4] == 1 and child[5] > 1_000_000 and child[6] > 0, rows
    box.client.call("KILL", struct.pack("<QQ", ident, 0))
    assert processes(box.client) == []


def processes(client: Client) -> list[tuple[Any, ...]]:
    """The rows of PROCESSES."""
    body = client.call("PROCESSES")
    complete, count = struct.unpack_from("<BI", body)
    at, rows = 5, []
    for _ in range(count):
        row = struct.unpack_from("<QIIBIQQI", body, at)
        at += struct.calcsize("<QIIBIQQI") + row[7]
        rows.append((*row, body[at - row[7] : at]))
    assert complete == 1 and at == len(body), body
    return rows


@check
def a_background_process_outlives_its_exec_and_its_owner_ends_it(box: Local) -> None:
    """The end comes at once with its pid; KEPT reads on; END_OWNER kills with proof."""
    began = time.monotonic()
    ident = box.client.start(["sh", "-c", "(while :; do echo tick; sleep 0.05; done) & echo started"], owner=b"run_bg")
    end = box.client.finish(ident)
    assert time.monotonic() - began < 2 and b"started\n" in end.out
    assert end.background, end
    time.sleep(0.3)
    box.client.send("KEPT", 7, struct.pack("<QBQI", ident, 1, 0, 1 << 20))
    kind, body = box.client.receive(7)
    assert kind == OUTPUT and body.count(b"tick") >= 2
    assert box.client.receive(7)[1][0] == 2
    answer = box.client.call("END_OWNER", pack_bytes(b"run_bg") + struct.pack("<Q", 0))
    count, who, killed, survivors = struct.unpack("<IQII", answer)
    assert (count, who, survivors) == (1, ident, 0) and killed >= 1
    assert descendants(box.process.pid) == []


@check
def a_reader_without_credit_pauses_the_program_and_a_detached_one_does_not(box: Local) -> None:
    """Bytes come up to the limit and no further; after CANCEL the flood is drained."""
    ident = box.client.start(["yes"], mode=1, credit=1000, keep=4096)
    got = b""
    while len(got) < 1000:
        kind, body = box.client.receive(ident)
        got += body[9:] if kind == OUTPUT and body[0] == 1 else b""
    time.sleep(0.3)
    first = totals(box.client)[ident]
    time.sleep(0.3)
    assert totals(box.client)[ident] == first and len(got) == 1000
    box.client.send("CANCEL", ident)
    kind, body = box.client.receive(ident)
    assert kind == ERROR and body[0] == 36
    time.sleep(0.2)
    assert totals(box.client)[ident] > first
    box.client.call("KILL", struct.pack("<QQ", ident, 0))


def totals(client: Client) -> dict[int, int]:
    """EXECS: bytes of stdout so far, by exec."""
    body, at = client.call("EXECS"), 4
    found = {}
    for _ in range(struct.unpack_from("<I", body)[0]):
        ident, _, length = struct.unpack_from("<QBI", body, at)
        found[ident] = struct.unpack_from("<Q", body, at + 13 + length)[0]
        at += 13 + length + 24
    assert at == len(body)
    return found


@check
def a_new_channel_attaches_where_the_broken_one_left_off(box: Local) -> None:
    """The program runs on; the offset asked for is the first byte sent."""
    ident = box.client.start(["sh", "-c", "for i in 1 2 3 4 5; do echo $i; sleep 0.1; done"], mode=1)
    time.sleep(0.2)
    box.client.sock.close()
    box.client = box.accept()
    box.client.send("ATTACH", 5, struct.pack("<QBQQQQ", ident, 1, 2, 0, ALL, ALL))
    assert box.client.finish(5).out == b"2\n3\n4\n5\n"
    box.client.send("ATTACH", 6, struct.pack("<QBQQQQ", ident, 0, 0, 0, 0, 0))
    assert box.client.finish(6).out == b"1\n2\n3\n4\n5\n"


@check
def a_pause_stops_programs_and_their_clocks(box: Local) -> None:
    """No output while paused, a timeout that does not count it, and nothing starts."""
    ident = box.client.start(["sh", "-c", "while :; do echo t; sleep 0.02; done"], timeout=1.0)
    time.sleep(0.2)
    box.client.call("PAUSE")
    time.sleep(0.1)
    first = totals(box.client)[ident]
    late = box.client.start(["echo", "late"])
    time.sleep(1.2)
    assert totals(box.client)[ident] == first
    box.client.call("RESUME")
    assert box.client.finish(late).out == b"late\n"
    began = time.monotonic()
    assert box.client.finish(ident).ended_by == "timed_out" and time.monotonic() - began > 0.4


@check
def limits_end_a_program_and_say_which(box: Local) -> None:
    """Idle time, output, a signal of the host's, a kill."""
    assert box.client.run(["sleep", "60"], idle=0.2).ended_by == "idle_timed_out"
    assert box.client.run(["yes"], limit=1_000_000).ended_by == "output_limited"
    ident = box.client.start(["sleep", "60"])
    assert struct.unpack("<I", box.client.call("SIGNAL", struct.pack("<QiB", ident, 9, 0))) == (1,)
    end = box.client.finish(ident)
    assert (end.ended_by, end.signal) == ("signalled", 9)
    ident = box.client.start(["sleep", "60"])
    assert struct.unpack("<II", box.client.call("KILL", struct.pack("<QQ", ident, 0))) == (1, 0)
    assert box.client.finish(ident).ended_by == "cancelled"


@check
def an_illegal_frame_ends_its_channel_and_nothing_else(box: Local) -> None:
    """The exec runs on; the supervisor dials again."""
    ident = box.client.start(["sleep", "60"])
    box.client.call("PING", b"x")
    box.client.sock.sendall(b"\xff" * 64)
    box.client = box.accept()
    assert ident in totals(box.client)
    box.client.call("KILL", struct.pack("<QQ", ident, 0))
    box.client.send("FORGET", new_id(), struct.pack("<IQ", 1, ident))
    assert ident not in totals(box.client)


TALK = """
import errno, os, socket, sys, urllib.parse
at = urllib.parse.urlsplit(os.environ["https_proxy"])
s = socket.create_connection((at.hostname, at.port))
try:
    s.sendall(b"ask")
    s.shutdown(socket.SHUT_WR)
    print(b"".join(iter(lambda: s.recv(65536), b"")).decode())
except OSError as error:
    print(errno.errorcode[error.errno])
"""


@check
def a_programs_connection_is_carried_to_a_host_that_claims_it_and_cut_where_none_does(box: Local) -> None:
    """By the variables that every program gets, unless the exec sets its own."""
    assert box.client.run(["python3", "-c", TALK]).out.strip() in (b"ECONNRESET", b"EPIPE", b"ENOTCONN")
    assert b"http_proxy=http://own\n" in box.client.run(["env"], env=("http_proxy=http://own",)).out
    box.client.send("EGRESS", 9, struct.pack("<I", 4))
    assert box.client.receive(9)[0] == EGRESS_READY
    ident = box.client.start(["python3", "-c", TALK])
    assert box.client.receive(9) == (EGRESS_OPENED, struct.pack("<I", 1))
    asked = b""
    while (frame := box.client.receive(9))[0] == EGRESS_BYTES:
        asked += frame[1][4:]
    assert (asked, frame) == (b"ask", (EGRESS_ENDED, struct.pack("<I", 1)))
    box.client.send("EGRESS_DATA", 9, struct.pack("<I", 1) + b"answer")
    box.client.send("EGRESS_EOF", 9, struct.pack("<I", 1))
    assert box.client.finish(ident).out == b"answer\n"
    assert box.client.receive(9) == (EGRESS_GONE, struct.pack("<I", 1))
    box.client.send("CANCEL", 9)
    assert box.client.receive(9)[0] == ERROR


@check
def usage_is_answered_and_descriptors_do_not_leak(box: Local) -> None:
    """Sixteen figures; the same number of descriptors after 200 execs, a third of them with terminals."""
    assert len(box.client.call("USAGE")) == 128
    before = None
    for count in range(300):
        terminal = count % 3 == 0
        ident = box.client.start(["echo", "x"], mode=4 * terminal, size=(24, 80))
        assert box.client.finish(ident).out == (b"x\r\n" if terminal else b"x\n")
        box.client.send("FORGET", new_id(), struct.pack("<IQ", 1, ident))
        if count == 100:
            before = len(os.listdir(f"/proc/{box.process.pid}/fd"))
    box.client.call("PING")
    after = len(os.listdir(f"/proc/{box.process.pid}/fd"))
    assert before is not None and abs(after - before) <= 3, (before, after)


def main() -> int:
    """Run every check on one supervisor."""
    box = Local(sys.argv[1])
    try:
        for function in CHECKS:
            function(box)
            print(f"ok  {function.__name__.replace('_', ' ')}")
    finally:
        box.close()
    print(f"{len(CHECKS)} checks passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
