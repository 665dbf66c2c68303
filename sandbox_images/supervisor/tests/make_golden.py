"""Writes golden_frames.txt: one frame per line, its named values as JSON in the comment above it.

Every frame is a list of (schema word, field name, value); the words are those of FRAMES.md. Run it by hand after a
change of the format: `python3 tests/make_golden.py > golden_frames.txt`. The C and the Python codec are both tested
against the result, so neither is used here. In the JSON, bytes that are not printable ASCII stand as {"hex": "…"}.
"""

import json
import struct
import sys

INTEGERS = {"u8": "<B", "u16": "<H", "u32": "<I", "u64": "<Q", "i32": "<i", "i64": "<q"}
NONE = 2**64 - 1
HASH = bytes(range(0x20, 0x40))


def encode(word, value):
    """The bytes of one value; a list's word is a list of (word, name) for records, else list<word>."""
    if isinstance(word, list):
        rows = [b"".join(encode(w, row[name]) for w, name in word) for row in value]
        return struct.pack("<I", len(rows)) + b"".join(rows)
    if word in INTEGERS:
        return struct.pack(INTEGERS[word], value)
    if word == "bool":
        return b"\x01" if value else b"\x00"
    if word == "bytes":
        return struct.pack("<I", len(value)) + value
    if word in ("rest", "hash"):
        return value
    if word.startswith("list<"):
        return struct.pack("<I", len(value)) + b"".join(encode(word[5:-1], v) for v in value)
    if word == "items":
        return struct.pack("<I", len(value)) + b"".join(fields(item) for item in value)
    raise ValueError(word)


def fields(row):
    return b"".join(encode(word, value) for word, _, value in row)


def plain(value):
    """A value as JSON can hold it."""
    if isinstance(value, bytes):
        text = value.decode("latin-1")
        return text if all(" " <= c <= "~" for c in text) else {"hex": value.hex()}
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, tuple):
        return {name: plain(v) for _, name, v in value}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return value


def named(row):
    out = {}
    for word, name, value in row:
        out[name] = [named(item) for item in value] if word == "items" else plain(value)
    return out


def frame(name, kind, code, identity, *row):
    payload = fields(row)
    data = struct.pack("<IBBHQ", len(payload), code, 0, 0, identity) + payload
    print("# " + json.dumps({"frame": kind, "id": identity, **named(row)}))
    print(f"{name} {data.hex()}")


def record(
    kind, *, has=0, target=None, sha256=None, entries=None, target_type=None, size=1234, mtime=1_700_000_000_123_456_789
):
    row = [
        ("u8", "type", kind),
        ("u32", "mode", 0o644),
        ("u64", "size", size),
        ("i64", "mtime_ns", mtime),
        ("i64", "ctime_ns", mtime + 1),
        ("u64", "inode", 0x1122334455667788),
        ("u8", "has", has),
    ]
    row += [("bytes", "target", target)] if has & 1 else []
    row += [("hash", "sha256", sha256)] if has & 2 else []
    row += [("u64", "entries", entries)] if has & 4 else []
    row += [("u8", "target_type", target_type)] if has & 8 else []
    return row


def good(path, **rest):
    return [("bytes", "path", path), ("u8", "ok", 1), *record(**rest)]


def bad(path, kind, errno):
    return [("bytes", "path", path), ("u8", "ok", 0), ("u8", "kind", kind), ("i32", "errno", errno)]


