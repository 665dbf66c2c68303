"""kinfold killed at any moment: what it left is removed or kept on purpose, with a reason, and never a success.

By another process's `kinfold reap`, and by the next one that makes a sandbox. Nothing that is not ours is touched.
"""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import stat
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from tests.docker.provider_support import IMAGE, docker_provider, engine_api, spec

from kinfold.cli.run import load_settings, make_provider
from kinfold.sandbox.docker.provider import DockerProvider
from kinfold.sandbox.docker.reaper import reap
from kinfold.sandbox.record import SandboxRecord

KINFOLD = str(Path(sys.executable).with_name("kinfold"))
SCRIPT = """
main:
  - calls:
      - {tool: task, input: {subagent_type: general, description: first part, prompt: write a.txt}}
      - {tool: task, input: {subagent_type: general, description: second part, prompt: write b.txt}}
  - calls: [{tool: bash, input: {command: "cat a.txt b.txt > all.txt; sleep 0.3 & sleep 0.2"}}]
  - calls: [{tool: complete, input: {summary: both, paths: [all.txt]}}]
subagents:
  first part:
    - calls: [{tool: bash, input: {command: "echo a > a.txt; sleep 0.3"}}]
    - calls: [{tool: complete, input: {summary: a, paths: [a.txt]}}]
  second part:
    - calls: [{tool: bash, input: {command: "echo b > b.txt; sleep 0.5"}}]
    - calls: [{tool: complete, input: {summary: b, paths: [b.txt]}}]
"""
STEPS = textwrap.dedent(
    """
    import os, signal, sys
    from pathlib import Path
    import anyio
    from kinfold.sandbox.base import SandboxSpec
    from kinfold.sandbox.docker import ending
    from kinfold.sandbox.docker.client import Engine
    from kinfold.sandbox.docker.provider import DockerProvider
    from kinfold.sandbox.docker.workspaces import Workspaces
    from kinfold.sandbox.records import FileRecords

    left = [int(sys.argv[3])]

    def step(what):
        left[0] -= 1
        if left[0] == 0:
            print(what, flush=True)
            os.kill(os.getpid(), signal.SIGKILL)

    def watch(owner, name):
        real = getattr(owner, name)
        if name in ("make", "remove"):
            def watched(self, *args, **keys):
                step(f"before {name}")
                try:
                    return real(self, *args, **keys)
                finally:
                    step(f"after {name}")
        else:
            async def watched(self, *args, **keys):
                what = args[0] if name == "call" else name
                step(f"before {what}")
                try:
                    return await real(self, *args, **keys)
                finally:
                    step(f"after {what}")
        setattr(owner, name, watched)

    async def main():
        async with DockerProvider(state_dir=Path(sys.argv[1])) as provider:
            await provider.engine.facts()
            for name in ("intend", "adopt", "claim", "release"):
                watch(FileRecords, name)
            for name in ("make", "remove"):
                watch(Workspaces, name)
            watch(Engine, "call")
            spec = SandboxSpec(image=sys.argv[2], pull="never", keep=0.0)
            async with await provider.create(spec) as sandbox:
                await sandbox.exec("echo x > f; sleep 100 &")
        print("done", flush=True)

    anyio.run(main)
    """
)


@pytest.fixture
def strangers() -> Iterator[list[str]]:
    """Containers that are none of ours: by our name, and by our labels without a record of ours."""
    with engine_api() as api:
        foreign = {"kinfold.instance": "0123456789abcdef", "kinfold.sandbox": "sbx_00000000deadbeef"}
        name = "kinfold-sbx_00000000deadbe0f"
        made = [
            api.create_container(IMAGE, ["sleep", "60"], name=name)["Id"],
            api.create_container(IMAGE, ["sleep", "60"], labels=foreign | {"kinfold.role": "sandbox"})["Id"],
            api.create_container(IMAGE, ["sleep", "60"], labels=foreign | {"kinfold.role": "filler"})["Id"],
        ]
        yield made
        for ident in made:
            api.remove_container(ident, force=True)


def left_behind(state: Path) -> list[str]:
    """All that a dead process may have left on the engine and on the host, but kept workspaces and the supervisor."""
    provider = DockerProvider(state_dir=state)
    kept = {record.id for record in records_of(state) if record.state == "released"}
    mine = {"label": [f"kinfold.instance={provider.instance}"]}
    with engine_api() as api:
        found = [f"container {item['Names']} {item['State']}" for item in api.containers(all=True, filters=mine)]
        found += [f"network {item['Name']}" for item in api.networks(filters=mine)]
        volumes = [item["Name"] for item in api.volumes(filters=mine)["Volumes"] or ()]
    found += [f"volume {name}" for name in volumes if name != provider.containers.volume().name]
    found += [f"directory {ident}" for ident in provider.workspaces.ids() if ident not in kept]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    points = [line.split()[4] for line in mounts]
    found += [f"mount {point}" for point in points if point.startswith(f"{state}/")]
    for folder, folders, files in os.walk(state):
        found += [f"directory {folder}/{name}" for name in folders if name in ("dial", "home")]
        paths = [Path(folder, name) for name in files]
        found += [f"socket {path}" for path in paths if stat.S_ISSOCK(path.lstat().st_mode)]
    return found


