"""The store beside real containers: its faults stop no ending, and lifetimes that its records set are kept."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from tests.docker.provider_support import IMAGE, containers_of, docker_provider, spec
from tests.docker.test_operator_faults import fill, run, small_disk
from tests.unit.tasks.test_records_contract import OTHER, record

from kinfold.errors import SandboxLost, StoreError
from kinfold.sandbox.docker.provider import DockerProvider
from kinfold.sandbox.docker.reaper import reap
from kinfold.tasks.store.door import FILE_NAME, Store
from kinfold.tasks.store.sandboxes import StoreRecords, all_records

pytestmark = pytest.mark.anyio
HOLDER = """
import sys, anyio
from pathlib import Path
from kinfold.cli.run import load_settings, make_provider
from kinfold.sandbox.base import SandboxSpec
async def main():
    async with make_provider(load_settings({})) as provider:
        async with await provider.create(SandboxSpec(image=sys.argv[1], pull="never", keep=0.0)) as sandbox:
            print(sandbox.id, flush=True)
            await anyio.sleep(600)
anyio.run(main)
"""


@asynccontextmanager
async def stored_provider(state: Path) -> AsyncIterator[DockerProvider]:
    """A provider as the command line has it."""
    async with Store(state) as store, docker_provider(state) as provider:
        provider.records = all_records(store, state)
        yield provider


@pytest.mark.threat("F06")
async def test_a_full_disk_is_named_what_is_stored_is_read_and_space_heals_it(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "1m") as disk:
        state = disk / "state"
        state.mkdir(mode=0o700)
        async with Store(state) as store:
            records = StoreRecords(store)
            held = await records.intend(record())
            fill(disk / "filler")
            with pytest.raises(StoreError, match="no space is left") as caught:
                await _write_much(records)
            assert caught.value.code == "store_full"
            assert held in (await records.list()).records
        fill(disk / "more")
        async with Store(state) as store:
            assert held in (await StoreRecords(store).list()).records, "one that was closed opens on a full disk"
            with pytest.raises(StoreError, match="no space is left"):
                await StoreRecords(store).intend(record(OTHER))
            (disk / "filler").unlink()
            (disk / "more").unlink()
            assert await StoreRecords(store).intend(record(OTHER)) == record(OTHER)
            assert "sound" in await (await store.database()).check()


async def _write_much(records: StoreRecords) -> None:
    for number in range(100):
        await records.intend(record(f"sbx_{number:016x}", workspace="w" * 4000))


@pytest.fixture
def holder(own_state: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that holds a sandbox, and that sandbox's id."""
    process = subprocess.Popen([sys.executable, "-c", HOLDER, IMAGE], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as lines:
        yield process, lines.readline().strip()
    process.kill()
    process.wait()


@pytest.mark.threat("F07")
async def test_a_damaged_store_stops_no_ending_and_labels_find_what_it_knew(
    own_state: Path, holder: tuple[subprocess.Popen[str], str]
) -> None:
    process, orphan = holder
    async with stored_provider(own_state) as provider:
        detached = await provider.create(spec(detached=True))
        await detached.aclose()
        owned = await provider.create(spec())
    for path in own_state.glob(f"{FILE_NAME}*"):
        path.write_bytes(b"\xa5" * 9000)
    process.kill()
    process.wait()
    listed = await anyio.to_thread.run_sync(lambda: run("sandbox", "list"))
    assert detached.id in listed.stdout
    destroyed = await anyio.to_thread.run_sync(lambda: run("sandbox", "destroy", detached.id))
    assert destroyed.returncode == 0, destroyed.stderr
    assert "is damaged" in destroyed.stderr
    async with stored_provider(own_state) as provider:
        await owned.aclose()
        plain = await reap(provider)
        assert [item.kept for item in plain if item.kind != "directory"] == [True, True]
        assert any("is damaged" in item.reason for item in plain)
        (done,) = [item for item in await reap(provider, by_labels=True) if item.kind == "container"]
        assert (done.name, done.removed) == (orphan, True)
        assert f"process {process.pid} on" in done.reason
        assert containers_of(provider.instance) == []
    assert str(own_state) not in Path("/proc/mounts").read_text()


async def test_a_sandbox_ends_at_its_ttl_whatever_it_does_and_says_why(own_state: Path) -> None:
    async with stored_provider(own_state) as provider:
        async with await provider.create(spec(ttl=3.0)) as sandbox:
            with pytest.raises(SandboxLost, match=r"its ttl of 3 s is over"):
                await sandbox.exec(["sleep", "60"])
            with pytest.raises(SandboxLost, match=r"its ttl of 3 s is over"):
                await sandbox.read("x")
            assert containers_of(provider.instance) == []
        (gone,) = (await provider.records.list(id=sandbox.id, gone=True)).records
        assert (gone.state, gone.reason) == ("gone", "its ttl of 3 s is over")
        listed = await anyio.to_thread.run_sync(lambda: run("sandbox", "list", "--all"))
        assert "its ttl of 3 s is over" in listed.stdout


async def test_use_renews_an_idle_lease_also_by_another_process_and_rest_ends_it(own_state: Path) -> None:
    async with stored_provider(own_state) as provider, stored_provider(own_state) as other:
        async with await provider.create(spec(idle_ttl=2.0)) as sandbox:
            began = time.monotonic()
            assert (await sandbox.exec(["sleep", "3"])).exit_code == 0, "a long exec is no idleness"
            borrowed = await other.connect(sandbox.ref)
            assert (await borrowed.exec(["sleep", "3"])).exit_code == 0
            await borrowed.aclose()
            assert time.monotonic() - began > 6
            with anyio.fail_after(20):
                while containers_of(provider.instance):
                    await anyio.sleep(0.2)
            with pytest.raises(SandboxLost, match="idle_ttl of 2 s"):
                await sandbox.exec(["true"])
        (gone,) = (await provider.records.list(id=sandbox.id, gone=True)).records
        assert "idle_ttl of 2 s" in gone.reason
