"""Warm sandboxes: claimed once, only by a spec of their kind, gone with their pool, never in a create's way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from tests.docker.provider_support import IMAGE, containers_of, docker_provider, engine_api, leftovers, spec

from kinfold.errors import ConfigError, EngineUnavailable, LeaseLost
from kinfold.sandbox import Limits, PoolSpec, Sandbox
from kinfold.sandbox.base import MIB
from kinfold.sandbox.docker.admission import admit
from kinfold.sandbox.docker.intent import fresh_id, intent
from kinfold.sandbox.docker.pool import Pool
from kinfold.sandbox.docker.provider import DockerProvider
from kinfold.sandbox.docker.reaper import reap
from kinfold.sandbox.record import SandboxRecord
from kinfold.sandbox.records import FileRecords

HOLDER = """
import sys, anyio
from pathlib import Path
from kinfold.sandbox import DockerProvider, PoolSpec
async def main():
    async with DockerProvider(state_dir=Path(sys.argv[1]), pool=PoolSpec(image=sys.argv[2], size=1)) as provider:
        while provider.pool.status().ready < 1:
            await anyio.sleep(0.05)
        print("ready", flush=True)
        await anyio.sleep(600)
anyio.run(main)
"""


def _started(command: list[str]) -> subprocess.Popen[str]:
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


async def filled(provider: DockerProvider, **fields: object) -> Pool:
    """The provider's pool, with all that it shall hold."""
    provider.pool = Pool(provider, PoolSpec.model_validate({"image": IMAGE, "pull": "never"} | fields))
    provider.pool.start()
    await ready(provider.pool, provider.pool.spec.size)
    return provider.pool


async def ready(pool: Pool, count: int) -> None:
    with anyio.fail_after(60):
        while pool.status().ready != count:
            await anyio.sleep(0.02)


async def pooled(provider: DockerProvider) -> list[SandboxRecord]:
    return [record for record in (await provider.records.list()).records if record.pooled]