def start(state: Path, script: Path) -> subprocess.Popen[bytes]:
    """A task with two subagents, by the command line."""
    command = [KINFOLD, "run", "go", "--json", "--model", f"scripted:{script}", "--image", IMAGE]
    environ = {**os.environ, "KINFOLD_STATE": str(state), "KINFOLD_RESUME_TTL": "0"}  # nobody is to resume it
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ)


def kinfold_reap(state: Path) -> list[str]:
    """What `kinfold reap` says, from another process."""
    environ = {**os.environ, "KINFOLD_STATE": str(state)}
    ended = subprocess.run([KINFOLD, "reap"], capture_output=True, text=True, timeout=100, env=environ)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def begun(process: subprocess.Popen[bytes], state: Path, known: set[str]) -> None:
    """Wait until there is something of a sandbox."""
    provider = DockerProvider(state_dir=state)
    end = time.monotonic() + 60
    while not set(provider.workspaces.ids()) - known and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.005)


def sandboxes_of(state: Path) -> set[str]:
    """The ids that have a directory."""
    return set(DockerProvider(state_dir=state).workspaces.ids())


def records_of(state: Path) -> tuple[SandboxRecord, ...]:
    """As the command line reads them."""

    async def read() -> tuple[SandboxRecord, ...]:
        async with make_provider(load_settings({"state_dir": state})) as provider:
            return (await provider.records.list()).records

    return anyio.run(read)


def has_ended(printed: bytes) -> bool:
    """Whether the task had come to its end before it was killed, by what it printed."""
    events = [json.loads(line) for line in printed.splitlines(keepends=True) if line.endswith(b"\n")]
    return any(event["type"] == "task_ended" for event in events)