FRAMES_OF_REQUESTS = [
    ("hello", "HELLO", 0x01, ("u16", "version", 1), ("u32", "flags", 0)),
    ("ping-empty", "PING", 0x02, ("rest", "data", b"")),
    ("ping", "PING", 0x02, ("rest", "data", b"are you there?")),
    ("processes", "PROCESSES", 0x03),
    (
        "attach",
        "ATTACH",
        0x11,
        ("u64", "exec_id", 9),
        ("bool", "stream", True),
        ("u64", "stdout_offset", 10),
        ("u64", "stderr_offset", 2**40),
        ("u64", "stdout_limit", 65546),
        ("u64", "stderr_limit", NONE),
    ),
    ("stdin", "STDIN", 0x12, ("u64", "offset", 3), ("rest", "data", b"abc\x00\xff")),
    ("stdin-eof", "STDIN_EOF", 0x13, ("u64", "offset", 8)),
    ("credit", "CREDIT", 0x14, ("u8", "stream", 2), ("u64", "limit", 2**33)),
    ("signal-leader", "SIGNAL", 0x15, ("u64", "exec_id", 9), ("i32", "signal", 15), ("bool", "all", False)),
    ("signal-all", "SIGNAL", 0x15, ("u64", "exec_id", 9), ("i32", "signal", 2), ("bool", "all", True)),
    ("kill", "KILL", 0x16, ("u64", "exec_id", 9), ("u64", "grace_ms", 2000)),
    ("resize", "RESIZE", 0x17, ("u64", "exec_id", 9), ("u16", "rows", 24), ("u16", "columns", 80)),
    ("forget", "FORGET", 0x18, ("list<u64>", "exec_ids", [9, 2**63])),
    ("forget-none", "FORGET", 0x18, ("list<u64>", "exec_ids", [])),
    ("end-owner", "END_OWNER", 0x19, ("bytes", "owner", b"run-1"), ("u64", "grace_ms", 1500)),
    ("pause", "PAUSE", 0x1A),
    ("resume", "RESUME", 0x1B),
    ("usage", "USAGE", 0x1C),
    ("execs", "EXECS", 0x1D),
    ("kept", "KEPT", 0x1E, ("u64", "exec_id", 9), ("u8", "stream", 1), ("u64", "offset", 100), ("u32", "limit", 4096)),
    ("cancel", "CANCEL", 0x1F),
    ("stat", "STAT", 0x20, ("u8", "flags", 0), ("list<bytes>", "paths", [b"a.txt", b"", b"../x", b"\xff\n\x00b"])),
    ("stat-digest", "STAT", 0x20, ("u8", "flags", 1), ("list<bytes>", "paths", [b"a.txt"])),
    ("stat-claim", "STAT", 0x20, ("u8", "flags", 2), ("list<bytes>", "paths", [b"/workspace/out"])),
    ("stat-digest-claim-none", "STAT", 0x20, ("u8", "flags", 3), ("list<bytes>", "paths", [])),
    (
        "read",
        "READ",
        0x21,
        ("bytes", "path", b"a.txt"),
        ("u64", "offset", 0),
        ("u64", "limit", NONE),
        ("u8", "flags", 0),
        ("u64", "credit", 1048576),
    ),
    (
        "read-part-digest",
        "READ",
        0x21,
        ("bytes", "path", b"a.txt"),
        ("u64", "offset", 5),
        ("u64", "limit", 7),
        ("u8", "flags", 1),
        ("u64", "credit", 0),
    ),
    ("write", "WRITE", 0x22, ("bytes", "path", b"out/a.txt"), ("u8", "flags", 0), ("u32", "mode", 0)),
    ("write-digest", "WRITE", 0x22, ("bytes", "path", b"out/a.txt"), ("u8", "flags", 8), ("u32", "mode", 0)),
    ("write-parents", "WRITE", 0x22, ("bytes", "path", b"out/a.txt"), ("u8", "flags", 1), ("u32", "mode", 0o755)),
    ("write-exclusive", "WRITE", 0x22, ("bytes", "path", b"out/a.txt"), ("u8", "flags", 2), ("u32", "mode", 0o600)),
    (
        "write-if-match",
        "WRITE",
        0x22,
        ("bytes", "path", b"out/a.txt"),
        ("u8", "flags", 4),
        ("u32", "mode", 0),
        ("hash", "if_match", HASH),
    ),
    (
        "write-if-absent-parents",
        "WRITE",
        0x22,
        ("bytes", "path", b"out/a.txt"),
        ("u8", "flags", 5),
        ("u32", "mode", 0),
        ("hash", "if_match", bytes(32)),
    ),
    (
        "list",
        "LIST",
        0x23,
        ("bytes", "path", b"."),
        ("u32", "depth", 1),
        ("u32", "max_entries", 10000),
        ("u8", "flags", 0),
    ),
    (
        "list-all",
        "LIST",
        0x23,
        ("bytes", "path", b"."),
        ("u32", "depth", 2**32 - 1),
        ("u32", "max_entries", 1000000),
        ("u8", "flags", 1),
    ),
    ("wdata", "WDATA", 0x24, ("rest", "data", b"\x00\x01content")),
    ("wdata-eof", "WDATA_EOF", 0x25),
    ("make-dir", "MAKE_DIR", 0x27, ("bytes", "path", b"d"), ("u32", "mode", 0o700), ("bool", "parents", False)),
    ("make-dir-parents", "MAKE_DIR", 0x27, ("bytes", "path", b"a/b/c"), ("u32", "mode", 0), ("bool", "parents", True)),
    ("remove", "REMOVE", 0x28, ("bytes", "path", b"d"), ("bool", "recursive", False)),
    ("remove-recursive", "REMOVE", 0x28, ("bytes", "path", b"d"), ("bool", "recursive", True)),
    ("rename", "RENAME", 0x29, ("bytes", "from", b"a"), ("bytes", "to", b"b"), ("bool", "replace", False)),
    ("rename-replace", "RENAME", 0x29, ("bytes", "from", b"a"), ("bytes", "to", b"b"), ("bool", "replace", True)),
    ("symlink", "SYMLINK", 0x2A, ("bytes", "target", b"../a"), ("bytes", "path", b"d/link")),
]

