"""`bash`, on real processes."""

from __future__ import annotations

from typing import Any

import anyio
import pytest
from tests.unit.tools.bench import Bench

from kinfold.events import EventBase, ToolOutput
from kinfold.sandbox.base import EndedBy, ExecResult
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tools import exec_text
from kinfold.tools.live import SHOWN_BYTES

pytestmark = pytest.mark.anyio


async def test_a_command_that_fails_is_a_result_with_its_exit_code_and_both_streams(real: Bench) -> None:
    text = await real.text("bash", command="echo out; echo err >&2; exit 3")
    assert text.startswith("exit code 3 (")
    assert "stdout:\nout\nstderr:\nerr" in text
    assert real.state.last_tool_error is None


async def test_every_call_starts_anew_in_the_workspace(real: Bench) -> None:
    await real.text("bash", command="mkdir -p sub && cd sub && export SEEN=1")
    text = await real.text("bash", command='echo "[$SEEN]"; ls; ls sub | wc -l', cwd=".")
    assert "[]\nsub\n0" in text
    assert "/sub" in await real.text("bash", command="pwd", cwd="sub")


async def test_what_models_write_for_bash_runs_in_bash(real: Bench) -> None:
    assert "stdout:\nyes b" in await real.text("bash", command='a=(a b); [[ ${a[1]} == b ]] && echo "yes ${a[1]}"')


async def test_the_runs_own_environment_reaches_the_command(real: Bench) -> None:
    context = real.make()
    context.env["KF_TEST"] = "here"
    real.make = lambda **_: context  # type: ignore[method-assign]
    assert "stdout:\nhere" in await real.text("bash", command="echo $KF_TEST")


async def test_a_timeout_says_how_long_and_that_the_whole_tree_is_dead(real: Bench, sandbox: Any) -> None:
    text = await real.text("bash", command="echo before; sleep 100 & setsid sleep 100 & wait", timeout=0.5)
    assert text.startswith("timed out after 0.5 s: the command and every process that it started were ended (")
    assert ", 0 left)" in text
    assert "stdout:\nbefore" in text
    assert [info for info in await sandbox.execs() if info.state != "ended"] == []


async def test_a_missing_directory_is_the_models_mistake(real: Bench) -> None:
    assert "nowhere" in await real.refusal("bash", command="true", cwd="nowhere")
    assert "lies outside" in await real.refusal("bash", command="true", cwd="/etc")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({}, "exactly one of `command`, `exec_id`, `kill` (got none)"),
        ({"command": "x", "kill": "y"}, "(got command and kill)"),
        ({"command": " "}, "must not be blank"),
        ({"command": "a\0b"}, "must not be blank or hold a NUL"),
        ({"command": "x", "timeout": 601}, "`timeout` should be less than or equal to 600"),
        ({"command": "x", "timeout": 0}, "`timeout` should be greater than 0"),
        ({"command": "# " + "x" * 120_000}, "the system takes 120,000"),
        ({"exec_id": "exec_0000000000000001"}, "is no background exec of this run"),
        ({"kill": "../x"}, "is no background exec of this run"),
    ],
    ids=str,
)
async def test_a_wrong_call_says_what_is_allowed(real: Bench, arguments: dict[str, Any], words: str) -> None:
    assert words in await real.refusal("bash", **arguments)


async def test_a_background_process_is_named_read_on_and_ended(real: Bench, other: Bench) -> None:
    started = await real.text("bash", command="(while true; do echo tick; sleep 0.05; done) & echo started")
    assert started.startswith("exit code 0 (")
    assert "in the background (pid" in started
    (exec_id,) = real.state.exec_offsets
    assert exec_id in started
    assert "is no background exec of this run" in await other.refusal("bash", kill=exec_id)
    seen = 0
    with anyio.fail_after(20):
        while seen < 2:
            text = await real.text("bash", exec_id=exec_id)
            assert "processes that it started still run" in text
            assert "started" not in text.partition("\n")[2], "what was shown once is not shown again"
            seen += text.count("tick")
    ended = await real.text("bash", kill=exec_id)
    assert "ended (" in ended
    assert "0 are left)" in ended
    assert "is no background exec" in await real.refusal("bash", exec_id=exec_id)


async def test_the_last_words_of_what_is_ended_are_shown(real: Bench) -> None:
    await real.text("bash", command="(trap 'echo bye; exit' TERM; touch up; while :; do sleep 0.02; done) &")
    await real.text("bash", command="while [ ! -e up ]; do sleep 0.02; done")
    ended = await real.text("bash", kill=next(iter(real.state.exec_offsets)))
    assert "stdout since:\nbye" in ended


