"""Which tools an agent gets, what the model is told of them, and what becomes of a model's mistakes."""

from __future__ import annotations

import json
import typing
from typing import Any

import anyio
import pytest
from pydantic import BaseModel, ConfigDict, Field
from tests.unit.tools.bench import Bench, dispatched, text_of

from kinfold.definitions import DEFAULT, KNOWN_TOOL_KEYS
from kinfold.errors import ConfigError, PathError, PathReason, SandboxLost, ToolError
from kinfold.events import ToolEnded, ToolStarted
from kinfold.messages import ImageBlock, TextBlock, ToolCall
from kinfold.tools import registry
from kinfold.tools.base import Completion, Tool, ToolCallable, ToolContext, ToolOutcome


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")
    city: str
    days: int = Field(default=1, ge=1, le=9)


def own_tool(call: ToolCallable, key: str = "weather", **values: Any) -> Tool:
    return Tool(key=key, words="Tells the weather.", arguments=Arguments, call=call, **values)


def answering(text: str) -> ToolCallable:
    async def call(context: ToolContext, arguments: Any) -> ToolOutcome:
        return ToolOutcome.of(text)

    return call


def raising(error: BaseException) -> ToolCallable:
    async def call(context: ToolContext, arguments: Any) -> ToolOutcome:
        raise error

    return call


def test_the_keys_that_definitions_may_name_are_the_keys_of_the_registry() -> None:
    assert registry.KEYS == KNOWN_TOOL_KEYS


def test_complete_is_always_there_and_a_key_that_was_not_selected_is_not() -> None:
    assert set(registry.select([])) == {"complete"}
    tools = registry.select(["bash", "bash", "read_file"])
    assert set(tools) == {"bash", "read_file", "complete"}
    assert [spec.name for spec in registry.specs(tools)] == ["bash", "complete", "read_file"]


def test_the_task_tool_is_there_only_when_it_is_listed_and_has_definitions() -> None:
    assert "task" not in registry.select(["task"])
    assert "task" not in registry.select(["bash"], definitions=DEFAULT)
    assert "task" in registry.select(["task"], definitions=DEFAULT)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (["bush"], "there is no tool 'bush'; did you mean 'bash'?"),
    ],
)
def test_selecting_what_is_no_tool_is_the_operators_error(keys: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as raised:
        registry.select(keys)
    assert words in raised.value.message
    assert raised.value.hint


def test_a_users_own_tool_is_selected_by_its_key_and_cannot_take_a_shipped_one() -> None:
    tool = own_tool(answering("sunny"))
    assert registry.select(["weather"], extra=[tool])["weather"] is tool
    assert "weather" not in registry.select(["bash"], extra=[tool])
    for key in ("bash", "task", "confirm", "two words", ""):
        with pytest.raises(ConfigError):
            registry.select([], extra=[own_tool(answering(""), key=key)])
    with pytest.raises(ConfigError, match="is taken"):
        registry.select([], extra=[tool, tool])


def test_the_schemas_are_the_same_bytes_every_time_and_hold_no_noise() -> None:
    def text() -> str:
        tools = registry.select([*registry.SHIPPED, "task"], definitions=DEFAULT)
        return json.dumps([spec.model_dump() for spec in registry.specs(tools)])

    once = text()
    assert once == text()
    for spec in registry.specs(registry.SHIPPED):
        assert spec.input_schema["type"] == "object"
        assert "title" not in spec.input_schema
        assert all("title" not in field for field in spec.input_schema["properties"].values())
        assert '"null"' not in json.dumps(spec.input_schema)
        assert len(spec.description) > 100


def test_a_schema_that_somebody_changes_is_not_what_the_next_one_gets() -> None:
    registry.specs(registry.SHIPPED)[0].input_schema["properties"].clear()
    assert registry.specs(registry.SHIPPED)[0].input_schema["properties"]


def test_an_argument_that_is_called_title_stays_in_the_schema() -> None:
    class Titled(BaseModel):
        title: str

    tool = Tool(key="x", words="", arguments=Titled, call=answering(""))
    assert registry.specs({"x": tool})[0].input_schema["properties"] == {"title": {"type": "string"}}


# --- dispatch ------------------------------------------------------------------------------------------------------


def call(name: str = "weather", **arguments: Any) -> ToolCall:
    return ToolCall(id="call_1", name=name, input=arguments)


@pytest.mark.anyio
async def test_a_call_is_answered_between_its_two_events(bench: Bench) -> None:
    result = await dispatched({"weather": own_tool(answering("sunny"))}, call(city="Ulm"), bench.make())
    assert result.content == (TextBlock(text="sunny"),)
    started, ended = bench.events
    assert isinstance(started, ToolStarted)
    assert (started.tool, started.input, started.tool_call_id) == ("weather", {"city": "Ulm"}, "call_1")
    assert isinstance(ended, ToolEnded)
    assert (ended.is_error, ended.preview, ended.run_id) == (False, "sunny", "run_1")
    assert bench.state.last_tool_error is None


@pytest.mark.anyio
async def test_the_events_of_a_subagents_call_keep_the_parents_call_id(bench: Bench) -> None:
    context = bench.make(tool_call_id="parents", label="a label")
    await dispatched({"weather": own_tool(answering("sunny"))}, call(city="Ulm"), context)
    assert {(event.tool_call_id, event.label) for event in bench.events} == {("parents", "a label")}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("made", "words"),
    [
        (call("wether", city="Ulm"), "no tool 'wether' here; did you mean 'weather'?\nhint: your tools are: weather"),
        (call(), "- `city` is missing"),
        (call(city=3), "- `city` should be a valid string (got 3)"),
        (call(city="Ulm", days=99), "- `days` should be less than or equal to 9 (got 99)"),
        (call(city="Ulm", day=1), "- `day` is not an argument; there are: `city`, `days`; did you mean 'days'?"),
        (call(city="\ud800"), "it holds half of a surrogate pair"),
        (
            ToolCall(id="call_1", name="weather", input_error="the reply was cut inside the input"),
            "was not run: the reply was cut inside the input",
        ),
    ],
)
async def test_a_models_mistake_is_answered_with_what_is_allowed(bench: Bench, made: ToolCall, words: str) -> None:
    tool = own_tool(raising(AssertionError("a wrong call must never run")))
    result = await dispatched({"weather": tool}, made, bench.make())
    assert result.is_error
    assert words in text_of(result)
    assert words in (bench.state.last_tool_error or "")
    assert bench.events[-1].is_error