EXEC_LIMITS = [
    ("u64", "timeout_ms", 120000),
    ("u64", "idle_timeout_ms", 0),
    ("u64", "grace_ms", 2000),
    ("u64", "keep_stdout", 1048576),
    ("u64", "keep_stderr", 65536),
    ("u64", "output_limit", 2**34),
    ("u64", "stdout_limit", 262144),
    ("u64", "stderr_limit", 131072),
]
FRAMES_OF_EXECS = [
    (
        "exec",
        "EXEC",
        0x10,
        ("bytes", "owner", b"run-1"),
        ("u8", "mode", 0),
        ("u16", "rows", 0),
        ("u16", "columns", 0),
        ("list<bytes>", "argv", [b"python3", b"-c", b"print(1)"]),
        ("list<bytes>", "env", []),
        ("bytes", "cwd", b"."),
        *EXEC_LIMITS,
    ),
    (
        "exec-stream-stdin",
        "EXEC",
        0x10,
        ("bytes", "owner", b""),
        ("u8", "mode", 3),
        ("u16", "rows", 24),
        ("u16", "columns", 80),
        ("list<bytes>", "argv", [b"cat"]),
        ("list<bytes>", "env", [b"A=1", b"B=\xff\n"]),
        ("bytes", "cwd", b"/workspace/src"),
        *EXEC_LIMITS,
    ),
]

EXEC_TERMINAL = (
    "exec-terminal",
    "EXEC",
    0x10,
    ("bytes", "owner", b"run-1"),
    ("u8", "mode", 7),
    ("u16", "rows", 50),
    ("u16", "columns", 65535),
    ("list<bytes>", "argv", [b"bash"]),
    ("list<bytes>", "env", [b"TERM=xterm"]),
    ("bytes", "cwd", b"."),
    *EXEC_LIMITS,
)
PROCESS_ROW = [
    ("u64", "exec_id"),
    ("u32", "pid"),
    ("u32", "parent"),
    ("u8", "state"),
    ("u32", "threads"),
    ("u64", "memory"),
    ("u64", "cpu_us"),
    ("bytes", "name"),
]
PROCESSES = [
    {"exec_id": 9, "pid": 41, "parent": 7, "state": 83, "threads": 1, "memory": 4096, "cpu_us": 10000, "name": b"sh"},
    {
        "exec_id": 9,
        "pid": 42,
        "parent": 41,
        "state": 82,
        "threads": 3,
        "memory": 2**40,
        "cpu_us": 0,
        "name": b"\x1b[2J",
    },
]

