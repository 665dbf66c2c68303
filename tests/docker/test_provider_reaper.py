"""The reaper removes what is provably dead or expired, says why, and leaves everything else alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest
from tests.docker.provider_support import IMAGE, containers_of, docker_provider, engine_api, leftovers, spec

from kinfold.sandbox.docker.admission import admit
from kinfold.sandbox.docker.intent import fresh_id, intent
from kinfold.sandbox.docker.provider import DockerProvider
from kinfold.sandbox.docker.reaper import Reaped, reap, why_dead
from kinfold.sandbox.records import Owner, SandboxRecord

HOLDER = """
import sys, anyio
from pathlib import Path
from kinfold.sandbox.base import SandboxSpec
from kinfold.sandbox.docker.provider import DockerProvider
async def main():
    async with DockerProvider(state_dir=Path(sys.argv[1])) as provider:
        spec = SandboxSpec(image=sys.argv[2], pull="never", keep=0.0, resume_ttl=float(sys.argv[3]))
        async with await provider.create(spec) as sandbox:
            print(sandbox.id, flush=True)
            await anyio.sleep(600)
anyio.run(main)
"""
DEAD = Owner.current().model_copy(update={"pid": 1, "started": 1})


@pytest.fixture
def look_alike() -> Iterator[str]:
    """A stranger's container with a name like ours."""
    with engine_api() as api:
        ident = api.create_container(IMAGE, ["sleep", "60"], name="kinfold-sbx_00000000deadbeef")["Id"]
        yield ident
        api.remove_container(ident, force=True)


def of(reaped: list[Reaped], name: str) -> Reaped:
    """The entry of this name."""
    (found,) = [item for item in reaped if item.name == name]
    return found


@pytest.mark.anyio
@pytest.mark.threat("C08", "G01")
async def test_a_sandbox_whose_owner_was_killed_is_reaped_and_a_look_alike_survives(
    own_state: Path, look_alike: str
) -> None:
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec()) as mine:
            holder, ident = await anyio.to_thread.run_sync(_hold, own_state)
            assert await reap(provider) == []
            holder.kill()
            holder.wait()
            dry = of(await reap(provider, dry_run=True), ident)
            assert (dry.removed, len(containers_of(provider.instance))) == (False, 2)
            done = of(await reap(provider), ident)
            assert (done.kind, done.removed) == ("sandbox", True)
            assert f"process {holder.pid} on" in done.reason
            assert [item["Labels"]["kinfold.sandbox"] for item in containers_of(provider.instance)] == [mine.id]
            assert await reap(provider) == []
            assert (await mine.exec(["true"])).exit_code == 0
        assert leftovers(provider) == []
        with engine_api() as api:
            assert api.inspect_container(look_alike)["Id"] == look_alike


@pytest.mark.anyio
async def test_a_sandbox_that_may_be_resumed_waits_for_its_time_from_when_it_is_seen_and_no_longer(
    own_state: Path,
) -> None:
    async with docker_provider(own_state) as provider:
        holder, ident = await anyio.to_thread.run_sync(_hold, own_state, 60.0)
        holder.kill()
        holder.wait()
        for times in range(3):
            found = of(await reap(provider, dry_run=times == 0), ident)
            assert (found.removed, found.kept) == (False, True)
            assert "waits for another process until" in found.reason
            seen = [record.abandoned_at for record in (await provider.records.list()).records]
            assert (seen == [None]) == (times == 0)
        (record,) = (await provider.records.list()).records
        since = record.abandoned_at or 0.0
        assert why_dead(record, since + 59) is None
        assert "has ended" in (why_dead(record, since + 61) or "")
        assert "has ended" in (why_dead(record, since + 1, abandon=True) or "")
        early = record.model_copy(update={"expires_at": since + 10})
        assert "has ended" in (why_dead(early, since + 11) or ""), "its ttl ends it all the same"
        assert of(await reap(provider, resumable=lambda record: False), ident).removed
        assert leftovers(provider) == []


