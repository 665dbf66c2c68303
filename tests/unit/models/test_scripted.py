"""The scripted model: a function of the request that behaves like a model."""

from __future__ import annotations

import anyio
import pytest
from tests.unit.models.asking import Ask, question, reply_in

from kinfold.errors import ModelError
from kinfold.messages import Message, TextBlock, ToolCall, Usage
from kinfold.models import estimate
from kinfold.models.base import ModelRequest, TextChunk
from kinfold.models.scripted import ScriptedCall, ScriptedModel, ScriptedReply, turn_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("text", ["one", "one two three four five six", "  lines\n\nand\ttabs \n", "漢字 かな", "\n"])
async def test_the_text_streams_in_a_few_pieces_that_make_it_up(text: str, ask: Ask) -> None:
    events = await ask(ScriptedModel(lambda request: ScriptedReply(text=text)))
    pieces = [event.text for event in events if isinstance(event, TextChunk)]
    assert "".join(pieces) == text
    assert 1 <= len(pieces) <= 4
    reply = reply_in(events)
    assert reply.message.content == (TextBlock(text=text),)
    assert (reply.stop_reason, reply.model) == ("end_turn", "scripted")


async def test_a_reply_with_calls_stops_for_them(ask: Ask) -> None:
    calls = (ScriptedCall(tool="bash", input={"command": "ls"}), ScriptedCall(tool="bash", id="toolu_mine"))
    reply = reply_in(await ask(ScriptedModel(lambda request: ScriptedReply(calls=calls))))
    first, second = reply.message.tool_calls
    assert reply.stop_reason == "tool_use"
    assert (first.name, first.input) == ("bash", {"command": "ls"})
    assert second.id == "toolu_mine"


async def test_ids_are_the_same_each_time_and_differ_between_steps_siblings_and_calls(ask: Ask) -> None:
    model = ScriptedModel(lambda request: ScriptedReply(calls=(ScriptedCall(tool="bash"),) * 2))

    async def ids(request: ModelRequest) -> list[str]:
        reply = reply_in(await ask(model, request))
        return [reply.message_id, *(call.id for call in reply.message.tool_calls)]

    main = await ids(question())
    assert await ids(question()) == main
    others = [
        await ids(question(step=2)),
        await ids(question(run_kind="subagent", label="a", subagent_type="coding")),
        await ids(question(run_kind="subagent", label="b", subagent_type="coding")),
        await ids(question("another prompt", run_kind="subagent", label="b", subagent_type="coding")),
    ]
    every = [ident for group in [main, *others] for ident in group]
    assert len(set(every)) == len(every)


async def test_a_raw_input_is_read_as_strictly_as_a_services(ask: Ask) -> None:
    calls = (ScriptedCall(tool="bash", raw='{"command": "l'), ScriptedCall(tool="bash", raw='{"command": "ls"}'))
    cut, whole = reply_in(await ask(ScriptedModel(lambda request: ScriptedReply(calls=calls)))).message.tool_calls
    assert "not valid JSON" in str(cut.input_error)
    assert (whole.input, whole.input_error) == ({"command": "ls"}, None)


async def test_usage_is_estimated_where_the_script_gives_none(ask: Ask) -> None:
    given = Usage(input_tokens=5, output_tokens=6, cache_read_tokens=7)
    said = reply_in(await ask(ScriptedModel(lambda request: ScriptedReply(text="a", usage=given))))
    guessed = reply_in(await ask(ScriptedModel(lambda request: ScriptedReply(text="word " * 100))))
    assert said.usage == given
    assert guessed.usage.input_tokens == estimate.request_tokens(question())
    assert 100 <= guessed.usage.output_tokens <= 150


async def test_a_function_may_wait_and_may_raise(ask: Ask) -> None:
    async def slowly(request: ModelRequest) -> ScriptedReply:
        await anyio.lowlevel.checkpoint()
        if request.step == 2:
            raise ModelError("down", kind="overloaded")
        return ScriptedReply(text="here")

    model = ScriptedModel(slowly)
    assert reply_in(await ask(model)).message.text == "here"
    with pytest.raises(ModelError, match="down"):
        await ask(model, question(step=2))


async def test_a_delay_can_be_cancelled(ask: Ask) -> None:
    model = ScriptedModel(lambda request: ScriptedReply(text="late", delay=60))
    with anyio.move_on_after(0.05) as scope:
        await ask(model)
    assert scope.cancelled_caught


async def test_an_incomplete_and_an_empty_reply_can_be_played(ask: Ask) -> None:
    cut = reply_in(await ask(ScriptedModel(lambda request: ScriptedReply(text="half", incomplete=True))))
    empty = reply_in(await ask(ScriptedModel(lambda request: ScriptedReply())))
    assert cut.incomplete
    assert (empty.message.content, empty.stop_reason) == ((), "end_turn")


def test_the_turn_counts_what_the_model_said_and_the_step_where_that_is_missing() -> None:
    said = Message(role="assistant", content=(ToolCall(id="a", name="bash"),))
    assert turn_of(question()) == 1
    assert turn_of(question(messages=(Message.user("a"), said, Message.user("b")))) == 2
    assert turn_of(question(messages=(Message.user("a"), Message.user("go on")), step=2)) == 2
