"""A parent task owns its sandbox: opened after every check, closed whatever happens, every ending a result."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest
from tests.unit.agent.stage import MemorySandbox, calls, complete, hang, tool, until
from tests.unit.tasks.house import MemoryProvider

from kinfold import ParentTask, RunLimits, SandboxSpec, run
from kinfold.definitions import SubagentDefinition
from kinfold.errors import ConfigError, ImageMissing, NotFound, PathError, SandboxError, StoreError
from kinfold.events import (
    EVENT,
    Egress,
    EventBase,
    RunEnded,
    RunStarted,
    TaskEnded,
    TaskStarted,
    TextDelta,
    ToolStarted,
)
from kinfold.messages import Usage
from kinfold.models.anthropic import AnthropicModel
from kinfold.models.base import ModelEvent, ModelRequest, TextChunk
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.sandbox import EgressAttempt, allowlist
from kinfold.tasks import task as task_module
from kinfold.tasks.store.door import Store
from kinfold.tasks.store.tasks import StoredTasks
from kinfold.tools import apart
from kinfold.tools.base import Tool, ToolContext, ToolOutcome
from kinfold.tools.people import Answer, Asked, People

pytestmark = pytest.mark.anyio
GENERAL = SubagentDefinition(type="general", description="anything", tool_keys=("write_file",))
HANG = tool("hang", hang)


def writer(request: ModelRequest) -> ScriptedReply:
    """Writes a file and delivers it."""
    step = calls(("write_file", {"path": "a.txt", "content": "A"}))
    return step if request.step == 1 else complete("made it", "a.txt")


def delegating(request: ModelRequest) -> ScriptedReply:
    """A main agent with two subagents, each of which writes."""
    if request.run_kind == "subagent":
        return (
            calls(("write_file", {"path": f"{request.label}.txt", "content": "x"})) if request.step == 1 else complete()
        )
    work = [("task", {"subagent_type": "general", "description": name, "prompt": name}) for name in ("one", "two")]
    return calls(*work) if request.step == 1 else complete("both done", "one.txt")


def hanging(request: ModelRequest) -> ScriptedReply:
    return calls(("hang", {}))


def parent(model: Any, provider: MemoryProvider, **more: Any) -> ParentTask:
    tools: tuple[Tool, ...] = (HANG,)
    return ParentTask("do it", **{"model": ScriptedModel(model), "provider": provider, "tools": tools, **more})


async def started(task: ParentTask) -> None:
    """Until a tool call runs."""
    async for event in task.follow():
        if isinstance(event, ToolStarted):
            return


async def test_run_opens_a_sandbox_runs_the_prompt_and_closes_it() -> None:
    provider = MemoryProvider()
    result = await run("do it", model=ScriptedModel(writer), provider=provider)
    assert (result.status, result.ended_by, result.summary, result.steps) == ("completed", "complete", "made it", 2)
    assert [artifact.path for artifact in result.artifacts] == ["/workspace/a.txt"]
    assert provider.all_closed


async def test_events_are_numbered_and_stamped_and_the_store_holds_the_same(own_state: Path) -> None:
    provider = MemoryProvider()
    async with parent(delegating, provider, definitions=(GENERAL,)) as task:
        await task.start()
        events = [event async for event in task.follow()]
        again = [event async for event in task.follow(after=events[4].seq)]
        assert again == events[5:]
        await task.wait()
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert all(event.at.endswith("Z") and event.task_id == task.id for event in events)
    assert isinstance(events[0], TaskStarted)
    assert [type(event) for event in events].count(TaskEnded) == 1
    assert isinstance(events[-1], TaskEnded)
    runs = [event.run_id for event in events if isinstance(event, RunStarted)]
    assert len(runs) == 3
    assert sorted(event.run_id for event in events if isinstance(event, RunEnded)) == sorted(runs)
    async with Store(own_state) as store:
        kept = await StoredTasks(store).events(task.id)
    assert [EVENT.validate_python(event) for event in kept] == events
    assert (own_state / "kinfold.db").stat().st_mode & 0o777 == 0o600


async def test_usage_is_the_main_agents_and_all_subagents() -> None:
    result = await run("x", model=ScriptedModel(delegating), provider=MemoryProvider(), definitions=(GENERAL,))
    assert len(result.records) == 2
    of_subagents = sum(record.usage.total_tokens for record in result.records)
    assert 0 < of_subagents < result.usage.total_tokens
    assert result.cost == 0.0


async def test_without_definitions_the_model_never_sees_the_task_tool() -> None:
    seen: list[set[str]] = []

    def look(request: ModelRequest) -> ScriptedReply:
        seen.append({spec.name for spec in request.tools})
        return complete("looked")

    await run("x", model=ScriptedModel(look), provider=MemoryProvider(), definitions=())
    await run("x", model=ScriptedModel(look), provider=MemoryProvider(), definitions=(GENERAL,))
    assert ["task" in names for names in seen] == [False, True]
    assert {"bash", "edit_file", "complete"} <= seen[0]


@pytest.mark.parametrize("append", [False, True])
async def test_what_a_delegations_prompt_lacks_is_added_where_that_was_asked_for(append: bool) -> None:
    prompts: list[str] = []

    def answer(request: ModelRequest) -> ScriptedReply:
        if request.run_kind == "subagent":
            prompts.append(request.messages[0].text)
            return complete("1974")
        delegated = ("task", {"subagent_type": "general", "description": "born", "prompt": "When was she born?"})
        return calls(delegated) if request.step == 1 else complete("1974")

    said = "When was the director born? I mean the 2011 original, not the remake."
    await run(
        said, model=ScriptedModel(answer), provider=MemoryProvider(), definitions=(GENERAL,), append_constraints=append
    )
    assert ("2011" in prompts[0]) is append


async def test_a_subagent_may_use_the_callers_own_tools() -> None:
    def answer(request: ModelRequest) -> ScriptedReply:
        if request.run_kind == "subagent":
            return calls(("ping", {})) if request.step == 1 else complete(request.messages[-1].content[0].text)  # type: ignore[union-attr]
        delegated = ("task", {"subagent_type": "general", "description": "ping", "prompt": "ping"})
        return calls(delegated) if request.step == 1 else complete(request.messages[-1].content[0].text)  # type: ignore[union-attr]

    async def ping(context: ToolContext, arguments: Any) -> ToolOutcome:
        return ToolOutcome.of("pong")

    own = GENERAL.model_copy(update={"tool_keys": ("ping",)})
    given = {"definitions": (own,), "tools": (tool("ping", ping),)}
    result = await run("x", model=ScriptedModel(answer), provider=MemoryProvider(), **given)  # type: ignore[arg-type]
    assert result.summary.endswith("summary:\npong")


NO_SUMMARISER = GENERAL.model_copy(update={"compaction_model": "gpt-nine", "source": "agents.toml:7"})
NAMED = AnthropicModel("claude-x", api_key="k")
OLD = AnthropicModel("claude-sonnet-4-5", api_key="k")
ADAPTIVE = GENERAL.model_copy(update={"thinking": "adaptive", "source": "agents.toml:9"})
UNKNOWN = GENERAL.model_copy(update={"tool_keys": ("telepathy",), "source": "agents.toml:3"})


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"prompt": "  "}, "prompt is empty"),
        ({"timezone": "Mars/Olympus"}, "unknown time zone"),
        ({"user_id": ""}, "user id is empty"),
        ({"model": "gpt-nine"}, "unknown model"),
        ({"definitions": (UNKNOWN,)}, "agents.toml:3"),
        ({"definitions": (NO_SUMMARISER,), "model": NAMED}, "agents.toml:7: unknown model 'gpt-nine'"),
        (
            {"definitions": (ADAPTIVE,), "model": OLD},
            "agents.toml:9: 'thinking': 'adaptive' is no thinking of ",
        ),
        ({"definitions": (GENERAL, GENERAL)}, "two subagent definitions"),
        ({"tools": (tool("bash", hang),)}, "'bash' is taken"),
        ({"workspace": "here", "spec": SandboxSpec(workspace="there")}, "two workspaces"),
        ({"out": "a_file"}, "cannot be the output directory"),
        ({"out": "ws/out", "workspace": "ws"}, "inside the workspace"),
    ],
    ids=lambda value: "" if isinstance(value, str) else ",".join(value),
)
async def test_what_cannot_be_right_is_a_config_error_before_any_container(
    asked: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_state: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a_file").touch()
    (tmp_path / "ws").mkdir()
    provider = MemoryProvider()
    with pytest.raises(ConfigError, match=says) as error:
        await run(asked.pop("prompt", "x"), **{"model": ScriptedModel(writer), "provider": provider, **asked})
    assert error.value.hint
    assert provider.made == []
    assert not (own_state / "tasks").exists()


async def test_a_sandbox_that_cannot_be_had_is_raised_and_leaves_nothing(own_state: Path) -> None:
    with pytest.raises(ImageMissing):
        await run("x", model=ScriptedModel(writer), provider=MemoryProvider(ImageMissing("no image")))
    async with Store(own_state) as store:
        assert await StoredTasks(store).list() == []


async def test_a_state_directory_that_cannot_be_written_is_a_config_error(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("KINFOLD_STATE", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match="state directory"):
        await run("x", model=ScriptedModel(writer), provider=MemoryProvider())


async def test_leaving_the_block_ends_what_runs_and_closes() -> None:
    provider = MemoryProvider()
    task = parent(hanging, provider)

    async def work() -> None:
        async with task:
            await task.start()
            await started(task)
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        await work()
    assert provider.all_closed
    assert (task.result.ended_by, task.result.status) == ("cancelled", "aborted")


async def test_a_cancelled_caller_still_closes() -> None:
    provider = MemoryProvider()
    hung = partial(run, "x", model=ScriptedModel(hanging), provider=provider, tools=(HANG,))
    async with anyio.create_task_group() as group:
        group.start_soon(hung)
        await until(lambda: len(provider.made) == 1)
        group.cancel_scope.cancel()
    assert provider.all_closed
    # and by asyncio's own means, which is how Ctrl-C arrives
    other = asyncio.create_task(hung())
    await until(lambda: len(provider.made) == 2)
    other.cancel()
    with pytest.raises(asyncio.CancelledError):
        await other
    assert len(provider.made) == 2
    assert provider.all_closed


@pytest.mark.parametrize("how", ["anyio", "asyncio"])
async def test_what_a_provider_shields_while_it_creates_is_finished_and_closed(how: str) -> None:
    begun = anyio.Event()

    class Careful(MemoryProvider):
        async def create(self, spec: SandboxSpec) -> MemorySandbox:
            with anyio.CancelScope(shield=True):
                begun.set()
                await anyio.sleep(0.1)
                return await super().create(spec)
            raise AssertionError("unreachable")

    provider = Careful()
    running = run("x", model=ScriptedModel(hanging), provider=provider, tools=(HANG,))
    if how == "asyncio":
        task = asyncio.create_task(running)
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    else:
        with anyio.move_on_after(0.05):
            await running
    assert len(provider.made) == 1
    assert provider.all_closed


async def test_cancel_ends_the_task_and_its_result_says_so() -> None:
    provider = MemoryProvider()
    async with parent(hanging, provider) as task:
        await task.start()
        await started(task)
        with pytest.raises(NotFound):
            await task.cancel("run_nowhere")
        with pytest.raises(NotFound, match="no result yet"):
            _ = task.result
        await task.cancel()
        result = await task.wait()
        assert provider.made[0].closed == 0
    assert (result.ended_by, result.status) == ("cancelled", "aborted")
    assert provider.all_closed


async def stubborn() -> None:
    """Swallows every cancellation, until the test lets go."""
    while not LET_GO.is_set():
        try:
            await anyio.sleep(0.01)
        except asyncio.CancelledError:  # the very thing that must not hold up an ending
            continue


LET_GO = threading.Event()


async def stubborn_tool(context: ToolContext, arguments: Any) -> ToolOutcome:
    await stubborn()
    return ToolOutcome.of("at last")


async def stubborn_person(asked: Asked) -> Answer:
    await stubborn()
    return Answer(text="yes")


class StubbornModel:
    """A model of the caller's own."""

    name = "stubborn"
    overrides_definitions = True

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        yield TextChunk(text="and ")
        await stubborn()


