"""Endings in a real container: what is salvaged, kept apart, shared and killed; and the real SDK over loopback HTTP."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import struct
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import docker
import pytest
from tests.docker.provider_support import docker_provider
from tests.unit.agent.stage import calls, complete

from kinfold import ParentTask, run
from kinfold.definitions import SubagentDefinition, text_matches
from kinfold.events import RunEnded, ToolEnded, ToolOutput
from kinfold.messages import STATUS_OF
from kinfold.models.anthropic import AnthropicModel
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.sandbox.docker.provider import DockerProvider
from kinfold.testing.messages_api import Answer, Interruption, MessagesApi

pytestmark = pytest.mark.anyio
GENERAL = (SubagentDefinition(type="general", description="anything"),)


@pytest.fixture
async def provider(own_state: Path) -> AsyncIterator[DockerProvider]:
    async with docker_provider(own_state) as made:
        yield made


def bash(command: str) -> tuple[str, dict[str, Any]]:
    return "bash", {"command": command}


def delegate(*labels: str, type_: str | None = None) -> ScriptedReply:
    return calls(
        *(("task", {"subagent_type": type_ or name, "description": name, "prompt": f"do {name}"}) for name in labels)
    )


LIMITS: dict[str, dict[str, Any]] = {
    "complete": {},
    "text": {},
    "stop_condition": {"stop_conditions": (text_matches("^enough"),)},
    "step_limit": {"max_steps": 1},
    "timeout": {"timeout": 4.0},
    "empty": {},
}


def ends(request: ModelRequest) -> ScriptedReply:
    """What each subagent does after its first step: a file of its own, and an edit that fails."""
    label = str(request.label)
    if request.run_kind == "main":
        return delegate(*LIMITS) if request.step == 1 else complete("over")
    if request.tool_choice:
        return complete("closing", f"{label}.txt")
    if request.step == 1:
        return calls(
            bash(f"printf {label} > {label}.txt"),
            ("edit_file", {"path": f"no-{label}", "old_string": "a", "new_string": "b"}),
            text=f"on {label}",
        )
    return {
        "complete": complete("made", "complete.txt"),
        "text": ScriptedReply(text="that is all"),
        "stop_condition": ScriptedReply(text="enough"),
        "timeout": calls(bash("sleep 2718")),
        "empty": ScriptedReply(),
    }[label]


async def test_each_ending_of_subagents_at_once_leaves_its_own_work_by_digest(provider: DockerProvider) -> None:
    definitions = tuple(SubagentDefinition(type=name, description=name, **more) for name, more in LIMITS.items())
    async with ParentTask("x", model=ScriptedModel(ends), definitions=definitions, provider=provider) as task:
        await task.start()
        result = await task.wait()
        events = [event async for event in task.follow()]
        kept = {name: await task.read(f"{name}.txt") for name in LIMITS}
    assert result.ended_by == "complete"
    endings = {event.label: event for event in events if isinstance(event, RunEnded) and event.label}
    assert {label: ended.ended_by for label, ended in endings.items()} == {name: name for name in LIMITS}
    for name, ended in endings.items():
        sha256 = hashlib.sha256(kept[name]).hexdigest()
        assert ended.status == STATUS_OF[ended.ended_by]
        if name in ("complete", "step_limit", "timeout"):
            assert [(artifact.path, artifact.sha256) for artifact in ended.artifacts] == [
                (f"/workspace/{name}.txt", sha256)
            ]
        if ended.salvage is None:
            assert name == "complete"
            continue
        assert (ended.salvage.last_tool_error or "").startswith("edit_file: ")
        # several ran programs at once, so whose a file is cannot be told; but none is lost
        seen = [*ended.salvage.files_touched, *(ended.unattributed.files if ended.unattributed else ())]
        assert (f"/workspace/{name}.txt", sha256) in [(file.path, file.sha256) for file in seen]


async def test_runs_have_their_own_tmpdir_and_cannot_clobber_each_other(provider: DockerProvider) -> None:
    """`first` writes; `second` is refused, reads, and may then; both results say that both wrote."""
    wait = "for n in $(seq 600); do [ -e {0} ] && exit 0; sleep 0.02; done; exit 1"
    script = {
        "first": [
            calls(
                ("write_file", {"path": "a.txt", "content": "1"}), bash("echo $TMPDIR > $TMPDIR/own; cat $TMPDIR/own")
            ),
            calls(bash(f"ls $TMPDIR; touch first.up; {wait.format('second.done')}")),
            calls(("write_file", {"path": "a.txt", "content": "stale"})),
            complete("1"),
        ],
        "second": [
            calls(bash(f"ls -A $TMPDIR; {wait.format('first.up')}")),
            calls(("write_file", {"path": "a.txt", "content": "2"})),
            calls(("read_file", {"path": "a.txt"})),
            calls(("write_file", {"path": "a.txt", "content": "2"})),
            calls(bash("export MINE=1; cd /; touch /workspace/second.done")),
            calls(bash("echo mine=$MINE $(pwd)")),
            ScriptedReply(calls=complete("2").calls, delay=1.0),
        ],
    }

    def reply(request: ModelRequest) -> ScriptedReply:
        if request.run_kind == "main":
            return delegate("first", "second", type_="general") if request.step == 1 else complete("over", "a.txt")
        return script[str(request.label)][request.step - 1]

    async with ParentTask("x", model=ScriptedModel(reply), definitions=GENERAL, provider=provider) as task:
        await task.start()
        await task.wait()
        events = [event async for event in task.follow()]
        assert await task.read("a.txt") == b"2"
    ended = [event for event in events if isinstance(event, ToolEnded)]
    refused = {str(event.label): event.preview for event in ended if event.tool == "write_file" and event.is_error}
    assert "'first' (run_" in refused["second"] and "you have not read it" in refused["second"]
    assert "'second' (run_" in refused["first"] and "was changed or removed since" in refused["first"]
    runs = {event.label: event for event in events if isinstance(event, RunEnded) and event.label}
    assert any("a.txt was written by this run and by 'second'" in warning for warning in runs["first"].warnings)
    assert any("a.txt was written by this run and by 'first'" in warning for warning in runs["second"].warnings)
    shell = [event.preview for event in ended if event.tool == "bash" and event.label == "second"]
    assert "own" not in shell[0]
    assert "mine= /workspace" in shell[-1]


def png(width: int, height: int) -> bytes:
    """A real picture: one grey level."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress((b"\0" + b"\x7f" * width) * height)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def use(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}


