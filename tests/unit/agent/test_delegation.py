"""Subagents: what they inherit and what not, how they run at once, wait, fail, end, and are recorded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest
from tests.unit.agent.stage import ROOT, MemorySandbox, Stage, calls, complete, hang, tool, until

from kinfold.agent.context import INHERITED, RuntimeContext
from kinfold.agent.delegate import Delegation, DelegationConfig
from kinfold.agent.instructions import MAIN_INSTRUCTIONS, TASK_INSTRUCTIONS
from kinfold.agent.limits import Purse
from kinfold.agent.loop import run_agent_loop
from kinfold.agent.run import LoopConfig, LoopInput, RunResult
from kinfold.definitions import SubagentDefinition, text_matches
from kinfold.errors import SandboxLost, ToolError
from kinfold.events import Heartbeat, RunEnded, RunStarted, TextDelta, ToolEnded, ToolStarted, Waiting, timestamp
from kinfold.messages import Message, Salvage, TaskOutput, TextBlock
from kinfold.models.base import ModelRequest
from kinfold.models.prefixes import prefix_of
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.tools.base import SpawnRequest, Todo, Tool, ToolContext, ToolOutcome

pytestmark = pytest.mark.anyio
KEYS = ("write_file", "read_file", "todo_write")
GENERAL = SubagentDefinition(type="general", description="anything", tool_keys=(*KEYS,), instructions="Be terse.")
Answer = Callable[[ModelRequest], ScriptedReply | str]


def work(name: str, type_: str = "general") -> tuple[str, dict[str, Any]]:
    """A `task` call labelled `name`."""
    return "task", {"subagent_type": type_, "description": name, "prompt": f"the whole of {name}"}


class House:
    """A main run that delegates: one function answers all models, told apart by the label."""

    def __init__(self, main: list[ScriptedReply], subagent: Answer, **config: Any) -> None:
        self.stage = Stage()
        self.context = self.stage.context()
        self.requests: list[ModelRequest] = []
        self._main = main
        self._subagent = subagent
        tools: tuple[Tool, ...] = config.pop("tools", ())
        definitions = config.pop("definitions", (GENERAL,))
        self.loop: dict[str, Any] = config.pop("loop", {})
        model = ScriptedModel(self._answer)
        self.purse = Purse(limit=self.loop.get("budget"))
        self.delegation = Delegation(
            self.context,
            DelegationConfig(definitions=definitions, model=model, resolve=self._no_model, extra_tools=tools, **config),
            purse=self.purse,
        )
        self.config = LoopConfig(
            model=model, tool_keys=("task", *KEYS), definitions=definitions, extra_tools=tools, purse=self.purse,
            **{"max_steps": 10, **self.loop},
        )  # fmt: skip

    @staticmethod
    def _no_model(name: str) -> Any:
        raise AssertionError(f"a scripted main model serves all; {name} was asked for")

    def _answer(self, request: ModelRequest) -> ScriptedReply:
        self.requests.append(request)
        answer = self._main[request.step - 1] if request.run_kind == "main" else self._subagent(request)
        return ScriptedReply(text=answer) if isinstance(answer, str) else answer

    async def run(self, *earlier: Message) -> RunResult:
        asked = LoopInput(
            kind="main", messages=(*earlier, Message.user("go")), spawn=self.delegation.spawn,
            extra_instructions="House rules.",
        )  # fmt: skip
        return await run_agent_loop(self.context, self.config, asked)

    def first_of(self, label: str | None) -> ModelRequest:
        return next(request for request in self.requests if request.label == label)

    def read_by_parent(self) -> list[str]:
        """The results that the main agent's last request ends with."""
        last = [request for request in self.requests if request.run_kind == "main"][-1]
        return [block.text for block in last.messages[-1].content if block.type == "tool_result"]


async def wait_for(sandbox: MemorySandbox, path: str) -> None:
    await until(lambda: f"{ROOT}/{path}" in sandbox.files)


# --- inheritance ----------------------------------------------------------------------------------------------------