@pytest.mark.parametrize("what", ["tool", "person", "model", "model of a subagent"])
async def test_nothing_of_the_callers_own_that_swallows_its_cancellation_holds_up_the_close(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(apart, "PATIENCE", 0.05)
    monkeypatch.setattr(task_module, "STOPPING", 0.3)
    LET_GO.clear()
    provider = MemoryProvider()

    async def reply(request: ModelRequest) -> ScriptedReply:
        if what == "model of a subagent" and request.run_kind == "main":
            return calls(("task", {"subagent_type": "general", "description": "x", "prompt": "x"}))
        if what == "model of a subagent":
            await stubborn()
        return calls(("confirm", {"action": "x"}) if what == "person" else ("stubborn", {}))

    model = StubbornModel() if what == "model" else ScriptedModel(reply)
    task = ParentTask(
        "x", model=model, provider=provider, definitions=(GENERAL,), tools=(tool("stubborn", stubborn_tool),),
        people=People(answer=stubborn_person),
    )  # fmt: skip
    try:
        with anyio.fail_after(8):
            async with task:
                await task.start()
                await anyio.sleep(0.3)
    finally:
        LET_GO.set()
    assert provider.all_closed
    if "model" in what:
        assert (task.result.status, task.result.ended_by) == ("error", "internal_error")
        assert task.result.error is not None and "did not end within" in task.result.error.message
        assert "the main run swallowed its cancellation" in caplog.text
    else:
        assert (task.result.status, task.result.ended_by) == ("aborted", "cancelled")
        assert "swallowed its cancellation and was left behind" in caplog.text
    await anyio.sleep(0.1)  # what was left behind ends now


async def test_sigterm_ends_the_task_by_interrupted_and_is_given_back() -> None:
    provider = MemoryProvider()
    async with parent(hanging, provider) as task:
        await task.start()
        await started(task)
        os.kill(os.getpid(), signal.SIGTERM)
        with anyio.fail_after(5):
            result = await task.wait()
    assert (result.ended_by, result.status) == ("interrupted", "error")
    assert provider.all_closed
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


async def test_sigterm_while_the_sandbox_opens_ends_the_process_as_its_default_would() -> None:
    class Slow(MemoryProvider):
        async def create(self, spec: SandboxSpec) -> Any:
            os.kill(os.getpid(), signal.SIGTERM)
            await anyio.sleep(30)

    with pytest.raises(SystemExit) as ended:
        await run("x", model=ScriptedModel(writer), provider=Slow())
    assert ended.value.code == 143


async def test_somebody_elses_sigterm_handler_stays_in_charge() -> None:
    heard: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda signum, frame: heard.append(signum))
    try:
        async with parent(hanging, MemoryProvider()) as task:
            await task.start()
            await started(task)
            os.kill(os.getpid(), signal.SIGTERM)
            await anyio.sleep(0.05)
            assert heard == [signal.SIGTERM]
            await task.cancel()
            assert (await task.wait()).ended_by == "cancelled"
    finally:
        signal.signal(signal.SIGTERM, before)