async def test_a_picture_of_the_container_is_an_image_block_of_the_next_request(provider: DockerProvider) -> None:
    picture = png(7, 5)
    write = f"python3 -c \"open('p.png','wb').write(bytes.fromhex('{picture.hex()}'))\""
    script = [
        Answer(blocks=(use(1, "bash", command=write),)),
        Answer(blocks=(use(2, "read_file", path="p.png"),)),
        Answer(blocks=(use(3, "complete", summary="seen", paths=["p.png"]),)),
    ]
    async with MessagesApi(script) as api:
        model = AnthropicModel("claude-sonnet-5", api_key=api.api_key, base_url=api.base_url)
        result = await run("look", model=model, definitions=(), provider=provider)
        (answer,) = [block for block in api.requests[2]["messages"][-1]["content"] if block["type"] == "tool_result"]
    assert result.ended_by == "complete"
    text, image = answer["content"]
    assert "image/png, 7 × 5 pixels" in text["text"]
    source = image["source"]
    assert (image["type"], source["type"], source["media_type"]) == ("image", "base64", "image/png")
    assert base64.b64decode(source["data"]) == picture


def talk_and_work(body: Any) -> Answer:
    """Main delegates twice: `talk` streams without end, `work` runs a stubborn tree."""
    first = str(body["messages"][0]["content"])
    if "talk" in first:
        stall = Interruption(where="inside_block", how="stall")
        return Answer(blocks=({"type": "text", "text": "and so on"},), interruption=stall)
    if "work" in first:
        return Answer(blocks=(use(2, "bash", command=STUBBORN),))
    tasks = [
        use(10 + n, "task", subagent_type="general", description=name, prompt=name)
        for n, name in enumerate(("talk", "work"))
    ]
    return Answer(blocks=tuple(tasks))


async def until_both_are_busy(task: ParentTask, api: MessagesApi) -> None:
    async for event in task.follow():
        if isinstance(event, ToolOutput) and "up" in event.text:
            break
    await api.until_open(1)
    assert len(await seen_from_outside(task)) >= 3


@pytest.mark.parametrize("how", ["cancel", "ctrl-c"])
async def test_a_cancelled_task_hangs_up_on_the_model_and_kills_its_execs(how: str, provider: DockerProvider) -> None:
    busy, left = anyio.Event(), list[str]()
    async with MessagesApi(talk_and_work) as api:
        model = AnthropicModel("claude-sonnet-5", api_key=api.api_key, base_url=api.base_url)
        task = ParentTask("go", model=model, definitions=GENERAL, provider=provider)

        async def work() -> None:
            async with task:
                await task.start()
                await until_both_are_busy(task, api)
                busy.set()
                if how == "ctrl-c":
                    await task.wait()
                await task.cancel()
                await task.wait()
                left.extend(await seen_from_outside(task))

        with anyio.fail_after(60):
            running = asyncio.create_task(work())
            await busy.wait()
            if how == "ctrl-c":  # as it arrives: the event loop cancels the caller's own task
                running.cancel()
            (raised,) = await asyncio.gather(running, return_exceptions=True)
            await api.until_open(0)
    assert isinstance(raised, asyncio.CancelledError) == (how == "ctrl-c")
    assert left == []
    assert (task.result.ended_by, task.result.status) == ("cancelled", "aborted")
    assert [record.ended_by for record in task.result.records] == ["cancelled"] * 2
    assert not [warning for warning in task.result.warnings if "could not be killed" in warning]


STUBBORN = "setsid sh -c 'trap \"\" TERM; while :; do sleep 2633; done' & setsid sleep 2633 & echo up; sleep 2633"


async def seen_from_outside(task: ParentTask) -> list[str]:
    """The command lines of the stubborn tree in the task's container, as the engine sees them."""

    def look() -> list[str]:
        client = docker.from_env(timeout=30)
        try:
            (container,) = client.containers.list(filters={"label": f"kinfold.task={task.id}"})
            rows = container.top(ps_args="-eo pid,args")["Processes"]
        finally:
            client.close()
        return [" ".join(row) for row in rows if "2633" in " ".join(row)]

    return await anyio.to_thread.run_sync(look)