async def test_a_subagents_context_has_the_five_inherited_fields_and_nothing_else_of_its_parents() -> None:
    parent = Stage().context()
    parent.todos.append(Todo(content="the parent's"))
    parent.reminders.append("remember")
    child = RuntimeContext.for_subagent(parent)
    assert INHERITED == ("task_id", "user_id", "sandbox", "workspace", "timezone")
    for name in INHERITED:
        assert getattr(child, name) is getattr(parent, name)
    assert (child.todos, child.reminders, child.subagent_records) == ([], [], [])
    for name in set(RuntimeContext.model_fields) - set(INHERITED):
        assert getattr(child, name) is not getattr(parent, name)


async def test_a_context_is_validated_and_takes_no_unknown_field() -> None:
    parent = Stage().context()
    with pytest.raises(ValueError, match="time zone"):
        RuntimeContext.model_validate({**{n: getattr(parent, n) for n in INHERITED}, "timezone": "Mars/Olympus"})
    with pytest.raises(ValueError, match="history"):
        RuntimeContext.model_validate({**{n: getattr(parent, n) for n in INHERITED}, "history": []})


async def test_a_subagent_sees_its_prompt_and_nothing_of_the_conversation() -> None:
    house = House([calls(work("dig")), complete()], lambda request: complete("dug"))
    secret = (Message.user("the 2011 film, not the remake"), Message(role="assistant", content=(TextBlock(text="ok"),)))
    await house.run(*secret)
    request = house.first_of("dig")
    (kickoff,) = request.messages
    assert kickoff.content[0] == TextBlock(text="the whole of dig")
    assert "2011" not in kickoff.text
    assert [block.text for block in kickoff.content[1:] if block.type == "text" and "date" in block.text]
    assert request.system == (TASK_INSTRUCTIONS, "Be terse.")
    assert house.first_of(None).system == (MAIN_INSTRUCTIONS, "House rules.")
    assert {spec.name for spec in request.tools} == {"complete", "read_file", "write_file", "todo_write"}


async def test_a_subagent_works_in_its_parents_workspace() -> None:
    def dig(request: ModelRequest) -> ScriptedReply:
        step = calls(("write_file", {"path": "found.txt", "content": "gold"}))
        return step if request.step == 1 else complete("dug", "found.txt")

    house = House([calls(work("dig")), calls(("read_file", {"path": "found.txt"})), complete()], dig)
    await house.run()
    assert "gold" in house.read_by_parent()[0]


async def test_a_subagent_has_a_todo_list_of_its_own() -> None:
    own = calls(("todo_write", {"todos": [{"content": "dig", "status": "pending"}]}))
    house = House([calls(work("dig")), complete()], lambda request: own if request.step == 1 else complete("dug"))
    house.context.todos.append(Todo(content="the parent's"))
    await house.run()
    assert [todo.content for todo in house.context.todos] == ["the parent's"]


async def test_a_subagent_cannot_start_subagents() -> None:
    house = House([calls(work("dig")), complete()], lambda r: calls(work("deeper")) if r.step == 1 else complete())
    await house.run()
    second = [request for request in house.requests if request.label == "dig"][1]
    (answer,) = second.messages[-1].content
    assert getattr(answer, "is_error", False)
    with pytest.raises(ValueError, match="depth is 1"):
        await run_agent_loop(
            RuntimeContext.for_subagent(house.context), house.config,
            LoopInput(kind="subagent", messages=(Message.user("x"),)),
        )  # fmt: skip


# --- what comes back ------------------------------------------------------------------------------------------------


async def test_the_parent_reads_summary_and_paths_and_never_the_transcript() -> None:
    def dig(request: ModelRequest) -> ScriptedReply:
        step = calls(("write_file", {"path": "a.txt", "content": "CONTENT"}), text="chatter on the way")
        return step if request.step == 1 else complete("the conclusion", "a.txt", "nowhere.txt")

    house = House([calls(work("dig")), complete()], dig)
    await house.run()
    (read,) = house.read_by_parent()
    assert "the conclusion" in read
    assert f"{ROOT}/a.txt" in read
    assert "nowhere.txt: missing" in read
    assert "chatter" not in read
    assert "CONTENT" not in read