@pytest.mark.anyio
async def test_a_detached_sandbox_lives_until_its_lease_ends(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        sandbox = await provider.create(spec(detached=True, ttl=3600.0))
        await sandbox.aclose()
        assert await reap(provider) == []
        (held,) = (await provider.records.list(id=sandbox.id)).records
        held = await provider.records.adopt(held.model_copy(update={"owner": DEAD}))
        assert await reap(provider) == []
        await provider.records.renew(held, time.time() - 1)
        done = of(await reap(provider), sandbox.id)
        assert done.removed
        assert "its lease ended at" in done.reason
        assert leftovers(provider) == []


@pytest.mark.anyio
@pytest.mark.threat("G01")
async def test_an_intent_without_a_container_is_cleaned_with_its_directories(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        record = await _intended(provider)
        (provider.workspaces.layout(record.id).root / "home").mkdir(parents=True)
        done = of(await reap(provider), record.id)
        assert done.removed
        assert "ended while creating it" in done.reason
        assert leftovers(provider) == []


@pytest.mark.anyio
@pytest.mark.threat("G01")
async def test_a_kept_workspace_goes_when_its_time_is_over_and_not_before(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec(keep=3600.0)) as sandbox:
            await sandbox.write("result", b"x")
        assert await reap(provider) == []
        (kept,) = (await provider.records.list(id=sandbox.id)).records
        await provider.records.release(kept, keep_until=time.time() - 1)
        done = of(await reap(provider), sandbox.id)
        assert (done.kind, done.removed) == ("workspace", True)
        assert leftovers(provider) == []


@pytest.mark.anyio
@pytest.mark.threat("C08")
async def test_what_has_our_label_but_no_record_is_reported_and_left(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        sandbox = await provider.create(spec(detached=True))
        await sandbox.aclose()
        path = own_state / "records" / f"{sandbox.id}.json"
        path.write_text(path.read_text()[:100])
        reaped = await reap(provider)
        assert not of(reaped, f"kinfold-{sandbox.id}").removed
        assert not of(reaped, str(path)).removed
        assert "docker rm -f" in of(reaped, f"kinfold-{sandbox.id}").reason
        assert len(containers_of(provider.instance)) == 1
        path.unlink()
        await provider.destroy(sandbox.ref)
        assert containers_of(provider.instance) == []
        assert of(await reap(provider), sandbox.id).kind == "directory"
        assert provider.workspaces.remove(sandbox.id, workspace=True) == []
        assert await reap(provider) == []


@pytest.mark.anyio
@pytest.mark.threat("C08", "C09")
async def test_one_installation_never_reaps_anothers(own_state: Path, tmp_path: Path) -> None:
    async with docker_provider(own_state) as one, docker_provider(tmp_path / "two") as two:
        sandbox = await two.create(spec(detached=True, ttl=3600.0))
        await sandbox.aclose()
        await _expire(two, sandbox.id)
        assert await reap(one) == []
        one.records = two.records
        assert await reap(one) == []
        assert len(containers_of(two.instance)) == 1
        assert of(await reap(two), sandbox.id).removed
        assert leftovers(two) == []


@pytest.mark.anyio
@pytest.mark.threat("G01")
async def test_two_reapers_at_once_are_as_good_as_one(own_state: Path) -> None:
    async with docker_provider(own_state) as provider, docker_provider(own_state) as other:
        sandbox = await provider.create(spec(detached=True))
        await sandbox.aclose()
        await _expire(provider, sandbox.id)
        found: list[Reaped] = []

        async def sweep(which: DockerProvider) -> None:
            found.extend(await reap(which))

        async with anyio.create_task_group() as group:
            group.start_soon(sweep, provider)
            group.start_soon(sweep, other)
        assert [(item.name, item.removed) for item in found] == [(sandbox.id, True)]
        assert leftovers(provider) == []


@pytest.mark.anyio
async def test_a_name_that_a_dead_process_held_can_be_used_again(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        record = await _intended(provider, name="one")
        async with await provider.create(spec(name="one")) as sandbox:
            assert sandbox.id != record.id
        assert leftovers(provider) == []
        assert os.listdir(own_state / "sandboxes") == []


@pytest.mark.anyio
@pytest.mark.threat("G01")
async def test_an_outdated_supervisor_goes_unless_it_is_used_or_anothers(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        own = provider.containers.volume().labels
        names = {name: f"kinfold-supervisor-test-{name}-{provider.instance}" for name in ("old", "used", "foreign")}
        with engine_api() as api:
            api.create_volume(names["old"], labels=own)
            api.create_volume(names["used"], labels=own)
            api.create_volume(names["foreign"], labels=own | {"kinfold.instance": "another"})
            host = api.create_host_config(binds=[f"{names['used']}:/v"])
            user = api.create_container(IMAGE, ["true"], volumes=["/v"], host_config=host)["Id"]
            try:
                done = [(item.kind, item.name, item.removed) for item in await reap(provider)]
                assert done == [("volume", names["old"], True)]
                left = {volume["Name"] for volume in api.volumes()["Volumes"]}
                assert names["old"] not in left
                assert {names["used"], names["foreign"]} <= left
            finally:
                api.remove_container(user, force=True)
                api.remove_volume(names["used"])
                api.remove_volume(names["foreign"])


async def _expire(provider: DockerProvider, sandbox_id: str) -> None:
    """End its lease a second ago."""
    (held,) = (await provider.records.list(id=sandbox_id)).records
    await provider.records.renew(held, time.time() - 1)


def _hold(state: Path, resume_ttl: float = 0.0) -> tuple[subprocess.Popen[bytes], str]:
    """Another process that holds a sandbox, and that sandbox's id."""
    command = [sys.executable, "-c", HOLDER, str(state), IMAGE, str(resume_ttl)]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    with holder.stdout as lines:
        return holder, lines.readline().decode().strip()


async def _intended(provider: DockerProvider, name: str | None = None) -> SandboxRecord:
    """The record that a process leaves which died before its container was made."""
    ident = fresh_id()
    admitted = admit(spec(name=name), provider.workspaces.state_dir)
    engine = (await provider.engine.facts()).id
    record = intent(ident, admitted, provider.workspaces.layout(ident).workspace, ("docker", provider.instance, engine))
    return await provider.records.intend(record.model_copy(update={"owner": DEAD}))
