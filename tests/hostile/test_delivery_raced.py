"""What is read of a delivery, or copied out of it, while a program swaps the file is what was hashed, or nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from tests.docker.provider_support import docker_provider, spec
from tests.hostile.hostile_support import racer, racing
from tests.unit.agent.stage import complete

from kinfold import ParentTask, PathError
from kinfold.models.scripted import ScriptedModel
from kinfold.sandbox.base import ExecRequest
from kinfold.tasks.out import OutDirectory

pytestmark = [pytest.mark.anyio, pytest.mark.docker]
PASSES = 400


@racing
@pytest.mark.threat("P17")
async def test_a_delivered_file_that_is_swapped_is_read_and_copied_as_it_was_hashed_or_refused(
    own_state: Path, tmp_path: Path, share: float
) -> None:
    async with docker_provider(own_state) as provider:
        model = ScriptedModel(lambda request: complete("it", "good.txt"))
        async with ParentTask("x", model=model, spec=spec(), provider=provider, definitions=()) as task:
            await task.start()
            sandbox = task._opened(task._sandbox)
            await sandbox.write("good.txt", b"good" * 20_000)
            await sandbox.write("evil.txt", b"evil" * 20_000)
            await sandbox.write("swap", racer("swap"), mode=0o755)
            (artifact,) = (await task.wait()).artifacts
            assert artifact.sha256 is not None
            await sandbox.start(ExecRequest(command=["./swap", "good.txt", "evil.txt"], owner="racer"))
            outcomes = set()
            for number in range(int(PASSES * share)):
                try:
                    data = await task.read(artifact)
                except PathError as error:
                    assert error.reason == "conflict"
                    outcomes.add("refused")
                else:
                    assert hashlib.sha256(data).hexdigest() == artifact.sha256
                    outcomes.add("read")
                out = OutDirectory(tmp_path / f"out-{number}")
                copied = await out.take([artifact], sandbox)
                out.close()
                found = [path.read_bytes() for path in (tmp_path / f"out-{number}").rglob("*") if path.is_file()]
                assert [hashlib.sha256(data).hexdigest() for data in found] == [artifact.sha256] * len(copied.files)
                assert bool(copied.files) != bool(copied.problems)
                outcomes.add("copied" if copied.files else "not copied")
            assert outcomes == {"read", "refused", "copied", "not copied"}, "the race was not run"
            await sandbox.end("racer", grace=0)