async def test_every_event_of_a_subagent_names_its_run_its_parent_its_label_and_the_call() -> None:
    house = House([calls(work("dig")), complete()], lambda request: complete("dug") if request.step else "x")
    await house.run()
    (started,) = [event for event in house.stage.of(RunStarted) if event.kind == "subagent"]
    theirs = [event for event in house.stage.events if event.run_id == started.run_id]
    (call,) = [event for event in house.stage.of(ToolStarted) if event.tool == "task"]
    assert {(e.task_id, e.parent_run_id, e.label, e.tool_call_id) for e in theirs} == {
        ("task_1", house.context.run_id, "dig", call.call_id)
    }
    assert isinstance(theirs[-1], RunEnded)
    assert started.definition == "general"


async def test_a_subagents_words_are_relayed_as_they_come() -> None:
    house = House([calls(work("dig")), complete()], lambda request: "one two three four")
    await house.run()
    pieces = [event.text for event in house.stage.of(TextDelta) if event.label == "dig"]
    assert len(pieces) > 1
    assert "".join(pieces) == "one two three four"


async def test_each_subagent_leaves_a_record_for_billing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinfold.agent.metered.cost_usd", lambda model, usage: 0.25)
    house = House([calls(work("dig"), work("saw")), complete()], lambda request: complete("ok"))
    result = await house.run()
    records = house.context.subagent_records
    assert sorted(record.description for record in records) == ["dig", "saw"]
    for record in records:
        assert (record.definition.type, record.steps, record.status, record.cost_usd) == (
            "general",
            1,
            "completed",
            0.25,
        )
        assert record.usage.total_tokens > 0
        assert record.started_at <= record.completed_at
        assert record.dump()["def"] == {"type": "general", "version": 1}
    assert result.cost == pytest.approx(1.0)


async def test_a_budget_holds_for_the_whole_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinfold.agent.metered.cost_usd", lambda model, usage: 0.4)
    again = calls(("todo_write", {"todos": []}))
    house = House([calls(work("dig")), complete()], lambda request: again, loop={"budget": 1.0})
    result = await house.run()
    assert [record.ended_by for record in house.context.subagent_records] == ["budget"]
    assert result.ended_by == "budget"


# --- at the same time -----------------------------------------------------------------------------------------------


async def test_two_subagents_that_wait_for_each_others_file_both_finish() -> None:
    async def await_file(context: ToolContext, arguments: Any) -> ToolOutcome:
        assert isinstance(context.sandbox, MemorySandbox)
        await wait_for(context.sandbox, arguments.name)
        return ToolOutcome.of("it is there")

    def work_on(request: ModelRequest) -> ScriptedReply:
        mine, theirs = ("a", "b") if request.label == "first" else ("b", "a")
        script = [
            calls(("write_file", {"path": mine, "content": mine})),
            calls(("await_file", {"name": theirs})),
            complete(f"saw {theirs}", mine),
        ]
        return script[request.step - 1]

    definition = GENERAL.model_copy(update={"tool_keys": ("write_file", "await_file")})
    house = House(
        [calls(work("first"), work("second")), complete()],
        work_on,
        tools=(tool("await_file", await_file),),
        definitions=(definition,),
    )
    await house.run()
    first, second = house.read_by_parent()
    assert "saw b" in first
    assert "saw a" in second


async def test_the_seventh_subagent_waits_for_a_slot_and_its_clock_starts_when_it_starts() -> None:
    release = anyio.Event()

    async def gate(context: ToolContext, arguments: Any) -> ToolOutcome:
        await release.wait()
        return ToolOutcome.of("through")

    patient = GENERAL.model_copy(update={"tool_keys": ("gate",)})
    hasty = GENERAL.model_copy(update={"type": "hasty", "timeout": 0.5})
    names = [f"piece {number}" for number in range(7)]
    house = House(
        [calls(*(work(name) for name in names[:6]), work(names[6], "hasty")), complete()],
        lambda request: calls(("gate", {})) if request.step == 1 and request.label != "piece 6" else complete("ok"),
        tools=(tool("gate", gate),),
        definitions=(patient, hasty),
    )
    async with anyio.create_task_group() as group:
        group.start_soon(house.run)
        await until(lambda: house.stage.of(Waiting))
        (waiting,) = house.stage.of(Waiting)
        assert (waiting.label, waiting.running, waiting.limit) == ("piece 6", 6, 6)
        started = [event.label for event in house.stage.of(RunStarted) if event.kind == "subagent"]
        assert started == names[:6]
        await anyio.sleep(0.6)  # longer than the seventh may take
        released = timestamp()
        release.set()
    assert all("ended by complete" in text for text in house.read_by_parent())
    (seventh,) = [record for record in house.context.subagent_records if record.description == "piece 6"]
    assert seventh.started_at >= released