END = [
    ("u8", "ended_by", 1),
    ("bool", "exited", True),
    ("i32", "exit_code", 3),
    ("i32", "signal", 0),
    ("u64", "stdout_total", 5000000),
    ("u64", "stderr_total", 12),
    ("u64", "stdout_head", 524288),
    ("u64", "stderr_head", 12),
    ("u32", "killed", 2),
    ("u32", "survivors", 0),
    ("list<u32>", "background_pids", [41, 42]),
    ("u64", "oom_kills", 0),
    ("u64", "duration_us", 1234567),
    ("i32", "start_errno", 0),
]
SIGNALLED = [
    ("u8", "ended_by", 3),
    ("bool", "exited", False),
    ("i32", "exit_code", 0),
    ("i32", "signal", 9),
    ("u64", "stdout_total", 0),
    ("u64", "stderr_total", 0),
    ("u64", "stdout_head", 0),
    ("u64", "stderr_head", 0),
    ("u32", "killed", 7),
    ("u32", "survivors", 1),
    ("list<u32>", "background_pids", []),
    ("u64", "oom_kills", 3),
    ("u64", "duration_us", 0),
    ("i32", "start_errno", 0),
]
DISK = [
    ("u64", "disk_bytes", 4096),
    ("u64", "disk_bytes_peak", 8192),
    ("u64", "disk_bytes_limit", 5368709120),
    ("u64", "disk_inodes", 17),
    ("u64", "disk_inodes_limit", 262144),
]
NO_DISK = [(word, name, NONE) for word, name, _ in DISK]
DISK_LIMITED = [("u8", "ended_by", 10), *SIGNALLED[1:], *DISK]
ENDED_ROW = [("u64", "exec_id"), ("u32", "killed"), ("u32", "survivors")]
EXEC_ROW = [
    ("u64", "exec_id"),
    ("u8", "state"),
    ("bytes", "owner"),
    ("u64", "stdout_total"),
    ("u64", "stderr_total"),
    ("u64", "age_ms"),
]
ITEMS = [
    good(b"a.txt", kind=1),
    good(b"sub", kind=2, size=4096, mtime=-1),
    good(b"link", kind=3, has=1, target=b"a.txt", size=5),
    good(b"fifo", kind=4, size=0),
    good(b"file-sha", kind=1, has=2, sha256=HASH),
    good(b"dir-claim", kind=2, has=6, sha256=HASH, entries=17),
    good(b"dir-claim-no-sha", kind=2, has=4, entries=17),
    good(b"link-claim", kind=3, has=11, target=b"/workspace/a.txt", sha256=HASH, target_type=1),
    good(b"link-dir-claim", kind=3, has=15, target=b"sub", sha256=HASH, entries=3, target_type=2),
    good(b"\xff\nname", kind=1),
    bad(b"../x", 1, 18),
    bad(b"gone", 2, 2),
    bad(b"", 9, 0),
]
FRAMES_OF_REPLIES = [
    (
        "ok-hello",
        "OK HELLO",
        0x41,
        ("u16", "version", 1),
        ("u64", "generation", 0xDEADBEEFCAFEF00D),
        ("u32", "pid", 1),
        ("u32", "agent_uid", 1000),
        ("u32", "agent_gid", 1000),
        ("u32", "controls", 0b111111111 & ~4),
        ("bytes", "root", b"/workspace"),
        ("bytes", "build", b"0123abcd"),
    ),
    ("ok-ping", "OK PING", 0x41, ("rest", "data", b"are you there?")),
    ("ok-exec", "OK EXEC", 0x41, *END, *DISK),
    ("ok-exec-timed-out", "OK EXEC", 0x41, *SIGNALLED, *NO_DISK),
    ("ok-exec-disk-limited", "OK EXEC", 0x41, *DISK_LIMITED),
    ("ok-attach", "OK ATTACH", 0x41, *END, *DISK),
    ("ok-signal", "OK SIGNAL", 0x41, ("u32", "signalled", 4)),
    ("ok-kill", "OK KILL", 0x41, ("u32", "killed", 4), ("u32", "survivors", 0)),
    (
        "ok-end-owner",
        "OK END_OWNER",
        0x41,
        (
            ENDED_ROW,
            "ended",
            [{"exec_id": 9, "killed": 1, "survivors": 0}, {"exec_id": 10, "killed": 0, "survivors": 2}],
        ),
    ),
    ("ok-resize", "OK RESIZE", 0x41),
    ("ok-processes", "OK PROCESSES", 0x41, ("bool", "complete", True), (PROCESS_ROW, "processes", PROCESSES)),
    ("ok-processes-none", "OK PROCESSES", 0x41, ("bool", "complete", False), (PROCESS_ROW, "processes", [])),
    ("ok-pause", "OK PAUSE", 0x41),
    ("ok-resume", "OK RESUME", 0x41),
    (
        "ok-usage",
        "OK USAGE",
        0x41,
        ("u64", "cpu_us", 5),
        ("u64", "memory", 6),
        ("u64", "memory_peak", 7),
        ("u64", "memory_limit", 8),
        ("u64", "pids", 9),
        ("u64", "pids_peak", NONE),
        ("u64", "pids_limit", 512),
        ("u64", "oom_kills", 0),
        ("u64", "execs_running", 1),
        *DISK,
        ("u64", "paused", 1),
        ("u64", "paused_us", 2_500_000),
    ),
    (
        "ok-execs",
        "OK EXECS",
        0x41,
        (
            EXEC_ROW,
            "execs",
            [{"exec_id": 9, "state": 2, "owner": b"run-1", "stdout_total": 1, "stderr_total": 2, "age_ms": 3}],
        ),
    ),
    ("ok-kept", "OK KEPT", 0x41, ("u8", "state", 3), ("u64", "total", 100)),
    ("ok-stat", "OK STAT", 0x41),
    ("ok-read", "OK READ", 0x41, ("u8", "has", 0)),
    ("ok-read-digest", "OK READ", 0x41, ("u8", "has", 1), ("hash", "sha256", HASH)),
    ("ok-write", "OK WRITE", 0x41, *record(1, has=2, sha256=HASH)),
    ("ok-list", "OK LIST", 0x41, ("bool", "truncated", False), ("u64", "count", 3)),
    ("ok-list-truncated", "OK LIST", 0x41, ("bool", "truncated", True), ("u64", "count", 10000)),
    ("ok-make-dir", "OK MAKE_DIR", 0x41, *record(2)),
    ("ok-remove", "OK REMOVE", 0x41, ("u64", "removed", 12)),
    ("ok-rename", "OK RENAME", 0x41, *record(1)),
    ("ok-symlink", "OK SYMLINK", 0x41, *record(3, has=1, target=b"../a", size=4)),
    ("error", "ERROR", 0x42, ("u8", "kind", 2), ("i32", "errno", 2), ("bytes", "message", b"there is no such file")),
    ("error-no-errno", "ERROR", 0x42, ("u8", "kind", 33), ("i32", "errno", 0), ("bytes", "message", b"")),
    ("error-ended", "ERROR", 0x42, ("u8", "kind", 38), ("i32", "errno", 0), ("bytes", "message", b"it has ended")),
    ("data", "DATA", 0x43, ("rest", "data", bytes(range(256)))),
    *[
        (
            f"items-{item[0][2].decode('latin-1').strip(chr(0xFF)).strip() or 'empty'}".replace("../x", "escape"),
            "ITEMS",
            0x44,
            ("items", "items", [item]),
        )
        for item in ITEMS
    ],
    ("items-none", "ITEMS", 0x44, ("items", "items", [])),
    ("items-all", "ITEMS", 0x44, ("items", "items", ITEMS)),
    ("output-stdout", "OUTPUT", 0x45, ("u8", "stream", 1), ("u64", "offset", 0), ("rest", "data", b"hello\n")),
    ("output-stderr", "OUTPUT", 0x45, ("u8", "stream", 2), ("u64", "offset", 2**40), ("rest", "data", b"\xff\x00")),
    ("started", "STARTED", 0x46, ("u32", "pid", 4242)),
    ("window", "WINDOW", 0x47, ("u8", "stream", 0), ("u64", "limit", 1048576 + 262144)),
]

