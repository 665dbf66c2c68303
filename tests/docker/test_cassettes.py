"""Recorded with the real SDK over HTTP, replayed with the service gone; real containers both times."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.docker.provider_support import docker_provider, spec

from kinfold import TaskResult, run
from kinfold.definitions import SubagentDefinition
from kinfold.models.anthropic import AnthropicModel
from kinfold.sandbox.docker.provider import DockerProvider
from kinfold.testing.messages_api import Answer, MessagesApi, Outcome, rate_limited

pytestmark = pytest.mark.anyio
SECRET = "open-sesame-4711"
LEFT = SubagentDefinition(type="general", description="anything", model="claude-haiku-5-5")
SLOW = "import time; time.sleep({delay}); import random; print(time.time(), random.__name__)"


@pytest.fixture
async def provider(own_state: Path) -> AsyncIterator[DockerProvider]:
    async with docker_provider(own_state) as made:
        yield made


def use(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}


class Service:
    """Answers by who asks and how far that conversation is; refuses its first request, as a busy service does."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, body: Mapping[str, Any]) -> Outcome:
        self.asked += 1
        if self.asked == 1:
            return rate_limited("0")
        first = body["messages"][0]["content"][0]["text"]
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        return self._main(turn) if first.startswith("both") else self._sub(first.split()[1], turn)

    @staticmethod
    def _main(turn: int) -> Answer:
        if turn == 0:
            names = ("left", "right")
            return Answer(
                blocks=tuple(
                    use(at, "task", subagent_type="general", description=f"write {name}", prompt=f"write {name} please")
                    for at, name in enumerate(names)
                )
            )
        return Answer(blocks=(use(2, "complete", summary="both", paths=["left.txt", "right.txt", "absent.txt"]),))

    @staticmethod
    def _sub(name: str, turn: int) -> Answer:
        delay = 0.3 if name == "left" else 0.0
        program = (
            f"python3 -c '{SLOW.format(delay=delay)}'; echo $TOKEN; date; mktemp -u; ls -l; echo {name} > {name}.txt"
        )
        calls = (
            use(3, "bash", command=program),
            use(4, "bash", command=f"cat {name}.txt; cat nothing"),
            use(5, "complete", summary=f"{name} is written", paths=[f"{name}.txt"]),
        )
        return Answer(blocks=({"type": "text", "text": f"Now I do {name}."}, calls[turn]))


def delivered(result: TaskResult) -> list[tuple[str, int, str | None]]:
    return [(artifact.path, artifact.size, artifact.sha256) for artifact in result.artifacts]


async def test_a_recorded_task_is_replayed_without_its_service_to_the_same_artifacts(
    tmp_path: Path, provider: DockerProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "both.cassette"
    common: Any = {"definitions": [LEFT], "provider": provider}
    async with MessagesApi(Service()) as api:
        monkeypatch.setenv("ANTHROPIC_API_KEY", api.api_key)
        monkeypatch.setenv("ANTHROPIC_BASE_URL", api.base_url)
        model = AnthropicModel("claude-sonnet-5")
        live = await run("both", model=model, spec=spec(secrets={"TOKEN": SECRET}), record=path, **common)
        asked = len(api.requests)
    assert (live.ended_by, live.status) == ("complete", "completed")
    assert [warning for warning in live.warnings if "is not enforced here" not in warning] == []
    assert asked == 9
    text = path.read_text()
    assert SECRET not in text
    assert api.api_key not in text
    assert text.count('"retry":') == 1
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.delenv("ANTHROPIC_BASE_URL")

    # In another sandbox, with another secret; with the service gone.
    replayed = await run("both", model=f"cassette:{path}", spec=spec(secrets={"TOKEN": "another-secret"}), **common)
    assert replayed.error is None
    assert (replayed.ended_by, replayed.summary, replayed.warnings) == (live.ended_by, live.summary, live.warnings)
    assert delivered(replayed) == delivered(live)
    assert len(delivered(live)) == 2
    assert (replayed.skipped, replayed.usage, replayed.cost) == (live.skipped, live.usage, 0.0)
    assert [record.steps for record in replayed.records] == [3, 3]


async def test_the_command_line_records_and_replays(tmp_path: Path, own_state: Path) -> None:
    path, script = tmp_path / "it.cassette", tmp_path / "script.yaml"
    async with docker_provider(own_state):  # what was measured of the engine serves here, too
        pass
    script.write_text("""main:
  - calls: [{tool: bash, input: {command: date > when; echo it > it.txt; cat when}}]
  - calls: [{tool: complete, input: {summary: it is written, paths: [it.txt]}}]
""")
    for model in ((f"--model=scripted:{script}", f"--record={path}"), (f"--replay={path}",)):
        out = tmp_path / model[-1][2:8]
        command = [
            str(Path(sys.executable).with_name("kinfold")),
            "run",
            "write it",
            "--agents=none",
            f"--out={out}",
            *model,
        ]
        done = await anyio.run_process(command, check=False)
        assert done.returncode == 0, done.stderr.decode()
        assert (out / "it.txt").read_text() == "it\n"
        script.unlink(missing_ok=True)