async def test_the_total_refuses_with_the_numbers() -> None:
    house = House([calls(work("a"), work("b")), calls(work("c")), complete()], lambda request: complete("ok"), total=2)
    await house.run()
    (read,) = house.read_by_parent()
    assert "all 2 subagents" in read
    assert len(house.context.subagent_records) == 2


async def test_an_unknown_type_is_refused_with_what_is_allowed() -> None:
    house = House([calls(work("x", "genral")), complete()], lambda request: complete("ok"))
    await house.run()
    assert "general" in house.read_by_parent()[0]
    with pytest.raises(ToolError, match="unknown subagent type 'genral'; did you mean 'general'") as refused:
        await house.delegation.spawn(
            SpawnRequest(subagent_type="genral", description="x", prompt="x", tool_call_id="t")
        )
    assert refused.value.hint == "allowed types: general"


async def test_a_failing_sibling_cancels_nobody() -> None:
    async def broken(context: ToolContext, arguments: Any) -> ToolOutcome:
        raise ZeroDivisionError("oops")

    async def slow(context: ToolContext, arguments: Any) -> ToolOutcome:
        await anyio.sleep(0.05)
        return ToolOutcome.of("slow but sure")

    definition = GENERAL.model_copy(update={"tool_keys": ("broken", "slow")})
    house = House(
        [calls(work("bad"), work("good")), complete("over"), complete("over")],
        lambda r: complete("fine") if r.step == 2 else calls(("broken" if r.label == "bad" else "slow", {})),
        tools=(tool("broken", broken), tool("slow", slow)),
        definitions=(definition,),
    )
    result = await house.run()
    assert result.ended_by == "complete"
    bad, good = house.read_by_parent()
    assert "status: error (ended by internal_error" in bad
    assert "status: completed" in good


async def test_one_subagent_is_cancelled_and_its_parent_reads_it() -> None:
    definition = GENERAL.model_copy(update={"tool_keys": ("hang", "write_file")})

    def answer(request: ModelRequest) -> ScriptedReply:
        if request.label == "good":
            return complete("fine")
        return calls(("write_file", {"path": "half.txt", "content": "x"}), ("hang", {}))

    house = House(
        [calls(work("bad"), work("good")), complete()], answer, tools=(tool("hang", hang),), definitions=(definition,)
    )
    async with anyio.create_task_group() as group:
        group.start_soon(house.run)
        await wait_for(house.stage.sandbox, "half.txt")
        (started,) = [event for event in house.stage.of(RunStarted) if event.label == "bad"]
        assert house.delegation.cancel(started.run_id)
    bad, good = house.read_by_parent()
    assert "status: aborted (ended by cancelled" in bad
    assert "half.txt" in bad
    assert "status: completed" in good
    assert not house.delegation.cancel(started.run_id)


ENDS: dict[str, tuple[dict[str, Any], str]] = {
    "cancelled": ({}, "its run was cancelled"),
    "interrupted": ({}, "its run was interrupted"),
    "timeout": ({"timeout": 0.1}, "its run was out of time"),
    "no_progress": ({"tool_patience": 0.1, "chunk_timeout": 0.1}, "its run had made no progress for too long"),
    "internal_error": ({}, "its task was cancelled, or what ran beside it failed"),
}