async def test_an_artifact_is_read_back_against_its_digest() -> None:
    provider = MemoryProvider()
    async with parent(writer, provider) as task:
        await task.start()
        result = await task.wait()
        (artifact,) = result.artifacts
        assert await task.read(artifact) == b"A"
        assert await task.read("a.txt") == b"A"
        provider.made[0].files["/workspace/a.txt"] = b"B"
        with pytest.raises(PathError, match="changed since"):
            await task.read(artifact)


async def test_limits_hold_for_the_main_agent() -> None:
    result = await run(
        "x", model=ScriptedModel(writer), provider=MemoryProvider(), limits=RunLimits(max_steps=1), definitions=()
    )
    assert result.ended_by == "step_limit"


async def test_secrets_are_hidden_in_events(own_state: Path) -> None:
    def blab(request: ModelRequest) -> ScriptedReply:
        return calls(("write_file", {"path": "a", "content": 'hunter"2 is it'})) if request.step == 1 else complete()

    provider = MemoryProvider()
    async with parent(blab, provider, spec=SandboxSpec(secrets={"KEY": 'hunter"2'})) as task:
        await task.start()
        events = [event async for event in task.follow()]
    (started_,) = [e for e in events if isinstance(e, ToolStarted) and e.tool == "write_file"]
    assert started_.input["content"] == "[secret] is it"
    assert not [path for path in own_state.glob("kinfold.db*") if b"hunter" in path.read_bytes()]
    assert provider.made[0].files["/workspace/a"] == b'hunter"2 is it'


