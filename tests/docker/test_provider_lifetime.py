"""Sandboxes are found again, end when they should, say why they died, and leak neither descriptors nor relays."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from tests.docker.provider_support import containers_of, docker_provider, engine_api, leftovers, spec

from kinfold.errors import SandboxError, SandboxLost
from kinfold.sandbox.base import MIB, ExecRequest, Limits
from kinfold.sandbox.docker.provider import ChannelKind
from kinfold.sandbox.docker.stream import open_engine_stream
from kinfold.sandbox.docker.sweep import sweep


@pytest.mark.anyio
async def test_destroy_is_idempotent_and_removes_everything(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        sandbox = await provider.create(spec())
        await sandbox.aclose()
        await provider.destroy(sandbox.ref)
        await provider.destroy(sandbox.ref)
        assert leftovers(provider) == []
        assert await provider.list() == []


@pytest.mark.anyio
async def test_a_made_workspace_stays_for_keep_with_its_files(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec(keep=60.0)) as sandbox:
            await sandbox.write("result", b"x")
        workspace = Path(sandbox.ref.workspace)
        assert (workspace / "result").read_bytes() == b"x"
        assert os.listdir(workspace.parent) == ["workspace"]
        assert containers_of(provider.instance) == []
        (record,) = (await provider.records.list()).records
        assert record.state == "released"


@pytest.mark.anyio
@pytest.mark.threat("G03")
async def test_a_hostile_tree_goes_with_its_sandbox(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec()) as sandbox:
            result = await sandbox.exec(
                "mkdir -p a/b/c && touch a/b/c/f && ln -s / root && chmod 000 a/b/c a/b a && mkfifo pipe"
                " && i=0; while [ $i -lt 300 ]; do mkdir d && cd d; i=$((i+1)); done; echo done",
                timeout=60,
            )
            assert result.stdout_text == "done\n"
        assert leftovers(provider) == []
    assert os.path.isdir("/etc")


@pytest.mark.anyio
async def test_what_another_uid_made_is_removed_as_that_uid(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec(user="1234", keep=60.0)) as sandbox:
            await sandbox.exec("mkdir -p a/b .kinfold && touch a/b/c .kinfold/x && chmod 000 a/b && ln -s / root")
        (record,) = (await provider.records.list()).records
        await sweep(provider, record, workspace=True)
        assert os.listdir(sandbox.ref.workspace) == []
        assert containers_of(provider.instance) == []


@pytest.mark.anyio
async def test_another_process_connects_and_its_leaving_ends_nothing(own_state: Path) -> None:
    async with docker_provider(own_state) as provider, await provider.create(spec(env={"A": "1"})) as sandbox:
        process = await sandbox.exec("sleep 100 & echo $!")
        async with docker_provider(own_state) as other:
            (ref,) = await other.list()
            assert ref == sandbox.ref
            async with await other.connect(ref) as second:
                assert second.generation == sandbox.generation
                assert (await second.exec("echo $A")).stdout_text == "1\n"
        assert (await sandbox.exec(["kill", "-0", process.stdout_text.strip()])).exit_code == 0


@pytest.mark.anyio
@pytest.mark.threat("G02")
async def test_gone_replaced_and_unknown_are_told_apart(own_state: Path, tmp_path: Path) -> None:
    async with docker_provider(own_state) as provider:
        sandbox = await provider.create(spec(detached=True))
        await sandbox.aclose()
        with pytest.raises(SandboxLost, match="replaced"):
            await provider.connect(dataclasses.replace(sandbox.ref, handle="0" * 64))
        async with docker_provider(tmp_path / "other") as stranger:
            with pytest.raises(SandboxLost, match="not known here"):
                await stranger.connect(sandbox.ref)
            await stranger.destroy(sandbox.ref)
        with engine_api() as api:
            api.remove_container(sandbox.ref.handle, force=True)
        with pytest.raises(SandboxLost, match="is gone"):
            await provider.connect(sandbox.ref)
        assert [ref.state for ref in await provider.list()] == ["missing"]
        await provider.destroy(sandbox.ref)
        assert leftovers(provider) == []


@pytest.mark.anyio
@pytest.mark.threat("C08", "G02")
async def test_a_look_alike_in_a_sandboxs_place_is_neither_used_nor_removed(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        sandbox = await provider.create(spec(detached=True))
        await sandbox.aclose()
        with engine_api() as api:
            api.remove_container(sandbox.ref.handle, force=True)
            fake = api.create_container(sandbox.ref.image, ["sleep", "60"], name=f"kinfold-{sandbox.id}")["Id"]
            try:
                with pytest.raises(SandboxLost, match="replaced"):
                    await provider.connect(dataclasses.replace(sandbox.ref, handle=fake))
                await provider.destroy(dataclasses.replace(sandbox.ref, handle=""))
                assert api.inspect_container(fake)["Id"] == fake
            finally:
                api.remove_container(fake, force=True)


def _more_memory(api: Any, container: str) -> None:
    api.update_container(container, mem_limit="512m", memswap_limit="512m")


def _started_again(api: Any, container: str) -> None:
    api.restart(container, timeout=0)


def _restarts_by_itself(api: Any, container: str) -> None:
    api.update_container(container, restart_policy={"Name": "always"})


@pytest.mark.anyio
@pytest.mark.threat("G02")
@pytest.mark.parametrize(
    ("tamper", "part"),
    [(_more_memory, "Memory, MemorySwap"), (_started_again, "start"), (_restarts_by_itself, "RestartPolicy")],
)
async def test_a_container_that_was_changed_since_it_was_made_is_not_adopted(
    own_state: Path, tamper: Callable[[Any, str], None], part: str
) -> None:
    async with docker_provider(own_state) as provider:
        sandbox = await provider.create(spec(name="mine", detached=True, limits=Limits(memory_bytes=256 * MIB)))
        await sandbox.aclose()
        async with await provider.connect(sandbox.ref) as same:
            assert (await same.exec(["true"])).exit_code == 0
        with engine_api() as api:
            await anyio.to_thread.run_sync(tamper, api, sandbox.ref.handle)
        with pytest.raises(SandboxLost, match=f"its container's {part} changed") as caught:
            await provider.connect(sandbox.ref)
        assert "kinfold sandbox destroy mine" in caught.value.hint
        with pytest.raises(SandboxLost, match=f"its container's {part} changed"):
            await provider.create(sandbox.spec)
        await provider.destroy(sandbox.ref)
        assert leftovers(provider) == []


@pytest.mark.anyio
@pytest.mark.parametrize("channel", ["auto", "engine"])
@pytest.mark.threat("F05", "K10")
async def test_a_killed_supervisor_is_a_lost_sandbox_with_the_reason(own_state: Path, channel: ChannelKind) -> None:
    async with docker_provider(own_state, channel=channel) as provider:
        async with await provider.create(spec()) as sandbox:
            assert (await sandbox.exec(["true"])).exit_code == 0
            with engine_api() as api:
                api.kill(sandbox.ref.handle)
            with pytest.raises(SandboxLost, match=r"killed from outside \(exit code 137\)"):
                await sandbox.exec(["true"])
        assert leftovers(provider) == []


@pytest.mark.anyio
@pytest.mark.parametrize("channel", ["auto", "engine"])
async def test_what_a_container_that_is_stopped_takes_along_is_lost_and_not_cancelled(
    own_state: Path, channel: ChannelKind
) -> None:
    async with docker_provider(own_state, channel=channel) as provider:
        async with await provider.create(spec()) as sandbox:
            process = await sandbox.start(ExecRequest(command=["sleep", "60"]))
            with engine_api() as api:
                await anyio.to_thread.run_sync(api.stop, sandbox.ref.handle)
            with pytest.raises(SandboxLost, match=r"it was stopped \(exit code 0\)"):
                await process.wait()
        assert leftovers(provider) == []


@pytest.mark.anyio
@pytest.mark.threat("F04")
async def test_a_container_removed_underneath_is_a_lost_sandbox(own_state: Path) -> None:
    async with docker_provider(own_state) as provider:
        async with await provider.create(spec()) as sandbox:
            with engine_api() as api:
                api.remove_container(sandbox.ref.handle, force=True)
            with pytest.raises(SandboxLost, match="is gone"):
                await sandbox.exec(["true"])
        assert leftovers(provider) == []


@pytest.mark.anyio
@pytest.mark.threat("F04")
async def test_a_paused_container_is_an_error_that_names_the_cure(own_state: Path) -> None:
    async with docker_provider(own_state, channel="engine") as provider:
        sandbox = await provider.create(spec(detached=True))
        await sandbox.aclose()
        with engine_api() as api:
            api.pause(sandbox.ref.handle)
        try:
            with pytest.raises(SandboxError, match="is paused") as caught:
                await provider.open_stream(sandbox.ref)
            assert "docker unpause" in caught.value.hint
        finally:
            await provider.destroy(sandbox.ref)
        assert leftovers(provider) == []


@pytest.mark.anyio
async def test_fifty_engine_streams_leave_no_descriptor_and_no_relay(own_state: Path) -> None:
    async with docker_provider(own_state) as provider, await provider.create(spec()) as sandbox:
        stream = await open_engine_stream(provider.engine, sandbox.ref.handle)
        await stream.aclose()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(50):
            stream = await open_engine_stream(provider.engine, sandbox.ref.handle)
            await stream.aclose()
        assert len(os.listdir("/proc/self/fd")) <= before + 2
        with engine_api() as api:
            for _ in range(100):
                if not _relays(api, sandbox.ref.handle):
                    break
                await anyio.sleep(0.1)
            assert _relays(api, sandbox.ref.handle) == []


def _relays(api: Any, container: str) -> list[str]:
    rows = [" ".join(row) for row in api.top(container)["Processes"]]
    return [row for row in rows if "kinfold-supervisor connect" in row]


@pytest.mark.anyio
async def test_the_engines_stream_carries_what_the_local_socket_carries(own_state: Path) -> None:
    data = os.urandom(3_000_000)
    async with docker_provider(own_state, channel="engine") as provider, await provider.create(spec()) as sandbox:
        await sandbox.write("data", data)
        assert await sandbox.read("data") == data
        result = await sandbox.exec("cat data; echo problem >&2", max_output_bytes=4_000_000)
        assert (result.stdout, result.stderr) == (data, b"problem\n")


@pytest.mark.anyio
async def test_a_supervisor_that_does_not_dial_is_reached_through_the_engine(
    own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nobody: frozenset[int] = frozenset()
    monkeypatch.setattr("kinfold.sandbox.docker.provider._peer_uids", lambda facts: nobody)
    async with docker_provider(own_state) as provider, await provider.create(spec()) as sandbox:
        assert provider.channel_of(sandbox.ref) == "engine"
        assert (await sandbox.exec(["true"])).exit_code == 0


@pytest.mark.anyio
async def test_lists_are_by_label_and_by_instance(own_state: Path, tmp_path: Path) -> None:
    async with (
        docker_provider(own_state) as one,
        docker_provider(tmp_path / "two") as two,
        await one.create(spec(labels={"task": "a"})) as a,
        await one.create(spec(labels={"task": "b"})) as b,
        await two.create(spec(labels={"task": "a"})) as c,
    ):
        assert {ref.id for ref in await one.list()} == {a.id, b.id}
        assert [ref.id for ref in await one.list({"task": "a"})] == [a.id]
        found = [(ref.id, ref.state, dict(ref.labels)) for ref in await two.list()]
        assert found == [(c.id, "running", {"task": "a"})]