FRAMES_OF_EGRESS = [
    ("egress", "EGRESS", 0x30, ("u32", "streams", 64)),
    ("egress-data", "EGRESS_DATA", 0x31, ("u32", "stream", 3), ("rest", "data", b"HTTP/1.1 200 OK")),
    ("egress-eof", "EGRESS_EOF", 0x32, ("u32", "stream", 3)),
    ("egress-credit", "EGRESS_CREDIT", 0x33, ("u32", "stream", 3), ("u64", "limit", 2**33)),
    ("egress-close", "EGRESS_CLOSE", 0x34, ("u32", "stream", 2**32 - 1)),
    ("egress-ready", "EGRESS_READY", 0x48, ("u16", "port", 3128)),
    ("egress-opened", "EGRESS_OPENED", 0x49, ("u32", "stream", 4)),
    ("egress-bytes", "EGRESS_BYTES", 0x4A, ("u32", "stream", 4), ("rest", "data", b"CONNECT a:443 HTTP/1.1")),
    ("egress-ended", "EGRESS_ENDED", 0x4B, ("u32", "stream", 4)),
    ("egress-room", "EGRESS_ROOM", 0x4C, ("u32", "stream", 4), ("u64", "limit", 524288)),
    ("egress-gone", "EGRESS_GONE", 0x4D, ("u32", "stream", 4)),
]
ALL_FRAMES = [*FRAMES_OF_REQUESTS, *FRAMES_OF_EXECS, EXEC_TERMINAL, *FRAMES_OF_REPLIES, *FRAMES_OF_EGRESS]


def main():
    print(
        "# Written by tests/make_golden.py. `name hex` per line; the frame's named values as JSON above it, named as in"
    )
    print('# FRAMES.md; bytes as text where printable ASCII, else {"hex": …}. "OK X" is the OK reply to request X.')
    for index, (name, kind, code, *row) in enumerate(ALL_FRAMES):
        frame(name, kind, code, 0x0102030405060700 + index, *row)


if __name__ == "__main__":
    sys.exit(main())