async def test_an_attempt_to_reach_the_world_is_an_event_and_an_injected_credential_is_hidden() -> None:
    provider = MemoryProvider()

    def reach(request: ModelRequest) -> ScriptedReply:
        provider.made[0].told(
            EgressAttempt(method="connect", host="a.test", port=443, allowed=False, reason="no", sent=0, received=0)
        )
        return complete("it is sk-very-secret")

    network = allowlist(["api.test"], inject={"api.test": {"Authorization": "Bearer sk-very-secret"}})
    async with parent(reach, provider, spec=SandboxSpec(network=network)) as task:
        await task.start()
        events = [event async for event in task.follow()]
    (told,) = [event for event in events if isinstance(event, Egress)]
    assert (told.host, told.port, told.allowed, told.reason) == ("a.test", 443, False, "no")
    assert "sk-very" not in "".join(event.model_dump_json() for event in events)


@pytest.mark.parametrize("secret", ["text_delta", "input", "1234", "complete", "2026"])
async def test_a_secret_that_looks_like_the_format_itself_breaks_no_event(secret: str, own_state: Path) -> None:
    provider = MemoryProvider()

    def blab(request: ModelRequest) -> ScriptedReply:
        usage = Usage(input_tokens=1234)
        return ScriptedReply(text=f"it is {secret}", usage=usage) if request.step == 1 else complete()

    async with parent(blab, provider, spec=SandboxSpec(secrets={"KEY": secret})) as task:
        await task.start()
        result = await task.wait()
        events = [event async for event in task.follow()]
    assert (result.ended_by, result.usage.input_tokens) == ("text", 1234)
    said = "".join(event.text for event in events if isinstance(event, TextDelta))
    assert secret not in said
    assert "[secret]" in said
    assert isinstance(events[-1], TaskEnded)


