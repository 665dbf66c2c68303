"""A small blocking client of FRAMES.md, independent of kinfold's own, so that each checks the format."""

from __future__ import annotations

import os
import random
import socket
import struct
from dataclasses import dataclass, field
from typing import Any

TYPES = {
    "HELLO": 1,
    "PING": 2,
    "PROCESSES": 3,
    "EXEC": 0x10,
    "ATTACH": 0x11,
    "STDIN": 0x12,
    "STDIN_EOF": 0x13,
    "CREDIT": 0x14,
    "SIGNAL": 0x15,
    "KILL": 0x16,
    "RESIZE": 0x17,
    "FORGET": 0x18,
    "END_OWNER": 0x19,
    "PAUSE": 0x1A,
    "RESUME": 0x1B,
    "USAGE": 0x1C,
    "EXECS": 0x1D,
    "KEPT": 0x1E,
    "CANCEL": 0x1F,
    "STAT": 0x20,
    "READ": 0x21,
    "WRITE": 0x22,
    "LIST": 0x23,
    "WDATA": 0x24,
    "WDATA_EOF": 0x25,
    "EGRESS": 0x30,
    "EGRESS_DATA": 0x31,
    "EGRESS_EOF": 0x32,
}
OK, ERROR, DATA, ITEMS, OUTPUT, STARTED, WINDOW = range(0x41, 0x48)
EGRESS_READY, EGRESS_OPENED, EGRESS_BYTES, EGRESS_ENDED, _, EGRESS_GONE = range(0x48, 0x4E)
ENDED_BY = [
    "",
    "exited",
    "signalled",
    "timed_out",
    "idle_timed_out",
    "output_limited",
    "pids_limited",
    "cancelled",
    "oom_killed",
    "kill_failed",
    "disk_limited",
]
ALL = 2**64 - 1


def pack_bytes(data: bytes) -> bytes:
    """A u32 length and the bytes."""
    return struct.pack("<I", len(data)) + data


@dataclass
class End:
    """A decoded *end* payload and the output that came before it."""

    ended_by: str = ""
    exited: bool = False
    exit_code: int = 0
    signal: int = 0
    totals: tuple[int, int] = (0, 0)
    heads: tuple[int, int] = (0, 0)
    killed: int = 0
    survivors: int = 0
    background: list[int] = field(default_factory=list)
    oom_kills: int = 0
    duration_us: int = 0
    start_errno: int = 0
    disk: tuple[int, ...] = ()
    out: bytes = b""
    err: bytes = b""
    frames: list[str] = field(default_factory=list)


def decode_end(payload: bytes) -> End:
    """Decode *end* to the last byte."""
    head = struct.unpack_from("<BBiiQQQQIII", payload)
    at = struct.calcsize("<BBiiQQQQIII")
    count = head[10]
    background = list(struct.unpack_from(f"<{count}I", payload, at))
    at += 4 * count
    oom, duration, errno = struct.unpack_from("<QQi", payload, at)
    disk = struct.unpack_from("<5Q", payload, at + 20)
    assert at + 60 == len(payload), (at, len(payload))
    return End(
        ENDED_BY[head[0]],
        bool(head[1]),
        head[2],
        head[3],
        (head[4], head[5]),
        (head[6], head[7]),
        head[8],
        head[9],
        background,
        oom,
        duration,
        errno,
        disk,
    )


class Client:
    """One channel over a connected socket."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.buffer = b""
        self.early: dict[int, list[tuple[int, bytes]]] = {}

    def send(self, kind: str, ident: int, payload: bytes = b"") -> None:
        """Write one frame."""
        self.sock.sendall(struct.pack("<IBBHQ", len(payload), TYPES[kind], 0, 0, ident) + payload)

    def _next(self) -> tuple[int, int, bytes]:
        while True:
            if len(self.buffer) >= 16:
                length, kind, _, _, ident = struct.unpack_from("<IBBHQ", self.buffer)
                if len(self.buffer) >= 16 + length:
                    payload = self.buffer[16 : 16 + length]
                    self.buffer = self.buffer[16 + length :]
                    return kind, ident, payload
            more = self.sock.recv(1 << 20)
            if not more:
                raise EOFError("the channel ended")
            self.buffer += more

    def receive(self, ident: int) -> tuple[int, bytes]:
        """The next frame of this request; others' are kept for them."""
        waiting = self.early.get(ident)
        if waiting:
            return waiting.pop(0)
        while True:
            kind, whose, payload = self._next()
            if whose == ident:
                return kind, payload
            self.early.setdefault(whose, []).append((kind, payload))

    def call(self, kind: str, payload: bytes = b"", ident: int | None = None) -> bytes:
        """A request with one terminal reply; RuntimeError for ERROR."""
        ident = ident or new_id()
        self.send(kind, ident, payload)
        answer, body = self.receive(ident)
        if answer == ERROR:
            raise RuntimeError(f"error {body[0]}: {body[9:].decode()}")
        assert answer == OK, answer
        return body

    def hello(self) -> dict[str, Any]:
        """Greet; what the supervisor says of itself."""
        body = self.call("HELLO", struct.pack("<HI", 1, 0))
        version, generation, pid, uid, gid, controls = struct.unpack_from("<HQIIII", body)
        return {"version": version, "generation": generation, "pid": pid, "uid": uid, "gid": gid, "controls": controls}

    def start(
        self,
        argv: list[str],
        *,
        mode: int = 0,
        owner: bytes = b"run_1",
        env: tuple[str, ...] = (),
        cwd: bytes = b"",
        timeout: float = 0,
        idle: float = 0,
        grace: float = 0.2,
        keep: int = 1 << 20,
        limit: int = 0,
        credit: int = ALL,
        ident: int | None = None,
        size: tuple[int, int] = (0, 0),
    ) -> int:
        """Send EXEC; its id."""
        ident = ident or new_id()
        body = pack_bytes(owner) + struct.pack("<BHH", mode, *size)
        for strings in (argv, env):
            body += struct.pack("<I", len(strings)) + b"".join(pack_bytes(os.fsencode(s)) for s in strings)
        body += pack_bytes(cwd) + struct.pack(
            "<QQQQQQQQ", int(timeout * 1000), int(idle * 1000), int(grace * 1000), keep, keep, limit, credit, credit
        )
        self.send("EXEC", ident, body)
        return ident

    def finish(self, ident: int) -> End:
        """Collect an EXEC's or ATTACH's frames up to its end."""
        out = {1: bytearray(), 2: bytearray()}
        seen: list[str] = []
        while True:
            kind, body = self.receive(ident)
            if kind == OUTPUT:
                seen.append("OUTPUT")
                out[body[0]] += body[9:]
            elif kind == STARTED:
                seen.append("STARTED")
            elif kind == OK:
                end = decode_end(body)
                end.out, end.err, end.frames = bytes(out[1]), bytes(out[2]), seen
                return end
            elif kind == ERROR:
                raise RuntimeError(f"error {body[0]}: {body[9:].decode()}")

    def run(self, argv: list[str], **options: Any) -> End:
        """EXEC and its end."""
        return self.finish(self.start(argv, **options))


def new_id() -> int:
    """A random request id."""
    return random.getrandbits(63) | 1
