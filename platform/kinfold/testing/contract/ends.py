"""How programs end: results for what they do, errors only for what the caller got wrong."""

from __future__ import annotations

import pytest

from kinfold.errors import PathError
from kinfold.sandbox.base import ExecRequest
from kinfold.sandbox.sandbox import Sandbox


async def test_a_program_runs_and_its_result_says_all(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["sh", "-c", "echo out; echo err >&2"])
    assert (result.ended_by, result.exit_code, result.signal) == ("exited", 0, None)
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    assert (result.stdout_total, result.stdout_head_bytes, result.truncated) == (4, 4, False)
    assert result.id.startswith("exec_")
    assert len(result.id) == 21
    assert result.duration > 0
    assert result.survivors == 0
    assert result.background_pids == ()


async def test_a_string_runs_in_a_shell_and_a_list_does_not(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("echo $((1 + 2)) | cat")).stdout == b"3\n"
    assert (await sandbox.exec(["echo", "$((1 + 2))", "|", "cat"])).stdout == b"$((1 + 2)) | cat\n"


@pytest.mark.parametrize("code", [0, 1, 3, 126, 127, 137, 255])
async def test_an_exit_code_is_a_result(sandbox: Sandbox, code: int) -> None:
    result = await sandbox.exec(f"exit {code}")
    assert (result.ended_by, result.exit_code, result.signal) == ("exited", code, None)


@pytest.mark.parametrize(("name", "number"), [("TERM", 15), ("KILL", 9), ("SEGV", 11)])
async def test_a_signal_is_told_apart_from_an_exit(sandbox: Sandbox, name: str, number: int) -> None:
    result = await sandbox.exec(f"kill -{name} $$")
    assert (result.ended_by, result.exit_code, result.signal) == ("signalled", None, number)


async def test_a_program_that_is_not_there_is_127_and_says_so(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["no-such-program-anywhere"])
    assert (result.ended_by, result.exit_code) == ("exited", 127)
    assert b"no-such-program-anywhere" in result.stderr
    assert result.stderr_total == len(result.stderr)


async def test_a_file_that_is_no_program_is_126(sandbox: Sandbox, folder: str) -> None:
    await sandbox.write(f"{folder}/plain", b"not a program", mode=0o644)
    assert (await sandbox.exec([f"./{folder}/plain"])).exit_code == 126


async def test_a_command_that_cannot_be_passed_is_126_and_says_why(sandbox: Sandbox) -> None:
    assert b"NUL" in (await sandbox.exec(["echo", "a\0b"])).stderr
    long = await sandbox.exec(["echo", "x" * 300_000])
    assert long.exit_code == 126
    assert b"standard input" in long.stderr
    assert (await sandbox.exec(["echo", "x" * 200_000])).exit_code == 126
    assert (await sandbox.exec(["echo", "\ud800"])).exit_code == 126


async def test_programs_start_in_the_workspace_or_below(sandbox: Sandbox, folder: str) -> None:
    await sandbox.write(f"{folder}/deep/here", b"")
    assert folder.encode() in (await sandbox.exec(["ls"])).stdout
    for cwd in (f"{folder}/deep", f"/workspace/{folder}/deep", f"{folder}/x/../deep"):
        assert (await sandbox.exec(["ls"], cwd=cwd)).stdout == b"here\n"


async def test_cd_and_exports_do_not_stay(sandbox: Sandbox, folder: str) -> None:
    before = (await sandbox.exec("pwd; echo $KF_X")).stdout
    await sandbox.exec(f"cd {folder}; export KF_X=1")
    assert (await sandbox.exec("pwd; echo $KF_X")).stdout == before


@pytest.mark.parametrize(
    ("cwd", "reason"), [("gone", "not_found"), ("..", "path_escape"), ("/etc", "path_escape"), ("", "invalid")]
)
async def test_a_working_directory_that_cannot_be_is_a_path_error(sandbox: Sandbox, cwd: str, reason: str) -> None:
    with pytest.raises(PathError) as caught:
        await sandbox.exec(["true"], cwd=cwd)
    assert caught.value.reason == reason
    with pytest.raises(PathError):
        await sandbox.start(ExecRequest(command=["true"], cwd=cwd))


async def test_a_file_as_working_directory_is_a_path_error(sandbox: Sandbox, folder: str) -> None:
    await sandbox.write(f"{folder}/file", b"")
    with pytest.raises(PathError) as caught:
        await sandbox.exec(["true"], cwd=f"{folder}/file")
    assert caught.value.reason == "not_a_directory"


async def test_the_environment_is_clean_and_takes_what_it_is_given(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KF_CANARY", "leak")
    result = await sandbox.exec(["env"], env={"A": "1=2", "B": "", "C": "ü\n\udcff"})
    assert b"A=1=2\n" in result.stdout
    assert b"B=\n" in result.stdout
    assert "C=ü\n\udcff\n".encode("utf-8", "surrogateescape") in result.stdout
    assert b"KF_CANARY" not in result.stdout
    names = {line.partition(b"=")[0] for line in result.stdout.splitlines()}
    assert {b"HOME", b"USER", b"LOGNAME", b"PATH", b"TMPDIR", b"TZ"} <= names


async def test_arguments_arrive_byte_for_byte(sandbox: Sandbox) -> None:
    word = "a b'\"$(id)*\n\t\udcff"
    assert (await sandbox.exec(["printf", "%s", word])).stdout == word.encode("utf-8", "surrogateescape")


async def test_many_short_programs_each_tell_their_own_end(sandbox: Sandbox) -> None:
    for number in range(200):
        result = await sandbox.exec(f"echo {number}; exit {number % 7}")
        assert (result.stdout_text.strip(), result.exit_code) == (str(number), number % 7)
