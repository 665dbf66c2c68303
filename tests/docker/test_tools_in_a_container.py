"""The tools in a real container: as the agent's own user, and in an image that holds no program at all."""

from __future__ import annotations

import io
import os
import tarfile
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.docker.provider_support import docker_provider, engine_api, spec
from tests.unit.tools.bench import Bench

from kinfold.messages import ToolCall
from kinfold.sandbox.binary import supervisor_path
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tools import registry
from kinfold.tools.base import Completion

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sandbox(tmp_path: Path) -> AsyncIterator[Sandbox]:
    """A container of the base image."""
    async with docker_provider(tmp_path / "state") as provider, await provider.create(spec()) as made:
        yield made


@pytest.fixture(scope="module")
def empty_image() -> Iterator[str]:
    """An image of one static program: no shell, no search, no library."""
    name = f"kinfold-test/tools-{uuid.uuid4().hex[:8]}"
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        member = tarfile.TarInfo("program")
        member.size, member.mode = supervisor_path().stat().st_size, 0o755
        archive.addfile(member, io.BytesIO(supervisor_path().read_bytes()))
    with engine_api() as api:
        api.import_image_from_data(buffer.getvalue(), repository=name, tag="1")
        yield f"{name}:1"
        api.remove_image(f"{name}:1", force=True)


async def completed(bench: Bench, *paths: str) -> Completion:
    call = ToolCall(id="call_1", name="complete", input={"summary": "Done.", "paths": list(paths)})
    result = await registry.dispatch(registry.SHIPPED, call, bench.make())
    assert isinstance(result, Completion), result
    return result


async def test_what_the_agents_user_may_not_read_is_refused_and_not_delivered(sandbox: Sandbox) -> None:
    bench = Bench(sandbox)
    bench.state.snapshot = await sandbox.snapshot()
    await bench.text(
        "bash",
        command=(
            "echo needle > a; ln -s /workspace/a absolute; ln -s /etc/passwd out; mkdir locked; "
            "echo needle > locked/b; echo secret > no; chmod 000 no locked; mkfifo pipe; id -u > user"
        ),
    )
    assert await bench.text("read_file", path="absolute") == "     1\tneedle"
    assert await bench.text("read_file", path="user") == f"     1\t{sandbox.agent_uid}"
    assert sandbox.agent_uid == (os.geteuid() or 1000)
    assert "permission denied" in await bench.refusal("read_file", path="no")
    assert "leaves the workspace" in await bench.refusal("read_file", path="out")
    found = await bench.text("grep", pattern="needle")
    assert found.startswith("a:1:needle\n(not everything could be searched: ")
    done = await completed(bench, "a", "absolute", "no", "locked", "locked/b", "out", "pipe")
    assert [artifact.path for artifact in done.artifacts] == ["/workspace/a", "/workspace/absolute"]
    assert {skipped.path: skipped.reason for skipped in done.skipped} == {
        "no": "unreadable",
        "locked": "unreadable",
        "locked/b": "unreadable",
        "out": "symlink_escape",
        "pipe": "not_regular",
    }
    await bench.text("bash", command="chmod 700 locked no")


async def test_a_timeout_ends_what_left_its_session(sandbox: Sandbox) -> None:
    bench = Bench(sandbox)
    text = await bench.text("bash", command="setsid sleep 4321 & (setsid sleep 4321 &) ; wait", timeout=0.5)
    assert text.startswith("timed out after 0.5 s")
    assert ", 0 left)" in text
    assert "stdout:\n0" in await bench.text("bash", command="pgrep -fc '[s]leep 4321'; true")


async def test_in_an_image_without_any_program_the_files_still_work(tmp_path: Path, empty_image: str) -> None:
    async with (
        docker_provider(tmp_path / "state") as provider,
        await provider.create(spec(image=empty_image)) as sandbox,
    ):
        bench = Bench(sandbox)
        await bench.text("write_file", path="d/a.txt", content="one\n")
        await bench.text("edit_file", path="d/a.txt", old_string="one", new_string="two")
        assert await bench.text("read_file", path="d/a.txt") == "     1\ttwo"
        assert await bench.text("glob", pattern="*.txt") == "d/a.txt"
        assert (await bench.text("bash", command="echo hello")).startswith("exit code 127 (")
        assert "neither rg nor grep" in await bench.refusal("grep", pattern="two")
        (artifact,) = (await completed(bench, "d/a.txt")).artifacts
        assert artifact.size == 4
