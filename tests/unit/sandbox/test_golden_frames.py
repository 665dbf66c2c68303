"""Both implementations of the format are held to the same bytes: `sandbox_images/supervisor/golden_frames.txt`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kinfold.sandbox import encode, protocol, replies
from kinfold.sandbox.processes import ProcessInfo, ProcessTable, process_table
from kinfold.sandbox.protocol import FrameSplitter, Reply, Request

GOLDEN = Path(__file__).parents[3] / "sandbox_images" / "supervisor" / "golden_frames.txt"
Fields = Mapping[str, Any]


class Golden(NamedTuple):
    """One line of the file and the words above it."""

    name: str
    frame: str
    id: int
    fields: Fields
    data: bytes


def plain(value: Any) -> Any:
    """JSON as written there: text stands for its bytes."""
    if isinstance(value, dict) and set(value) == {"hex"}:
        return bytes.fromhex(value["hex"])
    if isinstance(value, dict):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value.encode() if isinstance(value, str) else value


def golden() -> list[Golden]:
    """All frames of the file."""
    found: list[Golden] = []
    words: dict[str, Any] = {}
    for line in GOLDEN.read_text().splitlines():
        if line.startswith('# {"frame"'):
            words = json.loads(line[2:])
        elif line and not line.startswith("#"):
            name, _, digits = line.partition(" ")
            frame, call_id = words.pop("frame"), words.pop("id")
            found.append(Golden(name, frame, call_id, plain(words), bytes.fromhex(digits)))
    return found


def _exec(f: Fields) -> bytes:
    return encode.exec_(
        owner=f["owner"],
        mode=f["mode"],
        argv=f["argv"],
        env=f["env"],
        cwd=f["cwd"],
        size=(f["rows"], f["columns"]),
        timeout_ms=f["timeout_ms"],
        idle_timeout_ms=f["idle_timeout_ms"],
        grace_ms=f["grace_ms"],
        keep=(f["keep_stdout"], f["keep_stderr"]),
        output_limit=f["output_limit"],
        limits=(f["stdout_limit"], f["stderr_limit"]),
    )


ENCODERS: dict[str, Callable[[Fields], bytes]] = {
    "HELLO": lambda f: encode.hello(),
    "PING": lambda f: f["data"],
    "EXEC": _exec,
    "ATTACH": lambda f: encode.attach(
        f["exec_id"],
        stream=f["stream"],
        offsets=(f["stdout_offset"], f["stderr_offset"]),
        limits=(f["stdout_limit"], f["stderr_limit"]),
    ),
    "STDIN": lambda f: encode.stdin_offset(f["offset"]) + f["data"],
    "STDIN_EOF": lambda f: encode.stdin_offset(f["offset"]),
    "CREDIT": lambda f: encode.credit(f["stream"], f["limit"]),
    "SIGNAL": lambda f: encode.signal(f["exec_id"], f["signal"], everyone=f["all"]),
    "KILL": lambda f: encode.kill(f["exec_id"], f["grace_ms"]),
    "RESIZE": lambda f: encode.resize(f["exec_id"], f["rows"], f["columns"]),
    "PROCESSES": lambda f: b"",
    "FORGET": lambda f: encode.forget(f["exec_ids"]),
    "END_OWNER": lambda f: encode.end_owner(f["owner"], f["grace_ms"]),
    "PAUSE": lambda f: b"",
    "RESUME": lambda f: b"",
    "USAGE": lambda f: b"",
    "EXECS": lambda f: b"",
    "KEPT": lambda f: encode.kept(f["exec_id"], f["stream"], f["offset"], f["limit"]),
    "CANCEL": lambda f: b"",
    "STAT": lambda f: encode.stat(f["paths"], f["flags"]),
    "READ": lambda f: encode.read(
        f["path"], offset=f["offset"], limit=f["limit"], digest=bool(f["flags"]), credit=f["credit"]
    ),
    "WRITE": lambda f: encode.write(f["path"], flags=f["flags"], mode=f["mode"], if_match=f.get("if_match")),
    "LIST": lambda f: encode.list_(f["path"], depth=f["depth"], max_entries=f["max_entries"], scratch=bool(f["flags"])),
    "WDATA": lambda f: f["data"],
    "WDATA_EOF": lambda f: b"",
    "MAKE_DIR": lambda f: encode.make_dir(f["path"], mode=f["mode"], parents=f["parents"]),
    "REMOVE": lambda f: encode.remove(f["path"], recursive=f["recursive"]),
    "RENAME": lambda f: encode.rename(f["from"], f["to"], replace=f["replace"]),
    "SYMLINK": lambda f: encode.symlink(f["target"], f["path"]),
    "EGRESS": lambda f: encode.egress(f["streams"]),
    "EGRESS_DATA": lambda f: encode.egress_stream(f["stream"]) + f["data"],
    "EGRESS_EOF": lambda f: encode.egress_stream(f["stream"]),
    "EGRESS_CREDIT": lambda f: encode.egress_credit(f["stream"], f["limit"]),
    "EGRESS_CLOSE": lambda f: encode.egress_stream(f["stream"]),
}


def _record(f: Fields) -> replies.Record:
    target_type = f.get("target_type")
    return replies.Record(
        type=replies.FILE_TYPES[f["type"] - 1],
        mode=f["mode"],
        size=f["size"],
        mtime_ns=f["mtime_ns"],
        ctime_ns=f["ctime_ns"],
        inode=f["inode"],
        target=f.get("target"),
        sha256=f["sha256"].hex() if "sha256" in f else None,
        entries=f.get("entries"),
        target_type=None if target_type is None else replies.FILE_TYPES[target_type - 1],
    )


def _item(f: Fields) -> tuple[bytes, replies.Record | replies.Failure]:
    return f["path"], _record(f) if f["ok"] else replies.Failure(f["kind"], f["errno"])


DISK = ("disk_bytes", "disk_bytes_peak", "disk_bytes_limit", "disk_inodes", "disk_inodes_limit")


def _end(f: Fields) -> replies.End:
    return replies.End(
        ended_by=replies.ENDINGS[f["ended_by"] - 1],
        exit_code=f["exit_code"] if f["exited"] else None,
        signal=f["signal"] or None,
        totals=(f["stdout_total"], f["stderr_total"]),
        heads=(f["stdout_head"], f["stderr_head"]),
        killed=f["killed"],
        survivors=f["survivors"],
        background_pids=tuple(f["background_pids"]),
        oom_kills=f["oom_kills"],
        duration_us=f["duration_us"],
        start_errno=f["start_errno"],
        disk=tuple(None if f[key] == 2**64 - 1 else f[key] for key in DISK),
    )


def _hello(f: Fields) -> replies.Hello:
    controls = frozenset(name for bit, name in replies.CONTROL_BITS.items() if f["controls"] & bit)
    return replies.Hello(
        f["generation"], f["pid"], f["agent_uid"], f["agent_gid"], controls, f["root"].decode(), f["build"].decode()
    )


def _processes(f: Fields) -> ProcessTable:
    rows = [
        ProcessInfo(
            exec_id=f"exec_{one['exec_id']:016x}",
            pid=one["pid"],
            parent=one["parent"],
            state=chr(one["state"]),
            threads=one["threads"],
            memory_bytes=one["memory"],
            cpu_seconds=one["cpu_us"] / 1e6,
            name=one["name"].decode(),
        )
        for one in f["processes"]
    ]
    return ProcessTable(processes=tuple(rows), complete=f["complete"])


def _egress_bytes(stream: int, data: memoryview) -> tuple[int, bytes]:
    return stream, bytes(data)


USAGE = [
    *("cpu_us", "memory", "memory_peak", "memory_limit"),
    *("pids", "pids_peak", "pids_limit", "oom_kills", "execs_running"),
    *DISK,
    *("paused", "paused_us"),
]
DECODERS: dict[str, tuple[Callable[[bytes], Any], Callable[[Fields], Any]]] = {
    "OK HELLO": (replies.hello, _hello),
    "OK PING": (replies.echo, lambda f: f["data"]),
    "OK EXEC": (replies.end, _end),
    "OK ATTACH": (replies.end, _end),
    "OK SIGNAL": (replies.number32, lambda f: f["signalled"]),
    "OK KILL": (replies.killed, lambda f: (f["killed"], f["survivors"])),
    "OK END_OWNER": (
        replies.owner_ends,
        lambda f: [(one["exec_id"], one["killed"], one["survivors"]) for one in f["ended"]],
    ),
    "OK RESIZE": (replies.nothing, lambda f: None),
    "OK PROCESSES": (process_table, _processes),
    "OK PAUSE": (replies.nothing, lambda f: None),
    "OK RESUME": (replies.nothing, lambda f: None),
    "OK USAGE": (
        replies.usage,
        lambda f: [None if f[key] == 2**64 - 1 else f[key] for key in USAGE],
    ),
    "OK EXECS": (
        replies.execs,
        lambda f: [replies.ExecState(**{**one, "owner": one["owner"].decode()}) for one in f["execs"]],
    ),
    "OK KEPT": (replies.kept_end, lambda f: (f["state"], f["total"])),
    "OK STAT": (replies.nothing, lambda f: None),
    "OK READ": (replies.digest, lambda f: f["sha256"].hex() if f["has"] else None),
    "OK WRITE": (replies.record, _record),
    "OK LIST": (replies.listing_end, lambda f: (f["truncated"], f["count"])),
    "OK MAKE_DIR": (replies.record, _record),
    "OK REMOVE": (replies.number64, lambda f: f["removed"]),
    "OK RENAME": (replies.record, _record),
    "OK SYMLINK": (replies.record, _record),
    "ERROR": (replies.failure, lambda f: replies.Failure(f["kind"], f["errno"], f["message"].decode())),
    "DATA": (bytes, lambda f: f["data"]),
    "ITEMS": (replies.items, lambda f: [_item(one) for one in f["items"]]),
    "OUTPUT": (
        lambda payload: (lambda chunk: (chunk.stream, chunk.offset, bytes(chunk.data)))(replies.output(payload)),
        lambda f: (f["stream"], f["offset"], f["data"]),
    ),
    "STARTED": (replies.started, lambda f: f["pid"]),
    "WINDOW": (replies.window, lambda f: f["limit"]),
    "EGRESS_READY": (replies.egress_ready, lambda f: f["port"]),
    "EGRESS_OPENED": (replies.egress_stream, lambda f: f["stream"]),
    "EGRESS_BYTES": (
        lambda payload: _egress_bytes(*replies.egress_bytes(payload)),
        lambda f: (f["stream"], f["data"]),
    ),
    "EGRESS_ENDED": (replies.egress_stream, lambda f: f["stream"]),
    "EGRESS_ROOM": (replies.egress_room, lambda f: (f["stream"], f["limit"])),
    "EGRESS_GONE": (replies.egress_stream, lambda f: f["stream"]),
}
REQUESTS = [one for one in golden() if one.frame in ENCODERS]
REPLIES = [one for one in golden() if one.frame in DECODERS]


def test_every_golden_frame_is_a_request_or_a_reply_that_is_known() -> None:
    assert {one.frame for one in golden()} - set(ENCODERS) - set(DECODERS) == set()
    assert {one.frame for one in REQUESTS} == set(ENCODERS)
    assert {one.frame for one in REPLIES} == set(DECODERS)


@pytest.mark.parametrize("one", REQUESTS, ids=lambda one: one.name)
def test_a_request_is_encoded_byte_for_byte(one: Golden) -> None:
    assert protocol.frame(Request[one.frame], one.id, ENCODERS[one.frame](one.fields)) == one.data


@pytest.mark.parametrize("one", REPLIES, ids=lambda one: one.name)
def test_a_reply_is_decoded_field_for_field(one: Golden) -> None:
    frames: list[tuple[int, int, bytes]] = []
    FrameSplitter().feed(one.data, lambda kind, call_id, payload: frames.append((kind, call_id, bytes(payload))))
    [(kind, call_id, payload)] = frames
    decode, expected = DECODERS[one.frame]
    assert kind == (Reply.OK if one.frame.startswith("OK ") else Reply[one.frame])
    assert call_id == one.id
    assert decode(payload) == expected(one.fields)


@pytest.mark.parametrize(
    "one",
    [one for one in REPLIES if one.frame not in ("DATA", "OUTPUT", "OK PING", "EGRESS_BYTES")],
    ids=lambda one: one.name,
)
def test_a_reply_cut_short_or_too_long_is_a_violation(one: Golden) -> None:
    decode, _ = DECODERS[one.frame]
    payload = one.data[16:]
    for broken in (*(payload[:size] for size in range(len(payload))), payload + b"\0"):
        with pytest.raises(protocol.ProtocolViolation):
            decode(broken)