@pytest.mark.parametrize("kind", ["main", "subagent"])
@pytest.mark.parametrize("ended_by", ENDS)
async def test_the_event_of_a_call_that_was_cut_short_says_why(kind: str, ended_by: str) -> None:
    async def act(context: ToolContext, arguments: Any) -> ToolOutcome:
        if ended_by in ("cancelled", "interrupted"):
            house.context.lifeline.stop(ended_by)  # type: ignore[arg-type]
        elif ended_by == "internal_error":
            raise KeyError("surprise")
        await anyio.sleep_forever()
        raise AssertionError

    limits, why = ENDS[ended_by]
    tools = (tool("hang", hang, parallel=True), tool("act", act))
    step = calls(("hang", {}), ("act", {}))
    general = GENERAL.model_copy(update={"tool_keys": ("hang", "act")})
    first = step if kind == "main" else calls(work("dig"))
    house = House([first, *[complete()] * 2], lambda r: complete() if r.tool_choice else step, tools=tools,
                  definitions=(general,), loop=limits, heartbeat=9.0)  # fmt: skip
    keys = ("task", "hang", "act")
    house.config = replace(house.config, tool_keys=keys)
    await house.run()
    (cut,) = [event for event in house.stage.of(ToolEnded) if event.tool == "hang"]
    assert cut.is_error
    assert cut.preview == f"ended before it answered: {why}"


async def test_a_subagent_that_waits_can_be_cancelled_and_leaves_one_ending() -> None:
    definition = GENERAL.model_copy(update={"tool_keys": ("hang",)})
    house = House(
        [calls(work("a"), work("b")), complete()],
        lambda request: calls(("hang", {})), tools=(tool("hang", hang),), definitions=(definition,), slots=1,
    )  # fmt: skip
    async with anyio.create_task_group() as group:
        group.start_soon(house.run)
        await until(lambda: len(house.delegation.run_ids) == 2)
        first, second = house.delegation.run_ids
        assert house.delegation.cancel(second)
        await until(lambda: house.stage.of(RunEnded, second))
        assert house.delegation.cancel(first)
    assert [event.ended_by for event in house.stage.of(RunEnded, second)] == ["cancelled"]
    assert [record.steps for record in house.context.subagent_records] == [0, 1]
    assert [event.salvage for event in house.stage.of(RunEnded, second)] == [Salvage()]


async def test_cancelling_the_main_run_ends_every_subagent_in_order() -> None:
    definition = GENERAL.model_copy(update={"tool_keys": ("hang",)})
    house = House(
        [calls(work("a"), work("b"), work("c"))],
        lambda request: calls(("hang", {})), tools=(tool("hang", hang),), definitions=(definition,), slots=2,
    )  # fmt: skip
    async with anyio.create_task_group() as group:
        group.start_soon(house.run)
        await until(lambda: len(house.stage.of(ToolStarted)) == 5)
        house.context.lifeline.stop("interrupted")
    endings = house.stage.of(RunEnded)
    assert [event.ended_by for event in endings] == ["interrupted"] * 4
    assert endings[-1].run_id == house.context.run_id
    assert sorted(record.steps for record in house.context.subagent_records) == [0, 1, 1]


async def test_a_sandbox_lost_under_a_subagent_ends_the_parent_too() -> None:
    async def lose(context: ToolContext, arguments: Any) -> ToolOutcome:
        raise SandboxLost("the container is gone")

    definition = GENERAL.model_copy(update={"tool_keys": ("lose",)})
    house = House(
        [calls(work("dig"))],
        lambda request: calls(("lose", {})), tools=(tool("lose", lose),), definitions=(definition,),
    )  # fmt: skip
    result = await house.run()
    assert (result.ended_by, result.status) == ("sandbox_lost", "error")
    assert [record.ended_by for record in house.context.subagent_records] == ["sandbox_lost"]


# --- heartbeats -----------------------------------------------------------------------------------------------------


async def test_a_running_subagent_beats_and_so_keeps_its_parent_from_no_progress() -> None:
    house = House(
        [calls(work("slow")), complete()],
        lambda request: ScriptedReply(text="at last", delay=0.5),
        heartbeat=0.05,
        loop={"chunk_timeout": 0.2, "tool_patience": 0.2},
    )
    result = await house.run()
    assert result.ended_by == "complete"
    beats = house.stage.of(Heartbeat)
    assert len(beats) >= 4
    assert {beat.label for beat in beats} == {"slow"}
    assert beats[-1].elapsed > beats[0].elapsed
    assert beats[-1].since_progress > 0.2