@pytest.mark.anyio
async def test_a_claimed_sandbox_is_empty_the_callers_own_and_never_handed_out_again(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        pool = await filled(provider, size=1)
        (warm,) = await pooled(provider)
        wanted = spec(name="one", env={"WORD": "mine"}, secrets={"KEY": "s3"}, labels={"task": "t1"}, ttl=600.0)
        async with await provider.create(wanted) as sandbox:
            assert sandbox.id == warm.id
            assert (await sandbox.list(".")).entries == ()
            result = await sandbox.exec(["sh", "-c", "echo $WORD $KEY; echo x > left"])
            assert result.stdout_text == "mine s3\n"
            (record,) = (await provider.records.list(id=sandbox.id)).records
            assert (record.pooled, record.name, record.labels) == (False, "one", {"task": "t1"})
            assert record.expires_at == record.created_at + 600.0
            assert [ref.name for ref in await provider.list({"task": "t1"})] == ["one"]
            again = await provider.create(wanted)
            assert again.id == sandbox.id
            await again.aclose()
        await ready(pool, 1)
        async with await provider.create(spec()) as other:
            assert other.id != warm.id
            assert (await other.list(".")).entries == ()
        assert pool.status().claimed == 2
    assert leftovers(provider) == []


@pytest.mark.anyio
async def test_what_is_of_another_kind_is_made_the_cold_way_and_the_pool_says_why(
    own_state: Path, tmp_path: Path
) -> None:
    given = tmp_path / "given"
    given.mkdir()
    given.chmod(0o777)
    cases = {
        "given workspace": spec(workspace=str(given)),
        "copy_from": spec(copy_from=str(given)),
        "Memory": spec(limits=Limits(memory_bytes=512 * MIB)),
    }
    async with docker_provider(own_state) as provider:
        pool = await filled(provider, size=1)
        for why, other in cases.items():
            async with await provider.create(other) as sandbox:
                assert (await sandbox.exec(["true"])).exit_code == 0
            assert why in pool.status().last_miss
        assert (pool.status().claimed, pool.status().missed, pool.status().ready) == (0, 3, 1)
        pool.spec = pool.spec.model_copy(update={"required": True})
        for why, other in cases.items():
            with pytest.raises(ConfigError, match=why):
                await provider.create(other)
    assert leftovers(provider) == []


@pytest.mark.anyio
@pytest.mark.slow
async def test_twenty_at_once_from_a_pool_of_three_get_twenty_sandboxes(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        pool = await filled(provider, size=3)
        warm = {record.id for record in await pooled(provider)}
        made: list[Sandbox] = []

        async def create() -> None:
            made.append(await provider.create(spec(limits=Limits(memory_bytes=2048 * MIB))))

        async with anyio.create_task_group() as group:
            for _ in range(20):
                group.start_soon(create)
        try:
            ids = {sandbox.id for sandbox in made}
            assert len(ids) == 20
            assert warm <= ids
            assert pool.status().claimed + pool.status().missed == 20
        finally:
            async with anyio.create_task_group() as group:
                for sandbox in made:
                    group.start_soon(sandbox.aclose)
    assert leftovers(provider) == []


@pytest.mark.anyio
async def test_of_two_claims_of_one_warm_record_one_goes_through(tmp_path: Path) -> None:
    records = FileRecords(tmp_path / "records")
    made = intent(fresh_id(), admit(spec(), tmp_path), tmp_path, ("docker", "i", "e"), pooled=True)
    seen = await records.adopt(await records.intend(made))
    assert seen.pooled
    mine = await records.adopt(seen.model_copy(update={"pooled": False, "name": "a"}))
    assert (mine.pooled, mine.name) == (False, "a")
    renewed = await records.adopt(await records.intend(made.model_copy(update={"id": fresh_id()})))
    await records.renew(renewed, None)
    with pytest.raises(LeaseLost, match="changed meanwhile"):
        await records.adopt(renewed.model_copy(update={"pooled": False}))


@pytest.mark.anyio
async def test_the_pool_of_a_killed_process_is_reaped(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        await provider.engine.facts()
        command = [sys.executable, "-c", HOLDER, str(own_state), IMAGE]
        with _started(command) as holder:
            assert holder.stdout is not None
            assert await anyio.to_thread.run_sync(holder.stdout.readline) == "ready\n"
            (left,) = await pooled(provider)
            assert await reap(provider) == []
            os.kill(holder.pid, signal.SIGKILL)
            holder.wait()
        (done,) = await reap(provider)
        assert (done.name, done.removed) == (left.id, True)
        assert leftovers(provider) == []


@pytest.mark.anyio
async def test_an_image_that_was_built_anew_and_a_warm_one_that_died_are_replaced(own_state: Path) -> None:
    name = "kinfold/pool-test:latest"
    with engine_api() as api:
        api.tag(IMAGE, name)
        try:
            async with docker_provider(own_state) as provider:
                pool = await filled(provider, size=1, image=name)
                (old,) = await pooled(provider)
                ident = api.create_container(IMAGE, ["true"], labels={"kinfold-test": "pool"})["Id"]
                api.commit(ident, "kinfold/pool-test", "latest", changes=["LABEL rebuilt=1"])
                api.remove_container(ident)
                async with await provider.create(spec(image=name)) as sandbox:
                    assert sandbox.id != old.id
                    image = api.inspect_container(sandbox.ref.handle)["Image"]
                    assert image == api.inspect_image(name)["Id"] != api.inspect_image(IMAGE)["Id"]
                pool._wake.set()
                with anyio.fail_after(60):
                    while old.id in {record.id for record in await pooled(provider)}:
                        await anyio.sleep(0.05)
                await ready(pool, 1)
                (fresh,) = await pooled(provider)
                api.kill(fresh.handle)
                with anyio.fail_after(60):
                    while fresh.id in {record.id for record in await pooled(provider)}:
                        await anyio.sleep(0.05)
                await ready(pool, 1)
            assert leftovers(provider) == []
        finally:
            api.remove_image(name, force=True)


@pytest.mark.anyio
async def test_one_that_is_too_old_is_replaced(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        await filled(provider, size=1, max_age=1.0)
        (old,) = await pooled(provider)
        with anyio.fail_after(60):
            while old.handle in {item["Id"] for item in containers_of(provider.instance)}:
                await anyio.sleep(0.05)
    assert leftovers(provider) == []


@pytest.mark.anyio
async def test_a_pool_without_an_engine_says_so_and_closes(own_state: Path) -> None:
    gone = f"unix://{own_state}/no-engine.sock"
    async with DockerProvider(host=gone, state_dir=own_state, pool=PoolSpec(image=IMAGE)) as provider:
        pool = provider.pool
        assert pool is not None
        with anyio.fail_after(20):
            while not pool.status().failures:
                await anyio.sleep(0.02)
        assert "no-engine.sock" in pool.status().last_failure
        with pytest.raises(EngineUnavailable):
            await provider.create(spec())