@pytest.mark.threat("F01")
@pytest.mark.parametrize(
    "count", [5, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(1500)])], ids=["five", "fifty"]
)
def test_a_kill_at_any_moment_of_a_task_leaves_nothing_that_is_not_removed_with_its_reason(
    own_state: Path, tmp_path: Path, count: int, strangers: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    seed = int(os.environ.get("KINFOLD_TEST_SEED") or random.randrange(1 << 32))
    logging.getLogger(__name__).warning("KINFOLD_TEST_SEED=%d", seed)
    chance = random.Random(seed)
    script = tmp_path / "script.yaml"
    script.write_text(SCRIPT)
    whole = start(own_state, script)
    begun(whole, own_state, set())
    began = time.monotonic()
    assert whole.stdout is not None
    while has_ended(whole.stdout.readline()) is False:
        assert whole.poll() is None
    lasts = time.monotonic() - began
    _, err = whole.communicate(timeout=100)
    assert whole.returncode == 0, err.decode()
    assert left_behind(own_state) == []
    ended = 0
    for turn in range(count):
        known = sandboxes_of(own_state)
        process = start(own_state, script)
        begun(process, own_state, known)
        time.sleep(chance.random() * lasts)
        process.send_signal(signal.SIGKILL)
        printed, _ = process.communicate(timeout=30)
        ended += has_ended(printed)
        dead = [record.id for record in records_of(own_state) if record.state != "released"]
        if turn % 2 == 0:
            said = kinfold_reap(own_state)
        else:
            with caplog.at_level(logging.INFO):
                anyio.run(_make_one, own_state)
            said = [line for line in caplog.text.splitlines() if "removed sandbox" in line]
        # Of one killed while it ended its own sandbox, the reason is that end, which it did not finish.
        assert all(any(ident in line and f"process {process.pid} on" in line for line in said) for ident in dead)
        assert left_behind(own_state) == [], f"KINFOLD_TEST_SEED={seed}, turn {turn}"
    listed = subprocess.run([KINFOLD, "tasks", "list", "--limit", "100"], capture_output=True, text=True, check=True)
    stands = [line.split("\t")[1:3] for line in listed.stdout.splitlines()]
    assert {tuple(words) for words in stands} <= {("completed", "complete"), ("interrupted", "-")}
    with engine_api() as api:
        assert all(api.inspect_container(ident)["Id"] == ident for ident in strangers)


async def _make_one(state: Path) -> None:
    async with make_provider(load_settings({"state_dir": state})) as provider, await provider.create(spec()):
        return


@pytest.mark.threat("F01", "G04")
@pytest.mark.parametrize(
    "every", [9, pytest.param(1, marks=[pytest.mark.slow, pytest.mark.timeout(900)])], ids=["some", "all"]
)
def test_a_kill_before_and_after_each_step_of_create_and_destroy_is_made_good_by_a_reap(
    own_state: Path, every: int
) -> None:
    anyio.run(_make_one, own_state)  # what is measured once is measured
    steps: list[str] = []
    offset = random.randrange(every)
    for number in range(1 + offset, 1000, every):
        child = [sys.executable, "-c", STEPS, str(own_state), IMAGE, str(number)]
        done = subprocess.run(child, capture_output=True, text=True, timeout=60)
        steps.append(done.stdout.strip())
        if done.returncode == 0:
            break
        assert done.returncode == -signal.SIGKILL, done.stderr
        said = kinfold_reap(own_state)
        assert left_behind(own_state) == [], f"killed {steps[-1]}: {said}"
    assert steps[-1] == "done"
    assert len(steps) > 24 // every


@pytest.mark.threat("G01")
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_reaper_that_is_killed_is_finished_by_the_next_one(own_state: Path, tmp_path: Path) -> None:
    anyio.run(_make_one, own_state)
    script = tmp_path / "script.yaml"
    script.write_text(SCRIPT)
    environ = {**os.environ, "KINFOLD_STATE": str(own_state)}
    chance = random.Random()
    for _ in range(15):
        known = sandboxes_of(own_state)
        victim = start(own_state, script)
        begun(victim, own_state, known)
        time.sleep(0.8)
        victim.kill()
        victim.communicate()
        reaper = subprocess.Popen([KINFOLD, "reap"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ)
        time.sleep(0.5 + chance.random())
        reaper.kill()
        reaper.communicate()
        said = kinfold_reap(own_state)
        assert left_behind(own_state) == [], said


@pytest.mark.threat("G01", "C09")
def test_two_reapers_in_two_processes_beside_another_installation(own_state: Path, tmp_path: Path) -> None:
    """Each orphan is removed once, by either; the other installation's sandbox and the living one stay."""
    orphans = _orphans(own_state, 2)
    other = tmp_path / "other"
    (foreign,) = _orphans(other, 1)
    environ = {**os.environ, "KINFOLD_STATE": str(own_state)}
    reapers = [
        subprocess.Popen([KINFOLD, "reap"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ, text=True)
        for _ in range(2)
    ]
    said = [reaper.communicate(timeout=100) for reaper in reapers]
    assert [reaper.returncode for reaper in reapers] == [0, 0], said
    removed = [
        line.split()[2].rstrip(":") for out, _ in said for line in out.splitlines() if line.startswith("removed")
    ]
    assert sorted(set(removed) & set(orphans)) == sorted(orphans)
    assert left_behind(own_state) == []
    assert any(foreign in line for line in left_behind(other))
    assert any(f"removed sandbox {foreign}: its owner" in line for line in kinfold_reap(other))
    assert left_behind(other) == []


@pytest.mark.threat("G01")
@pytest.mark.anyio
async def test_a_container_that_comes_up_after_its_sandbox_was_reaped_is_removed_and_a_forgotten_directory_is_told(
    own_state: Path,
) -> None:
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec()) as sandbox:
            ident = sandbox.id
        (record,) = (await provider.records.list(id=ident, gone=True)).records
        with engine_api() as api:
            api.create_container(IMAGE, ["true"], name=f"kinfold-{ident}", labels=provider.containers.labels_of(record))
        late = provider.workspaces.layout(ident).root
        late.mkdir()
        unknown = provider.workspaces.layout("sbx_00000000deadbeef").root
        (unknown / "workspace").mkdir(parents=True)
        found = {(item.kind, item.name): item for item in await reap(provider)}
    assert found["container", f"kinfold-{ident}"].removed
    assert "came up after its sandbox had ended: " in found["container", f"kinfold-{ident}"].reason
    assert found["directory", ident].removed
    assert found["directory", unknown.name].kept
    assert unknown.exists()
    assert not late.exists()


def _orphans(state: Path, count: int) -> list[str]:
    """Sandboxes whose owners were killed: their ids."""
    script = state.parent / "wait.yaml"
    script.write_text("main:\n  - calls: [{tool: bash, input: {command: sleep 300}}]\n")
    state.mkdir(mode=0o700, exist_ok=True)
    owners = [start(state, script) for _ in range(count)]  # at once: each one removes what it finds dead
    found: list[str] = []
    for owner in owners:
        assert owner.stdout is not None
        found.append(json.loads(owner.stdout.readline())["sandboxId"])
    for owner in owners:
        owner.kill()
        owner.communicate()
    return found