async def test_output_is_seen_by_a_watcher_while_the_command_runs(real: Bench) -> None:
    outputs: list[ToolOutput] = []
    seen = anyio.Event()

    def watch(event: EventBase) -> None:
        if isinstance(event, ToolOutput):
            outputs.append(event)
            seen.set()

    async def call() -> None:
        await real.text("bash", command="echo first; while [ ! -e go ]; do sleep 0.02; done; echo second")

    real.on_event = watch
    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(call)
            await seen.wait()
            assert [event.text for event in outputs] == ["first\n"]
            await real.sandbox.write("go", b"")
    assert "".join(event.text for event in outputs) == "first\nsecond\n"
    assert {event.stream for event in outputs} == {"stdout"}


async def test_the_events_of_a_flood_are_bounded_and_no_character_is_torn(real: Bench) -> None:
    text = await real.text("bash", command="yes äöü | head -c 3000000; sleep 0.5")
    shown = "".join(event.text for event in real.events if isinstance(event, ToolOutput))
    assert 0 < len(shown.encode()) <= SHOWN_BYTES + 8
    assert "\ufffd" not in shown.removesuffix("\ufffd")
    assert len(text.encode()) <= 32_768
    assert ".kinfold/results/run_1/001-bash.txt" in text
    whole = (await real.sandbox.read(".kinfold/results/run_1/001-bash.txt")).decode()
    assert "of 3,000,000 bytes were not kept" in whole


async def test_a_cancelled_call_leaves_nothing_running(real: Bench, sandbox: Any) -> None:
    with anyio.move_on_after(0.3) as scope:
        await real.text("bash", command="sleep 100 & setsid sleep 100 & wait")
    assert scope.cancelled_caught
    assert [info for info in await sandbox.execs() if info.state != "ended"] == []


# --- words ---------------------------------------------------------------------------------------------------------


def a_result(**values: Any) -> ExecResult:
    defaults: dict[str, Any] = {
        "id": "exec_1", "ended_by": "exited", "exit_code": 0, "signal": None, "stdout": b"", "stderr": b"",
        "stdout_head_bytes": 0, "stderr_head_bytes": 0, "stdout_total": 0, "stderr_total": 0, "duration": 1.23,
    }  # fmt: skip
    return ExecResult(**{**defaults, **values})


@pytest.mark.parametrize(
    ("ended_by", "values", "words"),
    [
        ("exited", {"exit_code": 2}, "exit code 2 (1.2 s)"),
        ("signalled", {"exit_code": None, "signal": 11}, "ended by signal 11"),
        ("timed_out", {"killed": 1}, "timed out after 5 s: the command and every process that it started were ended"),
        ("idle_timed_out", {}, "for want of output"),
        ("output_limited", {}, "printed too much"),
        ("pids_limited", {}, "ran out of processes"),
        ("oom_killed", {}, "ran out of memory"),
        ("cancelled", {}, "cancelled after"),
        ("disk_limited", {"killed": 1}, "past its disk limit"),
        ("kill_failed", {"survivors": 2}, "2 processes survived"),
    ],
)
async def test_every_way_to_end_is_told_apart(ended_by: EndedBy, values: dict[str, Any], words: str) -> None:
    text = exec_text.render(a_result(ended_by=ended_by, **values), timeout=5)
    assert words in text
    assert text.endswith("(no output)")


async def test_a_cut_stands_where_the_bytes_are_missing() -> None:
    result = a_result(stdout=b"headtail", stdout_head_bytes=4, stdout_total=1_008)
    assert "head\n[… 1,000 of 1,008 bytes were not kept …]\ntail" in exec_text.render(result)


async def test_a_nul_in_the_output_is_shown_by_its_sign() -> None:
    assert "a\u2400b" in exec_text.render(a_result(stdout=b"a\0b", stdout_total=3, stdout_head_bytes=3))


async def test_a_nul_is_shown_by_its_sign_wherever_text_is_read(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.write("late", b"x" * 4_096 + b"\na\0b\n")
    assert "a\u2400b" in await real.text("read_file", path="late")
    await real.text("bash", command="(sleep 0.2; printf 'c\\0d'; sleep 60) & ")
    (exec_id,) = real.state.exec_offsets
    with anyio.fail_after(10):
        while "c\u2400d" not in await real.text("bash", exec_id=exec_id):
            await anyio.sleep(0.05)


async def test_a_neighbours_memory_is_mentioned() -> None:
    assert "ran out of memory meanwhile (2 kills)" in exec_text.render(a_result(oom_kills=2))