async def test_a_heartbeat_never_rearms_the_subagents_own_clock() -> None:
    house = House(
        [calls(work("stuck")), complete()],
        lambda r: complete("woke") if r.tool_choice else ScriptedReply(text="never", delay=30),
        heartbeat=0.02,
        chunk_timeout=0.15,
    )
    await house.run()
    assert [record.ended_by for record in house.context.subagent_records] == ["no_progress"]


async def test_siblings_of_one_definition_share_a_prefix_and_others_do_not() -> None:
    other = GENERAL.model_copy(update={"type": "other", "instructions": "Be verbose."})
    work_of = [calls(work("a"), work("b"), work("c", "other")), complete()]
    house = House(work_of, lambda request: complete(), definitions=(GENERAL, other))
    await house.run()
    one, two, three = (prefix_of("service", "model", house.first_of(label)) for label in "abc")
    assert one is two
    assert one is not three


# --- models ---------------------------------------------------------------------------------------------------------


async def test_a_subagent_runs_under_the_limits_of_its_definition(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinfold.agent.metered.cost_usd", lambda model, usage: 0.6)
    own: dict[str, dict[str, Any]] = {
        "timeout": {"timeout": 0.1},
        "stop_condition": {"stop_conditions": (text_matches("^enough"),)},
        "step_limit": {"max_steps": 1},
        "budget": {"budget": 0.5},
        "text": {"effort": "high", "thinking": "adaptive"},
    }

    def subagent(request: ModelRequest) -> ScriptedReply | str:
        if request.tool_choice is not None:
            return complete()
        if request.subagent_type == "timeout":
            return ScriptedReply(text="late", delay=30)
        text = "enough" if request.subagent_type == "stop_condition" else "so far"
        return text if request.step == 2 else calls(("todo_write", {"todos": []}), text=text)

    definitions = tuple(GENERAL.model_copy(update={"type": type_, **limits}) for type_, limits in own.items())
    house = House([calls(*(work(type_, type_) for type_ in own)), complete()], subagent, definitions=definitions)
    await house.run()
    ended = {record.definition.type: record.ended_by for record in house.context.subagent_records}
    assert ended == {type_: type_ for type_ in own}
    (late,) = [record for record in house.context.subagent_records if record.ended_by == "timeout"]
    assert late.completed_at > late.started_at
    assert [house.first_of(type_).effort for type_ in ("text", "budget")] == ["high", None]
    assert [house.first_of(type_).thinking for type_ in ("text", "budget")] == ["adaptive", None]


async def test_what_the_resolved_model_would_refuse_is_refused_at_the_spawn() -> None:
    deep = GENERAL.model_copy(update={"type": "deep", "thinking": 2_000})
    house = House([calls(work("dig", "deep")), complete()], lambda request: "never asked", definitions=(deep,))
    house.config.model.name = "claude-opus-5-5"
    await house.run()
    (read,) = house.read_by_parent()
    assert "'deep' cannot start: a budget of 2,000 tokens is no thinking of claude-opus-5-5" in read


async def test_definitions_choose_their_model_and_inherit_means_the_main_agents() -> None:
    asked: list[str] = []

    class Named:
        overrides_definitions = False

        def __init__(self, name: str) -> None:
            self.name = name

        def stream(self, request: ModelRequest) -> Any:
            asked.append(f"{request.label}: {self.name}")
            return ScriptedModel(lambda request: complete("ok")).stream(request)

    stage = Stage()
    definitions = (GENERAL, GENERAL.model_copy(update={"type": "deep", "model": "claude-deep"}))
    delegation = Delegation(
        stage.context(), DelegationConfig(definitions=definitions, model=Named("main"), resolve=Named), purse=Purse()
    )
    for type_ in ("general", "deep"):
        output = await delegation.spawn(
            SpawnRequest(subagent_type=type_, description=type_, prompt="x", tool_call_id="t")
        )
        assert isinstance(output, TaskOutput)
        assert "skipped" not in output.dump(), "absent when empty"
    assert asked == ["general: main", "deep: claude-deep"]