@pytest.mark.anyio
async def test_a_shipped_tool_that_was_not_selected_is_refused(bench: Bench) -> None:
    result = await dispatched(registry.select(["read_file"]), call("bash", command="id"), bench.make())
    assert result.is_error
    assert "no tool 'bash' here" in text_of(result)
    assert "hint: your tools are: complete, read_file" in text_of(result)


@pytest.mark.anyio
@pytest.mark.parametrize(
    "error", [ToolError("no such city", hint="try Ulm"), PathError("not_found", "x", "no such city", hint="try Ulm")]
)
async def test_what_the_model_can_mend_becomes_a_failed_result_with_its_hint(bench: Bench, error: Exception) -> None:
    result = await dispatched({"weather": own_tool(raising(error))}, call(city="X"), bench.make())
    assert result.is_error
    assert "no such city" in text_of(result)
    assert "hint: try Ulm" in text_of(result)


@pytest.mark.anyio
@pytest.mark.parametrize("reason", typing.get_args(PathReason))
async def test_every_path_that_cannot_be_used_comes_with_what_to_do(bench: Bench, reason: PathReason) -> None:
    tool = own_tool(raising(PathError(reason, "x")))
    result = await dispatched({"weather": tool}, call(city="X"), bench.make())
    assert result.is_error
    assert "\nhint: " in text_of(result)


@pytest.mark.anyio
@pytest.mark.parametrize("error", [SandboxLost("gone"), FileNotFoundError("ours"), KeyError("bug")])
async def test_a_lost_sandbox_and_our_own_bugs_pass_through_untouched(bench: Bench, error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        await dispatched({"weather": own_tool(raising(error))}, call(city="X"), bench.make())
    assert raised.value is error
    assert bench.events[-1].type == "tool_ended"
    assert bench.events[-1].is_error


@pytest.mark.anyio
async def test_a_wrong_value_inside_a_tool_is_our_bug_and_not_the_models(bench: Bench) -> None:
    async def broken(context: ToolContext, arguments: Any) -> ToolOutcome:
        Arguments.model_validate({})
        raise AssertionError

    with pytest.raises(ValueError, match="city"):
        await dispatched({"weather": own_tool(broken)}, call(city="X"), bench.make())


@pytest.mark.anyio
async def test_a_cancelled_call_still_ends_in_the_log(bench: Bench) -> None:
    async def forever(context: ToolContext, arguments: Any) -> ToolOutcome:
        await anyio.sleep_forever()
        raise AssertionError

    with anyio.move_on_after(0.01) as scope:
        await dispatched({"weather": own_tool(forever)}, call(city="X"), bench.make())
    assert scope.cancelled_caught
    assert [event.type for event in bench.events] == ["tool_started", "tool_ended"]


@pytest.mark.anyio
async def test_a_result_over_its_budget_goes_to_a_file_with_a_pointer(bench: Bench) -> None:
    whole = "begin " + "ä" * 5_000 + " end"
    tool = own_tool(answering(whole), result_budget=1_000)
    result = await dispatched({"weather": tool}, call(city="X"), bench.make())
    text = text_of(result)
    assert len(text.encode()) <= 1_000
    assert text.startswith("begin ")
    assert text.endswith(" end")
    ((path, data),) = bench.sandbox.files.items()
    assert path == "/workspace/.kinfold/results/run_1/001-weather.txt"
    assert path.removeprefix("/workspace/") in text
    assert data.decode() == whole
    assert bench.state.spills == 1


@pytest.mark.anyio
async def test_a_result_that_cannot_be_spilled_is_cut_and_says_so(bench: Bench) -> None:
    bench.sandbox.write_error = PathError("no_space", ".kinfold/x")
    tool = own_tool(answering("x" * 5_000), result_budget=1_000)
    result = await dispatched({"weather": tool}, call(city="X"), bench.make())
    assert not result.is_error
    assert len(text_of(result)) <= 1_000
    assert "could not be kept" in text_of(result)


@pytest.mark.anyio
async def test_a_picture_is_not_counted_against_the_budget(bench: Bench) -> None:
    picture = ImageBlock(media_type="image/png", data="A" * 4_000)

    async def draw(context: ToolContext, arguments: Any) -> ToolOutcome:
        return ToolOutcome(content=(TextBlock(text="look"), picture))

    result = await dispatched({"weather": own_tool(draw, result_budget=1_000)}, call(city="X"), bench.make())
    assert result.content == (TextBlock(text="look"), picture)


@pytest.mark.anyio
async def test_a_completion_passes_through_by_its_type(bench: Bench) -> None:
    done = Completion(summary="done")

    async def finish(context: ToolContext, arguments: Any) -> Completion:
        return done

    assert await registry.dispatch({"weather": own_tool(finish)}, call(city="X"), bench.make()) is done
    assert bench.events[-1].preview == "done"
