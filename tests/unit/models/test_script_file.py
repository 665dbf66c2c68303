"""Scripts in YAML: played by who asks and how far it is, and refused with the line where they are wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import anyio
import pytest
from tests.unit.models.asking import Ask, question, reply_in

from kinfold.errors import ConfigError, ModelError
from kinfold.messages import Message, TextBlock, ToolCall, ToolResult, Usage
from kinfold.models import resolve
from kinfold.models.base import Model

pytestmark = pytest.mark.anyio

Play = Callable[[str], Model]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Makes the model that plays a script."""

    def write(script: str) -> Model:
        path = tmp_path / "script.yaml"
        path.write_text(dedent(script), encoding="utf-8")
        return resolve(f"scripted:{path}")

    return write


def history(*results: str) -> tuple[Message, ...]:
    """A conversation in which one call a turn was answered with these texts."""
    turns: list[Message] = [Message.user("Go.")]
    for number, text in enumerate(results):
        call, block = ToolCall(id=f"toolu_{number}", name="bash"), TextBlock(text=text)
        turns.append(Message(role="assistant", content=(call,)))
        turns.append(Message(role="user", content=(ToolResult(tool_use_id=call.id, content=(block,)),)))
    return tuple(turns)


SCRIPT = """
    main:
      - text: I delegate.
        calls:
          - {tool: task, input: {subagent_type: coding, description: Fix the test, prompt: Fix it.}}
        usage: {input_tokens: 100, output_tokens: 7, cache_read_tokens: 900}
      - The end.
    subagents:
      Fix the test:
        - calls: [{tool: complete, input: {summary: fixed, paths: []}}]
          stop_reason: tool_use
      coding:
        - by its type
"""


async def test_replies_go_by_the_turns_that_were_taken(play: Play, ask: Ask) -> None:
    model = play(SCRIPT)
    first = reply_in(await ask(model))
    second = reply_in(await ask(model, question(messages=history("done"), step=2)))
    assert first.message.text == "I delegate."
    assert first.message.tool_calls[0].input["description"] == "Fix the test"
    assert first.usage == Usage(input_tokens=100, output_tokens=7, cache_read_tokens=900)
    assert (second.message.text, second.stop_reason) == ("The end.", "end_turn")
    assert reply_in(await ask(model)) == first


async def test_a_subagent_plays_its_labels_list_before_its_types(play: Play, ask: Ask) -> None:
    model = play(SCRIPT)
    by_label = question(run_kind="subagent", label="Fix the test", subagent_type="coding")
    by_type = question(run_kind="subagent", label="Something else", subagent_type="coding")
    assert reply_in(await ask(model, by_label)).message.tool_calls[0].name == "complete"
    assert reply_in(await ask(model, by_type)).message.text == "by its type"


async def test_a_script_serves_all_definitions(play: Play) -> None:
    assert play(SCRIPT).overrides_definitions is True  # type: ignore[attr-defined]


async def test_many_runs_at_once_each_get_their_own_replies(play: Play, ask: Ask) -> None:
    names = [f"agent {number}" for number in range(50)]
    script = {"subagents": {name: [f"{name}: {turn}" for turn in (1, 2, 3)] for name in names}}
    model = play(json.dumps(script))
    said: dict[str, list[str]] = {name: [] for name in names}

    async def run(name: str) -> None:
        for turn in range(3):
            request = question(run_kind="subagent", label=name, messages=history(*["ok"] * turn), step=turn + 1)
            said[name].append(reply_in(await ask(model, request)).message.text)

    async with anyio.create_task_group() as tasks:
        for name in names:
            tasks.start_soon(run, name)
    assert said == {name: [f"{name}: {turn}" for turn in (1, 2, 3)] for name in names}


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("${result.1.path}", "out/a.txt"),
        ("${result.1.sizes}", [1, 22]),
        ("${result.1.sizes.1}", 22),
        ("${result.1.nested.deep.0.name}", "n"),
        ("cat ${result.1.path} -n ${result.1.sizes.0} # ${HOME} ${result}", "cat out/a.txt -n 1 # ${HOME} ${result}"),
        ("sizes: ${result.1.sizes}", "sizes: [1, 22]"),
        ("${result.2.text}", "plain words"),
        ("<${result.2.text}>", "<plain words>"),
        ("$${result.1.path}", "${result.1.path}"),
        ("${result.1.ok}", True),
    ],
)  # fmt: skip
async def test_a_reference_quotes_an_earlier_result(written: str, expected: Any, play: Play, ask: Ask) -> None:
    script = {"main": ["a", "b", {"calls": [{"tool": "bash", "input": {"nested": [{"value": written}]}}]}]}
    value = {"path": "out/a.txt", "sizes": [1, 22], "nested": {"deep": [{"name": "n"}]}, "ok": True}
    request = question(messages=history(json.dumps(value), "plain words"), step=3)
    (call,) = reply_in(await ask(play(json.dumps(script)), request)).message.tool_calls
    assert call.input == {"nested": [{"value": expected}]}


