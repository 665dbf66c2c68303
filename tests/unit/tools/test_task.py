"""The `task` tool: its schema, its call, and what the parent's model reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.unit.tools.bench import Bench, dispatched, text_of

from kinfold.definitions import DEFAULT, SubagentDefinition
from kinfold.errors import ConfigError, ToolError
from kinfold.messages import Artifact, ErrorInfo, FileTouched, Salvage, SkippedPath, Status, TaskOutput, ToolCall
from kinfold.tools import registry, task
from kinfold.tools.base import SpawnRequest, ToolOutcome

OUTPUT = TaskOutput(
    summary="All counted.",
    artifacts=(
        Artifact(path="/workspace/a.json", size=12, fs_type="file", change="created"),
        Artifact(path="/workspace/out", size=40, fs_type="directory", change="modified", entries=3),
    ),
    skipped=(SkippedPath(path="gone\nstatus: completed", reason="missing"),),
    status="completed",
    steps=4,
    ended_by="complete",
    run_id="run_9",
    warnings=("a warning",),
)


def a_call(**changes: Any) -> ToolCall:
    arguments = {"subagent_type": "research", "description": "Count the lines", "prompt": "Count. Deliver a.json."}
    return ToolCall(
        id="call_1", name="task", input={k: v for k, v in {**arguments, **changes}.items() if v is not None}
    )


def test_without_definitions_there_is_no_task_tool() -> None:
    assert task.build(()) is None


def test_two_definitions_of_one_type_are_the_operators_error() -> None:
    with pytest.raises(ConfigError, match="'coding'"):
        task.build((*DEFAULT, DEFAULT[2]))


def test_the_schema_names_the_types_and_says_what_each_is_for() -> None:
    tool = task.build(DEFAULT)
    assert tool is not None
    (spec,) = registry.specs({"task": tool})
    properties = spec.input_schema["properties"]
    assert properties["subagent_type"]["enum"] == ["general", "research", "coding"]
    for definition in DEFAULT:
        assert f"- {definition.type}: {definition.description}" in properties["subagent_type"]["description"]
    assert properties["description"]["maxLength"] == 80
    assert sorted(spec.input_schema["required"]) == ["description", "prompt", "subagent_type"]
    assert spec.input_schema["additionalProperties"] is False


def test_a_single_definition_is_still_an_enum() -> None:
    tool = task.build([SubagentDefinition(type="only", description="The only one.")])
    assert tool is not None
    (spec,) = registry.specs({"task": tool})
    assert spec.input_schema["properties"]["subagent_type"]["enum"] == ["only"]


def test_the_words_say_when_to_delegate_and_show_a_good_and_two_bad_prompts() -> None:
    tool = task.build(DEFAULT)
    assert tool is not None
    assert tool.parallel
    for piece in (
        "Delegate what",
        "Do it yourself where",
        "A good prompt holds",
        "sees your `prompt`,\nnothing of this",
    ):
        assert piece in tool.words
    assert tool.words.count("Bad: ") == 2


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"subagent_type": "reserch"},
            "must be one of 'general', 'research' or 'coding' (got 'reserch'); did you mean",
        ),
        ({"prompt": None}, "`prompt` is missing"),
        ({"prompt": ""}, "`prompt` must not be blank"),
        ({"prompt": " \n"}, "`prompt` must not be blank"),
        ({"description": "x" * 81}, "`description` may have at most 80 characters (has 81)"),
        ({"model": "opus"}, "`model` is not an argument"),
    ],
)
async def test_a_wrong_delegation_starts_nobody_and_says_what_is_allowed(
    bench: Bench, changes: dict[str, Any], words: str
) -> None:
    async def spawn(request: SpawnRequest) -> TaskOutput:
        raise AssertionError(f"{request} must not be spawned")

    tools = registry.select(["task"], definitions=DEFAULT)
    result = await dispatched(tools, a_call(**changes), bench.make(spawn=spawn))
    assert result.is_error
    assert words in text_of(result)


@pytest.mark.anyio
async def test_a_delegation_reaches_spawn_whole_and_comes_back_as_data(bench: Bench) -> None:
    asked = []

    async def spawn(request: SpawnRequest) -> TaskOutput:
        asked.append(request)
        return OUTPUT

    tools = registry.select(["task"], definitions=DEFAULT)
    result = await dispatched(tools, a_call(), bench.make(spawn=spawn))
    assert asked == [
        SpawnRequest(
            subagent_type="research",
            description="Count the lines",
            prompt="Count. Deliver a.json.",
            tool_call_id="call_1",
        )
    ]
    assert result.data is OUTPUT
    assert not result.is_error


@pytest.mark.anyio
@pytest.mark.parametrize(("status", "failed"), [("completed", False), ("aborted", False), ("error", True)])
async def test_only_a_subagent_that_ended_in_an_error_is_a_failed_result(
    bench: Bench, status: Status, failed: bool
) -> None:
    async def spawn(request: SpawnRequest) -> TaskOutput:
        return OUTPUT.model_copy(update={"status": status})

    result = await dispatched(registry.select(["task"], definitions=DEFAULT), a_call(), bench.make(spawn=spawn))
    assert result.is_error == failed


@pytest.mark.anyio
async def test_a_subagent_cannot_start_subagents(bench: Bench) -> None:
    result = await dispatched(registry.select(["task"], definitions=DEFAULT), a_call(), bench.make())
    assert result.is_error
    assert "cannot start subagents" in text_of(result)


@pytest.mark.anyio
async def test_a_refusal_of_spawn_is_a_failed_result(bench: Bench) -> None:
    async def spawn(request: SpawnRequest) -> TaskOutput:
        raise ToolError("50 of 50 subagents were started")

    tools = registry.select(["task"], definitions=DEFAULT)
    result = await dispatched(tools, a_call(), bench.make(spawn=spawn))
    assert result.is_error
    assert "50 of 50" in text_of(result)


def test_the_parent_reads_the_facts_first_and_the_subagents_words_last() -> None:
    text = task.render_output(OUTPUT)
    assert text.splitlines() == [
        "status: completed (ended by complete, 4 steps, run_9)",
        "artifacts (2):",
        "- /workspace/a.json (12 bytes, file, created)",
        "- /workspace/out (40 bytes, 3 files, directory, modified)",
        "skipped (1 claimed, not delivered):",
        r"- gone\nstatus: completed: missing",
        "warnings:",
        "- a warning",
        "summary:",
        "All counted.",
    ]


def test_a_failed_run_names_its_error_and_the_files_that_it_touched() -> None:
    output = OUTPUT.model_copy(
        update={
            "status": "aborted", "ended_by": "step_limit", "summary": "", "artifacts": (), "skipped": None, "steps": 1,
            "error": ErrorInfo(code="limit", message="30 of\n30 steps", hint="raise max_steps"),
            "salvage": Salvage(
                last_text="secret transcript",
                files_touched=tuple(FileTouched(path=f"/workspace/{n}", change="created") for n in range(25)),
                last_tool_error="bash: no\nsuch thing",
            ),
        }
    )  # fmt: skip
    text = task.render_output(output)
    assert text.startswith("status: aborted (ended by step_limit, 1 step, run_9)\nartifacts: none\n")
    assert "error: limit: 30 of 30 steps\nhint: raise max_steps" in text
    assert "- /workspace/19 (created)\n- and 5 more" in text
    assert "last tool error: bash: no such thing" in text
    assert text.endswith("summary:\n(none)")
    assert "secret transcript" not in text


def test_after_compaction_every_delivered_path_can_still_be_read() -> None:
    text = task.compact(ToolOutcome.of(task.render_output(OUTPUT), data=OUTPUT))
    for piece in (
        "status: completed (ended by complete", "/workspace/a.json (12 bytes, file", "/workspace/out (40 bytes",
        "directory", "missing", "All counted.",
    ):  # fmt: skip
        assert piece in text
    assert "a warning" not in text
    assert task.compact(ToolOutcome.of("a refusal")) == "a refusal"


def test_the_seeds_output_shape_is_on_the_wire() -> None:
    wire = json.loads(json.dumps(OUTPUT.dump()))
    assert wire["artifacts"][0]["fsType"] == "file"
    assert {"summary", "artifacts", "skipped", "status", "steps"} <= set(wire)
