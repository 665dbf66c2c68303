"""The command line against a real engine, as a process: demo, sandboxes by hand, doctor, signals, bad input."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import pytest

from kinfold.testing.messages_api import MessagesApi

KINFOLD = str(Path(sys.executable).with_name("kinfold"))


def kinfold(
    *arguments: str, stdin: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[bytes]:
    """Run the installed command to its end."""
    full = {**os.environ, **(env or {})}
    return subprocess.run([KINFOLD, *arguments], input=stdin, capture_output=True, timeout=110, env=full)


def script(path: Path, text: str) -> str:
    """A script file as a --model value."""
    path.write_text(text)
    return f"scripted:{path}"


def containers() -> str:
    """Every container of this test's kinfold instance; empty where it never got so far as to name itself."""
    instance = Path(os.environ["KINFOLD_STATE"]) / "instance"
    if not instance.exists():
        return ""
    command = ["docker", "ps", "-aq", "--filter", f"label=kinfold.instance={instance.read_text().strip()}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_the_demo_delivers_checked_files_and_its_two_totals_agree(tmp_path: Path) -> None:
    ended = kinfold("demo", "--json")
    assert ended.returncode == 0, ended.stderr.decode()
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    runs = [event for event in events if event["type"] == "run_ended"]
    subagents = {run["label"]: run for run in runs if "label" in run}
    assert len(subagents) == 3
    assert all(run["endedBy"] == "complete" for run in runs)
    skipped = [item for run in runs for item in run.get("skipped", ())]
    assert skipped == [{"path": "out/appendix.md", "reason": "missing"}]
    main = next(run for run in runs if "label" not in run)
    assert re.search(r"totals agree: \d\d+ files, \d+ bytes", main["summary"])
    starts = [index for index, event in enumerate(events) if event["type"] == "run_started" and "label" in event]
    first_end = next(i for i, event in enumerate(events) if event["type"] == "run_ended")
    assert max(starts) < first_end, "the three subagents ran one after the other"
    inventory = next(a for a in main["artifacts"] if a["path"].endswith("inventory.json"))
    assert inventory["fsType"] == "file"
    assert len(inventory["sha256"]) == 64


def test_a_run_copies_its_artifacts_out_and_shows_them(tmp_path: Path) -> None:
    model = script(
        tmp_path / "s.yaml",
        """
main:
  - calls: [{tool: write_file, input: {path: a.txt, content: hello}}]
  - calls: [{tool: complete, input: {summary: made it, paths: [a.txt]}}]
""",
    )
    ended = kinfold("run", "make a.txt", "--model", model, "--out", str(tmp_path / "out"))
    assert ended.returncode == 0, ended.stderr.decode()
    assert (tmp_path / "out/a.txt").read_text() == "hello"
    assert b"made it" in ended.stdout
    assert b"/workspace/a.txt" in ended.stdout
    (line,) = kinfold("tasks", "list").stdout.decode().splitlines()
    task, standing, ended_by = line.split("\t")[:3]
    assert (standing, ended_by) == ("completed", "complete")
    shown = kinfold("tasks", "show", task).stdout.decode()
    assert "summary: made it" in shown
    assert "/workspace/a.txt" in kinfold("tasks", "artifacts", task).stdout.decode()
    kinds = [json.loads(event)["type"] for event in kinfold("tasks", "events", task).stdout.splitlines()]
    assert (kinds[0], kinds[-1]) == ("task_started", "task_ended")
    exported = json.loads(kinfold("tasks", "export", task).stdout)
    assert [event["type"] for event in exported["events"]] == kinds
    assert [(run["kind"], run["ended_by"]) for run in exported["runs"]] == [("main", "complete")]


def test_a_link_in_a_delivered_directory_is_left_out_by_a_warning_and_the_exit_code_stays(tmp_path: Path) -> None:
    model = script(
        tmp_path / "s.yaml",
        """
main:
  - calls: [{tool: bash, input: {command: "mkdir d; echo hi > d/a; ln -s a d/link"}}]
  - calls: [{tool: complete, input: {summary: made it, paths: [d]}}]
""",
    )
    ended = kinfold("run", "make d", "--model", model, "--out", str(tmp_path / "out"))
    assert ended.returncode == 0, ended.stderr.decode()
    assert b"/workspace/d/link" in ended.stdout + ended.stderr
    assert sorted(path.name for path in (tmp_path / "out/d").iterdir()) == ["a"]
    assert (tmp_path / "out/d/a").read_text() == "hi\n"


def test_a_reader_that_does_not_read_holds_up_neither_the_task_nor_its_end(tmp_path: Path) -> None:
    loud = "{tool: bash, input: {command: 'seq 1 4000'}}"
    model = script(tmp_path / "s.yaml", f"main: [{{calls: [{', '.join([loud] * 12)}]}}, all told]")
    command = [KINFOLD, "run", "go", "--json", "--model", model, "--image", "kinfold/base"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        first = json.loads(process.stdout.readline())
        end = time.monotonic() + 60
        while kinfold("tasks", "show", first["taskId"], "--json").stdout.find(b'"completed"') < 0 or containers():
            assert time.monotonic() < end, "it waits for its reader"
            assert process.poll() is None, "there was nothing to wait for"
        rest = process.stdout.read()
    events = [json.loads(line) for line in rest.splitlines()]
    assert len(rest) > 2 * 65_536, "more than a pipe holds"
    assert [event["seq"] for event in events] == list(range(2, len(events) + 2))
    assert (events[-1]["type"], process.returncode) == ("task_ended", 0)


def test_a_detached_sandbox_outlives_its_maker_until_it_is_destroyed() -> None:
    created = kinfold("sandbox", "create", "--name", "by-hand")
    assert created.returncode == 0, created.stderr.decode()
    sandbox = created.stdout.decode().strip()
    try:
        assert sandbox in kinfold("sandbox", "list").stdout.decode()
        assert kinfold("sandbox", "write", sandbox, "in/a.bin", stdin=b"\x00\xff\n").returncode == 0
        assert kinfold("sandbox", "read", "by-hand", "in/a.bin").stdout == b"\x00\xff\n"
        ran = kinfold("sandbox", "exec", sandbox, "--", "sh", "-c", "wc -c < in/a.bin; echo oops >&2; exit 7")
        assert (ran.returncode, ran.stdout.strip(), ran.stderr.strip()) == (7, b"3", b"oops")
    finally:
        assert kinfold("sandbox", "destroy", sandbox).returncode == 0
    gone = kinfold("sandbox", "exec", sandbox, "true")
    assert gone.returncode == 2
    assert b"hint: " in gone.stderr


@pytest.mark.parametrize("how", ["ctrl_c", "nobody_reads"])
def test_a_program_run_by_hand_ends_with_its_caller(how: str) -> None:
    sandbox = kinfold("sandbox", "create").stdout.decode().strip()
    try:
        program = "while echo line; do [ $0 = nobody_reads ] || sleep 600; done"
        command = [KINFOLD, "sandbox", "exec", sandbox, "--", "sh", "-c", program, how]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline() == b"line\n"
            if how == "ctrl_c":
                process.send_signal(signal.SIGINT)
            else:
                process.stdout.close()
            assert process.wait(30) == (130 if how == "ctrl_c" else 1)
            assert process.stderr.read() == b""
        left = kinfold("sandbox", "exec", sandbox, "--", "sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert b"echo line" not in left.stdout
    finally:
        kinfold("sandbox", "destroy", sandbox)


def test_doctor_names_the_engine_and_what_it_enforces() -> None:
    ended = kinfold("doctor")
    assert ended.returncode == 0, ended.stdout.decode() + ended.stderr.decode()
    text = ended.stdout.decode()
    for control in ("memory", "pids", "network", "supervisor_isolation"):
        assert control in text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("moment", ["at once", "while a command runs"])
def test_a_signal_ends_the_run_with_its_code_and_leaves_no_container(
    number: signal.Signals, moment: str, tmp_path: Path
) -> None:
    model = script(tmp_path / "s.yaml", "main:\n  - calls: [{tool: bash, input: {command: 'sleep 100'}}]\n")
    process = subprocess.Popen(
        [KINFOLD, "run", "sleep", "--model", model, "--json"], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    if moment == "while a command runs":
        for line in process.stdout:
            if b'"tool_started"' in line:
                break
    else:
        _wait_for_signal_handler(process.pid)
    process.send_signal(number)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 128 + number, errors.decode()
    assert b"Traceback" not in errors
    assert containers() == ""


def _wait_for_signal_handler(pid: int) -> None:
    """Until the process catches SIGINT in a handler of its own and has threads, so that the start is under way."""
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        status = Path(f"/proc/{pid}/status").read_text()
        caught = int(re.search(r"SigCgt:\s*([0-9a-f]+)", status).group(1), 16)  # type: ignore[union-attr]
        if caught & (1 << (signal.SIGTERM - 1)):
            return
    raise AssertionError("the process never installed its signal handler")


BAD = [
    # (arguments, exit code, what the error says, what the hint says)
    (["run", "p", "--model", "scripted:{dir}/none.yaml"], 2, "none.yaml", ""),
    (["run", "p", "--model", "gpt-nonsense"], 2, "gpt-nonsense", "scripted:"),
    (["run", "p", "--model", "claude-sonnet-4-5"], 2, "ANTHROPIC_API_KEY", "scripted:"),
    (["run", "  ", "--model", "{model}"], 2, "prompt", ""),
    (["run", "p", "--model", "{model}", "--workspace", "/"], 2, "/", ""),
    (["run", "p", "--model", "{model}", "--workspace", "{dir}/file"], 2, "file", ""),
    (["run", "p", "--model", "{model}", "--workspace", "{dir}/link"], 2, "link", ""),
    (["run", "p", "--model", "{model}", "--workspace", "{dir}/absent"], 2, "absent", ""),
    (["run", "p", "--model", "{model}", "--workspace", "{dir}/locked"], 2, "locked", "--copy"),
    (["run", "p", "--model", "{model}", "--agents", "{dir}/broken.md"], 2, "broken.md", ""),
    (["run", "p", "--model", "{model}", "--image", "kinfold/no-such-image:1"], 3, "no-such-image", "images build"),
    (["run", "p", "--model", "{model}", "--user", "0"], 2, "0", ""),
    (["run", "p", "--model", "{model}", "--copy"], 2, "--workspace", ""),
    (["run", "p", "--model", "{model}", "--network", "wifi"], 2, "network", ""),
]


@pytest.mark.parametrize(("arguments", "code", "message", "hint"), BAD, ids=[" ".join(row[0][1:]) for row in BAD])
def test_an_operators_mistake_is_one_error_with_a_hint(
    arguments: list[str], code: int, message: str, hint: str, tmp_path: Path
) -> None:
    model = script(tmp_path / "m.yaml", "main: [hi]\n")
    (tmp_path / "file").write_text("")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "locked").mkdir(mode=0o500)
    (tmp_path / "broken.md").write_text("---\nname: x\ntools: [Reed]\n---\nbody\n")
    filled = [argument.format(dir=tmp_path, model=model) for argument in arguments]
    ended = kinfold(*filled, env={"ANTHROPIC_API_KEY": ""})
    errors = ended.stderr.decode()
    assert ended.returncode == code, errors
    assert "Traceback" not in errors
    lines = errors.strip().splitlines()
    assert sum(line.startswith("error: ") for line in lines) == 1
    assert message in errors
    hints = [line for line in lines if line.startswith("hint: ")]
    assert hints
    assert hint in hints[0]
    assert containers() == ""


@pytest.mark.anyio
async def test_a_wrong_key_is_one_error_whose_hint_names_the_ways_out() -> None:
    async with MessagesApi([]) as api:
        env = {**os.environ, "ANTHROPIC_API_KEY": "sk-wrong", "ANTHROPIC_BASE_URL": api.base_url}
        ended = await anyio.run_process([KINFOLD, "run", "p", "--model", "claude-x"], env=env, check=False)
    errors = ended.stderr.decode()
    assert ended.returncode == 4, errors
    (hint,) = [line for line in errors.splitlines() if line.startswith("hint: ")]
    assert "ANTHROPIC_API_KEY" in hint
    assert "--model scripted:" in hint
    assert "sk-wrong" not in errors + ended.stdout.decode()
    assert "Traceback" not in errors
    assert containers() == ""


def test_no_engine_is_one_error_with_a_hint(tmp_path: Path) -> None:
    model = script(tmp_path / "m.yaml", "main: [hi]\n")
    ended = kinfold("run", "p", "--model", model, env={"DOCKER_HOST": f"unix://{tmp_path}/no.sock"})
    assert ended.returncode == 3
    assert b"error: " in ended.stderr
    assert b"hint: " in ended.stderr
    assert b"Traceback" not in ended.stderr


def test_help_is_quick_to_read_and_names_every_command() -> None:
    text = kinfold("--help").stdout.decode()
    for command in ("run", "demo", "sandbox", "images", "reap", "doctor"):
        assert re.search(rf"^\s+{command}\s", text, re.MULTILINE)
