"""No path, link or kind of file leads a request out of the workspace, blocks it, or fails other than typed."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
import time
from pathlib import Path

import pytest
from tests.hostile import file_requests
from tests.hostile.file_requests import ON_THE_LINK_ITSELF, OUTSIDE, REQUESTS, tells_a_secret
from tests.hostile.hostile_support import sandbox_with, workspace_on_the_host
from tests.hostile.outside import as_root

from kinfold.errors import PathError
from kinfold.sandbox.base import ExecRequest, FileStat
from kinfold.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


async def refusal(request: str, box: Sandbox, path: str) -> str:
    """The reason for which a request of a path is refused; an answer is a failure of the test."""
    try:
        found = await REQUESTS[request](box, path)
    except PathError as error:
        return error.reason
    raise AssertionError(f"{request} of {path!r} was answered: {found!r:.200}")


CLIMBING = [
    "..",
    "../..",
    "a/../../b",
    "./../x",
    "/workspace/..",
    "/workspace/../etc/passwd",
    "//",
    "/",
    "d/../../d/..",
]
INVALID = ["", "a\0b", "\0", "n" * 256, "\ud800"]


@pytest.mark.threat("P01")
@pytest.mark.parametrize("request_name", REQUESTS)
async def test_a_path_whose_words_climb_out_reaches_nothing(box: Sandbox, request_name: str) -> None:
    for path in CLIMBING:
        assert await refusal(request_name, box, path) == "path_escape", path
    for path in INVALID:
        assert await refusal(request_name, box, path) == "invalid", path


@pytest.mark.threat("P02")
async def test_an_absolute_path_means_the_container_and_only_its_workspace(box: Sandbox, folder: str) -> None:
    await box.write(f"/workspace/{folder}/f", b"mine")
    assert await box.read(f"{folder}/f") == b"mine"
    outside = ["/etc/passwd", "/etc/hostname", "/proc/1/environ", "/tmp/x", f"{OUTSIDE}/f", "/workspace-evil/f"]
    for path in [*outside, str(workspace_on_the_host(box) / folder / "f")]:
        for request in REQUESTS:
            assert await refusal(request, box, path) == "path_escape", (request, path)


LINKS = {
    "to_file": f"{OUTSIDE}/f",
    "to_directory": OUTSIDE,
    "climbing": "../../../../../../home/agent/out/f",
    "chain": "to_file",
    "dangling": f"{OUTSIDE}/new",
    "to_root": "/",
    "magic_root": "/proc/self/root/home/agent/out/f",
    "magic_thread": "/proc/thread-self/root/home/agent/out/f",
    "magic_cwd": "/proc/self/cwd/f",
    "magic_descriptor": "/proc/self/fd/3",
    "magic_first": "/proc/1/root/home/agent/out/f",
    "beside": "/workspace-evil",
}


async def link_out(box: Sandbox, folder: str) -> None:
    """Every link of LINKS, afresh."""
    commands = [f"ln -sfn {target} {name}" for name, target in LINKS.items()]
    assert (await box.exec("; ".join(commands), cwd=folder)).exit_code == 0


@pytest.mark.threat("P03", "P08")
@pytest.mark.parametrize("request_name", REQUESTS)
async def test_a_link_that_leaves_leads_no_request_out(box: Sandbox, folder: str, request_name: str) -> None:
    before = await file_requests.lay_outside(box)
    await link_out(box, folder)
    for path in (f"{name}/{beneath}" for name in LINKS for beneath in ("f", "sub/f", "new")):
        reason = await refusal(request_name, box, f"{folder}/{path}")
        assert reason in ("path_escape", "not_a_directory"), (path, reason)
    for name in LINKS:
        if request_name in ON_THE_LINK_ITSELF:
            assert not tells_a_secret(await REQUESTS[request_name](box, f"{folder}/{name}"))
        else:
            reason = await refusal(request_name, box, f"{folder}/{name}")
            assert reason in ("path_escape", "not_a_directory") or request_name == "symlink", (name, reason)
    assert await file_requests.look_outside(box) == before


@pytest.mark.threat("P07")
async def test_an_absolute_link_back_into_the_workspace_works_as_it_does_inside(box: Sandbox, folder: str) -> None:
    await box.exec(
        f"mkdir d; echo fine > d/f; ln -s /workspace/{folder}/d/f l; ln -s /workspace/{folder}/d ld", cwd=folder
    )
    assert await box.read(f"{folder}/l") == await box.read(f"{folder}/ld/f") == b"fine\n"
    link, file = await box.stat([f"{folder}/l", f"{folder}/d/f"], claim=True)
    assert isinstance(link, FileStat) and isinstance(file, FileStat)
    assert (link.type, link.target, link.sha256) == ("symlink", f"/workspace/{folder}/d/f", file.sha256)


@pytest.mark.threat("P09")
async def test_a_hard_link_joins_nothing_outside_and_is_broken_by_a_write(box: Sandbox, folder: str) -> None:
    await file_requests.lay_outside(box)
    for outside in ("/etc/passwd", "/proc/self/environ", f"{OUTSIDE}/f", "/run/kf/bin/kinfold-supervisor"):
        assert (await box.exec(["ln", outside, "x"], cwd=folder)).exit_code != 0
    await box.exec("printf old > a; ln a b; chmod 640 a", cwd=folder)
    await box.write(f"{folder}/a", b"new")
    assert await box.read(f"{folder}/b") == b"old"
    changed, kept = await box.stat([f"{folder}/a", f"{folder}/b"])
    assert isinstance(changed, FileStat) and isinstance(kept, FileStat)
    assert changed.inode != kept.inode and changed.mode == kept.mode == 0o640


NO_DRIVER = ("250", "7")
"""A device that nobody drives: a real open of it fails in a way of its own."""


@pytest.mark.threat("P10")
async def test_a_device_cannot_be_made_and_one_that_is_there_is_not_opened(box: Sandbox, folder: str) -> None:
    made = await box.exec("mknod c c 1 3; mknod b b 8 0; ls", cwd=folder)
    assert made.stdout == b"", made.stdout
    host = workspace_on_the_host(box) / folder
    for name, kind in (("null", "c"), ("disk", "b")):
        as_root("mknod", "--mode=666", str(host / name), kind, *NO_DRIVER)
        as_root("chown", str(box.agent_uid), str(host / name))
        for request in ("read", "read_stream", "write", "claim"):
            assert await refusal(request, box, f"{folder}/{name}") == "not_regular"
        assert not tells_a_secret(await file_requests.REQUESTS["archive"](box, folder))


SPECIAL = """
import os, pty, socket
os.mkfifo("fifo"); socket.socket(socket.AF_UNIX).bind("socket"); os.symlink("fifo", "link")
"""


@pytest.mark.threat("P11")
@pytest.mark.parametrize("request_name", REQUESTS)
async def test_what_is_no_file_makes_no_request_wait(box: Sandbox, folder: str, request_name: str) -> None:
    assert (await box.exec(["python3", "-c", SPECIAL], cwd=folder)).exit_code == 0
    took = 0.0
    for name in ("fifo", "socket", "link"):
        began = time.monotonic()
        async with asyncio.timeout(5):
            try:
                found = await REQUESTS[request_name](box, f"{folder}/{name}")
            except PathError as error:
                assert error.reason in ("not_regular", "not_a_directory", "conflict")
            else:
                assert request_name in ON_THE_LINK_ITSELF, (request_name, name, found)
        took = max(took, time.monotonic() - began)
    assert took < 2, "the machine may be slow; an open that blocks takes for ever"


LEASE = """
import fcntl, os, signal
signal.signal(signal.SIGIO, signal.SIG_IGN)
file = open("leased", "w+")
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("ready", flush=True)
signal.pause()
"""


@pytest.mark.threat("P11")
async def test_a_file_that_a_program_has_leased_is_a_conflict_and_makes_nobody_wait(box: Sandbox, folder: str) -> None:
    command = ["python3", "-c", LEASE]
    holder = await box.start(ExecRequest(command=command, cwd=folder, stream=True, owner="holder"))
    async for _ in holder.output():
        break
    async with asyncio.timeout(5):
        for request in ("read", "claim"):
            assert await refusal(request, box, f"{folder}/leased") == "conflict"
        await box.write(f"{folder}/leased", b"new")
        assert await box.read(f"{folder}/leased") == b"new"
    await box.end("holder", grace=0)


NAMES = [
    *("-rf", "--", "*", "$(id)", "`id`", "...", " ", "~", "%s", "\\", "'\"", "a;b", "a|b", "&", "#", "COM1", "x" * 255),
    *("a\nb", "\r", "\t", "\x01", "\x7f", "\x1b[31m", "\x1b]0;x\x07", "\u202eevil", "\u200b", "\ufeff", "\x85"),
    *("\udcff\udcfe", "ok\udc80", "é", "e\u0301", "A", "a", "ß", "SS", "ı", "I"),
]


@pytest.mark.threat("P13")
async def test_names_come_back_byte_for_byte_from_every_request(box: Sandbox, folder: str) -> None:
    program = (
        "import sys\nfor n, name in enumerate(sys.stdin.buffer.read().split(b'\\0')): open(name, 'wb').write(b'%d' % n)"
    )
    raw = [os.fsencode(name) for name in NAMES]
    made = await box.run(ExecRequest(command=["python3", "-c", program], cwd=folder, stdin=b"\0".join(raw)))
    assert made.exit_code == 0, made.stderr_text
    listed = {entry.path.removeprefix(f"/workspace/{folder}/") for entry in (await box.list(folder)).entries}
    assert listed == set(NAMES)
    packed = await file_requests.REQUESTS["archive"](box, folder)
    assert isinstance(packed, bytes)
    with tarfile.open(fileobj=io.BytesIO(packed), encoding="utf-8", errors="surrogateescape") as tar:
        assert set(tar.getnames()) == set(NAMES)
    paths = [f"{folder}/{name}" for name in NAMES]
    stats = await box.stat(paths, claim=True)
    assert len({found.inode for found in stats if isinstance(found, FileStat)}) == len(NAMES)
    for number, path in enumerate(paths):
        assert await box.read(path) == b"%d" % number
        await box.rename(path, f"{folder}/moved")
        await box.rename(f"{folder}/moved", path)
        assert await box.remove(path) == 1


@pytest.mark.threat("P14")
async def test_a_tree_three_thousand_levels_deep_is_seen_whole_or_called_truncated(box: Sandbox, folder: str) -> None:
    program = "import os\nfor _ in range(3000):\n    os.mkdir('deep'); os.chdir('deep')\nopen('f', 'w').write('found')"
    assert (await box.exec(["python3", "-c", program], cwd=folder)).exit_code == 0
    bottom = f"{folder}/{'deep/' * 3000}f"
    assert await box.read(bottom) == b"found"
    listing = await box.list(folder, depth=10_000)
    assert listing.truncated or len(listing.entries) == 3001
    assert (await box.snapshot()).truncated or f"{bottom}" in (await box.snapshot()).entries
    for request in ("claim", "archive"):
        try:
            await REQUESTS[request](box, folder)
        except PathError as error:
            assert error.reason == "too_large"
        else:
            assert not listing.truncated, f"{request} called a part the whole"
    assert await box.remove(f"{folder}/deep", recursive=True) == 3001


@pytest.mark.threat("P14")
@pytest.mark.parametrize("entries", [5_000, pytest.param(1_000_000, marks=pytest.mark.slow)])
async def test_a_directory_of_very_many_entries_is_seen_whole_or_called_truncated(
    box: Sandbox, folder: str, entries: int
) -> None:
    program = f"for n in range({entries}): open(f'many-{{n}}', 'x').close()"
    assert (await box.exec(["python3", "-c", program], cwd=folder, timeout=300)).exit_code == 0
    cut = await box.list(folder, max_entries=1000)
    assert cut.truncated and len(cut.entries) == 1000
    assert len((await box.list(folder, max_entries=2_000_000)).entries) == entries
    whole = await box.snapshot(max_entries=entries + 100)
    assert not whole.truncated and len(whole.entries) >= entries
    assert (await box.snapshot(max_entries=entries)).truncated
    assert await box.remove(folder, recursive=True) == entries + 1
    await box.make_dir(folder)


@pytest.mark.threat("P16")
async def test_the_workspaces_file_system_tells_names_apart(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        twins = {"A": b"1", "a": b"2", "\u00e9": b"3", "e\u0301": b"4"}
        for name, content in twins.items():
            await box.write(name, content)
        assert {name: await box.read(name) for name in twins} == twins


CANARIES = """
import os, stat
mark = f"#!/bin/sh\\necho fired >> {os.getcwd()}/fired\\n"
code = f"open({os.getcwd() + '/fired'!r}, 'a').write('fired')\\n"
os.makedirs(".git/hooks"); os.makedirs("refs")
open("hook", "w").write(mark); os.chmod("hook", 0o755)
config = "[core]\\n\\tfsmonitor = {0}\\n\\thooksPath = .git/hooks\\n\\tpager = {0}\\n[diff]\\n\\texternal = {0}\\n"
open(".git/config", "w").write(config.format(os.getcwd() + "/hook"))
open(".git/HEAD", "w").write("ref: refs/heads/main\\n")
for name in ("pre-commit", "post-checkout"): open(f".git/hooks/{name}", "w").write(mark)
open("Makefile", "w").write("all:\\n\\t./hook\\n")
for name in ("sitecustomize.py", "usercustomize.py", "conftest.py", "setup.py", "json.py", "hook.pth"):
    open(name, "w").write(code)
open("ripgreprc", "w").write("--pre=./hook\\n")
"""


@pytest.mark.threat("P19")
async def test_nothing_that_lies_in_a_workspace_runs_because_the_host_looks_at_it(box: Sandbox, folder: str) -> None:
    planted = await box.exec(["python3", "-I", "-c", CANARIES], cwd=folder)
    assert planted.exit_code == 0, planted.stderr_text
    await box.snapshot()
    for request in REQUESTS:
        for path in (folder, f"{folder}/.git/config", f"{folder}/Makefile", f"{folder}/conftest.py"):
            if request not in ("remove", "remove_tree", "rename", "write"):
                try:
                    await REQUESTS[request](box, path)
                except PathError as error:
                    assert error.reason in ("is_directory", "not_a_directory", "conflict")
    assert (await box.exec("cat fired", cwd=folder)).stdout == b""
    assert not (workspace_on_the_host(box) / folder / "fired").exists()