async def test_a_reference_in_a_text_is_written_out(play: Play, ask: Ask) -> None:
    model = play("main: [a, '${result.1.total}']")
    reply = reply_in(await ask(model, question(messages=history('{"total": 12}'), step=2)))
    assert reply.message.text == "12"


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("${result.2.text}", "the conversation has 1 tool results"),
        ("${result.0.text}", "the conversation has 1 tool results"),
        ("${result.1.gone}", "no key 'gone' among list, path"),
        ("${result.1.list.5}", "no index '5' in a list of 1"),
        ("${result.1.path.deeper}", "enters a value that has no parts"),
        ("${result.path}", "not of the form"),
        ("${result.1}", "not of the form"),
    ],
)
async def test_a_reference_to_nothing_is_an_error_that_shows_the_request(
    written: str, reason: str, play: Play, ask: Ask
) -> None:
    model = play(json.dumps({"main": ["a", written]}))
    request = question(messages=history('{"path": "a", "list": [1]}'), step=2)
    with pytest.raises(ModelError) as caught:
        await ask(model, request)
    assert caught.value.kind == "script"
    assert reason in caught.value.message
    assert "user: result" in caught.value.message


async def test_a_reference_into_a_text_that_is_not_json_shows_the_text(play: Play, ask: Ask) -> None:
    model = play("main: [a, '${result.1.total}']")
    with pytest.raises(ModelError, match=r"not JSON.*plain words"):
        await ask(model, question(messages=history("plain words"), step=2))


async def test_a_reply_too_few_is_an_error_that_shows_the_request(play: Play, ask: Ask) -> None:
    model = play(SCRIPT)
    with pytest.raises(ModelError) as caught:
        await ask(model, question(messages=history("one", "x" * 5_000), step=3))
    assert (caught.value.kind, caught.value.retryable) == ("script", False)
    assert "`main` has 2 replies and was asked for reply 3" in caught.value.message
    assert "user: result 'xxx" in caught.value.message
    assert len(caught.value.message) < 1_000


async def test_a_subagent_that_no_list_knows_is_an_error_that_names_the_lists(play: Play, ask: Ask) -> None:
    model = play(SCRIPT)
    with pytest.raises(ModelError) as caught:
        await ask(model, question(run_kind="subagent", label="Draw a map", subagent_type="general"))
    assert "label 'Draw a map', type 'general'" in caught.value.message
    assert "'Fix the test', 'coding'" in caught.value.message


@pytest.mark.parametrize(
    ("script", "line", "reason"),
    [
        ("main:\n  - text: a\n  - txet: b\n", 3, "`main.1.txet`: unknown key"),
        ("main:\n  - a\nsubagent: {}\n", 3, "`subagent`: unknown key"),
        ("main:\n  - text: a\n    delay: -1\n", 3, "`main.0.delay`"),
        ("main:\n  - text: a\n    delay: soon\n", 3, "`main.0.delay`"),
        ("main:\n  - calls:\n      - tool: bash\n        inputs: {}\n", 4, "`main.0.calls.0.inputs`: unknown key"),
        ("main:\n  - calls:\n      - input: {}\n", 3, "`main.0.calls.0.tool`: Field required"),
        ("main:\n  - calls: [{tool: bash, input: {when: 2024-01-01}}]\n", 2, "a date, which JSON does not have"),
        ("main: text\n", 1, "`main`"),
        ("main:\n  - a\nsubagents:\n  coding:\n    - a\n  coding:\n    - b\n", 6, "`coding` stands twice"),
        ("main:\n  - 'a\n", 3, "not valid YAML"),
        ("- a\n", 1, "a script is a mapping"),
        ("", 1, "a script is a mapping"),
        ("main: []\nsource: x\n", 2, "unknown key"),
    ],
)
def test_a_broken_script_is_a_config_error_with_its_line(script: str, line: int, reason: str, play: Play) -> None:
    with pytest.raises(ConfigError) as caught:
        play(script)
    assert f"script.yaml, line {line}: " in caught.value.message
    assert reason in caught.value.message
    assert caught.value.hint


def test_a_script_that_cannot_be_read_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"main: [\xff]")
    for path in (tmp_path / "none.yaml", tmp_path, tmp_path / "bytes.yaml"):
        with pytest.raises(ConfigError) as caught:
            resolve(f"scripted:{path}")
        assert str(path) in caught.value.message