async def test_a_sandbox_that_does_not_close_is_said_in_the_result() -> None:
    class Stuck(MemorySandbox):
        async def aclose(self) -> None:
            raise SandboxError("the engine went away")

    async with parent(writer, MemoryProvider(kind=Stuck)) as task:
        await task.start()
        await task.wait()
    assert any("the engine went away" in warning and "kinfold reap" in warning for warning in task.result.warnings)


async def test_a_store_that_fails_meanwhile_loses_neither_the_task_nor_what_can_be_kept_later(
    monkeypatch: pytest.MonkeyPatch, own_state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    provider = MemoryProvider()
    async with parent(writer, provider) as task:
        await task.start()
        with monkeypatch.context() as patched:
            patched.setattr(StoredTasks, "append", full)
            patched.setattr(StoredTasks, "end", full)
            result = await task.wait()
        events = [event async for event in task.follow()]
    assert result.ended_by == "complete"
    assert any("not complete: no space is left" in warning for warning in task.result.warnings)
    assert caplog.text.count("did last is not kept: no space is left") == 1
    async with Store(own_state) as store:
        kept = await StoredTasks(store).events(task.id)
        row = await StoredTasks(store).get(task.id)
    assert [event["seq"] for event in kept] == [event.seq for event in events]
    assert (row.standing, row.ended_by) == ("completed", "complete")


async def full(*_: object, **__: object) -> None:
    raise StoreError("no space is left", hint="free some", code="store_full")


async def test_a_bug_of_ours_behind_the_run_is_a_result_too(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: object) -> None:
        raise ZeroDivisionError("surprise")

    monkeypatch.setattr("kinfold.tasks.task.copied_out", broken)
    provider = MemoryProvider()
    async with parent(writer, provider) as task:
        await task.start()
        result = await task.wait()
        events = [event async for event in task.follow()]
    assert (result.status, result.ended_by) == ("error", "internal_error")
    assert "ZeroDivisionError" in caplog.text
    assert [type(event) for event in events].count(TaskEnded) == 1
    assert provider.all_closed


async def test_sigterm_at_the_last_moment_of_the_start_is_not_lost() -> None:
    class Late(ParentTask):
        async def _announce(self, *parts: Any) -> None:
            await super()._announce(*parts)
            self.interrupt()

    provider = MemoryProvider()
    async with Late("x", model=ScriptedModel(hanging), provider=provider, tools=(HANG,)) as task:
        await task.start()
        with anyio.fail_after(5):
            assert (await task.wait()).ended_by == "interrupted"
    assert provider.all_closed


def test_every_event_class_is_in_the_union() -> None:
    from typing import get_args

    from kinfold.events import Event

    union = get_args(get_args(Event)[0])
    assert set(EventBase.__subclasses__()) == set(union)
