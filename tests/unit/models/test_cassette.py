"""Cassettes: what is recorded is replayed to the letter, is found by who asks, and holds no secret."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.models.asking import Ask, MakeModel, question

from kinfold.errors import ConfigError, ModelError
from kinfold.messages import (
    FileTouched,
    ImageBlock,
    Message,
    OpaqueBlock,
    RedactedThinkingBlock,
    TaskOutput,
    TextBlock,
    ThinkingBlock,
    ToolCall,
    ToolResult,
    ToolSpec,
    Unattributed,
    Usage,
)
from kinfold.models.base import ModelEvent, ModelRequest, Reply, RetryNotice, TextChunk, ThinkingChunk
from kinfold.models.cassette import RecordingModel, ReplayModel, Writer
from kinfold.models.cassette_compare import RULES, lines_of
from kinfold.models.cassette_file import KEY_SHAPES, hidden, hidden_request, read
from kinfold.models.pricing import cost_usd
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.models.windows import window_of
from kinfold.tasks.redaction import Redaction
from kinfold.testing.messages_api import Answer, MessagesApi, rate_limited
from kinfold.tools.task import render_output

pytestmark = pytest.mark.anyio
_CHANGED = FileTouched(path="/workspace/a", change="created")
_OUTPUT = TaskOutput(
    summary="s", status="completed", steps=1, ended_by="text", run_id="run_1",
    unattributed=Unattributed(files=(_CHANGED, _CHANGED), runs=("a", "b")),
)  # fmt: skip
UNATTRIBUTED = render_output(_OUTPUT).partition("artifacts: none\n")[2].partition("\nsummary:")[0]
HEADER = b'{"format": "kinfold-cassette", "version": 1}\n'
SECRET = "correct-horse/battery=42"


class Streams:
    """A model that streams what it is given; an error in it is raised."""

    name = "claude-sonnet-5"

    def __init__(self, *events: ModelEvent | Exception) -> None:
        self._events = events

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        for event in self._events:
            if isinstance(event, Exception):
                raise event
            yield event


def reply(*blocks: Any, **more: Any) -> Reply:
    message = Message(role="assistant", content=blocks or (TextBlock(text="Hello"),))
    fields: dict[str, Any] = {"stop_reason": "end_turn", "usage": Usage(input_tokens=7, output_tokens=2)}
    return Reply(message=message, message_id="msg_1", model="claude-sonnet-5", **{**fields, **more})


def sub(label: str, text: str, step: int = 1) -> ModelRequest:
    return question(text, run_kind="subagent", subagent_type="general", label=label, step=step)


def echo(request: ModelRequest) -> ScriptedReply:
    return ScriptedReply(text=f"You said: {request.messages[-1].text}")


async def record(path: Path, model: Any, *requests: ModelRequest, secrets: tuple[str, ...] = ()) -> None:
    tape = Writer(path, hide=Redaction(secrets).whole)
    recording = RecordingModel(model, tape)
    for request in requests:
        try:
            async for _ in recording.stream(request):
                pass
        except ModelError:
            pass
    assert tape.close() is None


async def heard(model: Any, request: ModelRequest) -> list[Any]:
    return [event async for event in model.stream(request)]


# --- the same again ------------------------------------------------------------------------------------------------


async def test_what_a_service_streamed_is_replayed_chunk_by_chunk_with_its_retry(
    tmp_path: Path, model_of: MakeModel, ask: Ask
) -> None:
    path = tmp_path / "a.cassette"
    thought = {"type": "thinking", "thinking": "Let me see", "signature": "c2ln"}
    call = {"type": "tool_use", "id": "toolu_1", "name": "bash", "input": {"command": "ls"}}
    async with MessagesApi(
        [rate_limited("1"), Answer(blocks=(thought, {"type": "text", "text": "I look."}, call))]
    ) as api:
        tape = Writer(path)
        live = await ask(RecordingModel(model_of(api), tape))
        assert tape.close() is None
    replay = ReplayModel(path)
    again = await ask(replay)
    assert [replace(event, model="") if isinstance(event, Reply) else event for event in again] == [
        replace(event, model="") if isinstance(event, Reply) else event for event in live
    ]
    assert {RetryNotice, ThinkingChunk, TextChunk, Reply} == {type(event) for event in again}
    assert replay.unasked == ()
    assert (window_of(replay.name), cost_usd(again[-1].model, Usage(input_tokens=10**6))) == (1_000_000, 0.0)  # type: ignore[union-attr]


async def test_an_error_is_replayed_as_the_error_that_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.cassette"
    usage = Usage(input_tokens=3)
    refused = ModelError(
        "full", kind="context", attempts=2, request_id="req_1", hint="split", usage=usage, message_id="m"
    )
    await record(path, Streams(TextChunk(text="half"), refused), question())
    stream: Any = ReplayModel(path).stream(question())
    assert await anext(stream) == TextChunk(text="half")
    with pytest.raises(ModelError) as caught:
        await anext(stream)
    assert vars(caught.value) == vars(refused)


async def test_a_stream_that_was_left_says_so_where_it_was_left(tmp_path: Path) -> None:
    path = tmp_path / "a.cassette"
    tape = Writer(path)
    stream: Any = RecordingModel(Streams(TextChunk(text="one"), TextChunk(text="two"), reply()), tape).stream(
        question()
    )
    assert await anext(stream) == TextChunk(text="one")
    await stream.aclose()
    assert tape.close() is None
    with pytest.raises(ModelError, match="the recorded run was ended while this reply came"):
        await heard(ReplayModel(path), question())


async def test_subagents_are_told_apart_by_their_label_and_step_and_not_by_their_order(tmp_path: Path) -> None:
    path = tmp_path / "a.cassette"
    asked = [sub("a", "do a"), sub("b", "do b"), sub("a", "more of a", 2), sub("b", "more of b", 2), question("main")]
    await record(path, ScriptedModel(echo), *asked)
    replay = ReplayModel(path)
    for request in reversed(asked):
        assert (await heard(replay, request))[-1].message.text == f"You said: {request.messages[-1].text}"


async def test_one_label_used_twice_is_told_apart_by_what_it_asks_then_by_the_recordings_order(tmp_path: Path) -> None:
    path = tmp_path / "a.cassette"
    numbers = iter(range(9))
    model = ScriptedModel(lambda request: ScriptedReply(text=f"{request.messages[0].text} {next(numbers)}"))
    await record(path, model, sub("a", "x"), sub("a", "y"), sub("a", "x"))
    replay = ReplayModel(path)
    answers = [(await heard(replay, sub("a", text)))[-1].message.text for text in ("y", "x", "x")]
    assert answers == ["y 1", "x 0", "x 2"]
    with pytest.raises(
        ModelError, match=r"subagent 'a' \(general\), step 1 was recorded 3 times and is asked for once more"
    ):
        await heard(replay, sub("a", "x"))


ANY_TEXT = st.text(st.characters(exclude_categories=()), max_size=12)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)
BLOCKS = st.one_of(
    st.builds(TextBlock, text=ANY_TEXT),
    st.builds(ToolCall, id=st.just("toolu_1"), name=st.just("bash"), input=st.dictionaries(ANY_TEXT, JSON, max_size=3)),
    st.builds(OpaqueBlock, raw=st.dictionaries(ANY_TEXT, JSON, max_size=3).map(lambda raw: raw | {"type": "new"})),
    st.builds(ThinkingBlock, thinking=ANY_TEXT, signature=st.just("s")),
    st.builds(RedactedThinkingBlock, data=st.just("eA==")),
    st.builds(ToolResult, tool_use_id=st.just("toolu_1"), content=st.tuples(st.builds(TextBlock, text=ANY_TEXT))),
    st.just(ToolResult(tool_use_id="t", content=(ImageBlock(media_type="image/png", data="eA=="),))),
)


@given(content=st.lists(BLOCKS, min_size=1, max_size=4), chunks=st.lists(ANY_TEXT, max_size=4))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_whatever_a_model_says_comes_back_as_it_was(
    tmp_path: Path, content: list[Any], chunks: list[str]
) -> None:
    path = tmp_path / "any.cassette"
    path.unlink(missing_ok=True)
    request = question(messages=(Message(role="user", content=tuple(content)),))
    answer = reply(*content)
    said = [TextChunk(text=text) for text in chunks]
    await record(path, Streams(*said, answer), request)
    replay = ReplayModel(path)
    *again, last = await heard(replay, request)
    assert again == said
    assert replace(last, model=answer.model) == answer


# --- strays --------------------------------------------------------------------------------------------------------


async def test_a_stray_is_a_diff_of_what_was_recorded_and_what_is_asked_and_stays_the_one_answer(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.cassette"
    long = "\n".join(f"line {number}" for number in range(400))
    await record(path, ScriptedModel(echo), question(f"{long}\nthe answer is 4\n{long}"), sub("a", "x"))
    replay = ReplayModel(path)
    with pytest.raises(ModelError) as caught:
        await heard(replay, question(f"{long}\nthe answer is 5\n{long}"))
    message = caught.value.message
    assert "the main agent, step 1" in message
    assert "\n-the answer is 4\n+the answer is 5\n" in message
    assert len(message.splitlines()) < 15
    assert (caught.value.kind, caught.value.retryable) == ("script", False)
    assert "--record" in caught.value.hint
    with pytest.raises(ModelError) as second:
        await heard(replay, sub("a", "x"))
    assert second.value.message == message
    assert set(replay.unasked) == {"the main agent, step 1", "subagent 'a' (general), step 1"}


async def test_a_step_that_was_never_recorded_names_what_is_left_and_shows_what_was_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.cassette"
    await record(path, ScriptedModel(echo), question("go"), sub("a", "x"))
    with pytest.raises(ModelError, match=r"(?s)the main agent, step 9 was not recorded.*subagent 'a'.*what now\?"):
        await heard(ReplayModel(path), question("what now?", step=9))


@pytest.mark.parametrize("field", ["system", "tools", "tool_choice", "effort", "max_tokens", "purpose"])
async def test_another_setting_is_a_stray(tmp_path: Path, field: str) -> None:
    path = tmp_path / "a.cassette"
    await record(path, ScriptedModel(echo), question("go"))
    other: Any = {
        "system": ("Be long.",), "tools": (), "tool_choice": "bash", "effort": "low", "max_tokens": 5,
        "purpose": "compaction",
    }[field]  # fmt: skip
    with pytest.raises(ModelError, match="strays"):
        await heard(ReplayModel(path), question("go", **{field: other}))


@pytest.mark.parametrize(
    ("then", "now"),
    [
        ("status: completed (run_0123456789abcdef)", "status: completed (run_fedcba9876543210)"),
        ("Today's date: 2026-01-02 (UTC).", "Today's date: 2027-11-30 (UTC)."),
        ("at 2026-01-02T03:04:05.678Z", "at 2027-12-30T13:04:05+00:00"),
        ("Tue Dec  1 04:21:32 UTC 2026", "Fri Jan 15 14:00:00 CET 2027"),
        ("-rw-r--r-- 1 agent agent 5 Dec  1 04:21 a", "-rw-r--r-- 1 agent agent 5 Jan 13 2025 a"),
        ("1767225600", "1798761600.25"),
        ("wrote /tmp/tmpab12cd_z/a", "wrote /tmp/tmpzz99xx00/a"),
        ("/tmp/tmp.Xa3fK9qLmN", "/tmp/tmp.1aB2cD3eF4"),
        ("/tmp/pytest-of-agent/pytest-3/x", "/tmp/pytest-of-agent/pytest-12/x"),
        ("1 passed in 0.03s", "1 passed in 12.75s"),
        ("took 3 ms", "took 14 ms"),
        ("<Thing at 0x7f3a9c01>", "<Thing at 0x55d0aabbcc>"),
        ("killed pid 17", "killed pid 4711"),
        (f"x\n{UNATTRIBUTED}\nsummary:\ndone", "x\nsummary:\ndone"),
        ("a [… 1,234 of 5,678 bytes left out here; b …]", "a [… 987 of 5,431 bytes left out here; b …]"),
    ],
)
async def test_what_differs_in_every_run_is_no_stray(tmp_path: Path, then: str, now: str) -> None:
    path = tmp_path / "a.cassette"
    await record(path, ScriptedModel(echo), question(then))
    assert (await heard(ReplayModel(path), question(now)))[-1].message.text == f"You said: {then}"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("2 passed", "1 passed"),
        ("exit 1", "exit 2"),
        ("in line 31", "in line 13"),
        ("a.txt", "b.txt"),
        ("v1.2", "v1.3"),
    ],
)
def test_what_a_run_has_done_is_compared(one: str, other: str) -> None:
    lines = [lines_of("m", hidden_request(question(text), str), RULES) for text in (one, other)]
    assert lines[0] != lines[1]


async def test_a_rule_of_ones_own_puts_more_out_of_the_way(tmp_path: Path) -> None:
    path = tmp_path / "a.cassette"
    await record(path, ScriptedModel(echo), question("build 17"))
    assert await heard(ReplayModel(path, rules=[(r"build \d+", "build #")]), question("build 18"))


async def test_a_definitions_model_is_stood_in_for_by_the_same_recording(tmp_path: Path) -> None:
    path = tmp_path / "a.cassette"
    tape = Writer(path)
    for name, request in (("claude-opus-5-5", question("go")), ("claude-haiku-5-5", sub("a", "x"))):
        model = Streams(reply())
        model.name = name
        await heard(RecordingModel(model, tape), request)
    assert tape.close() is None
    replay = ReplayModel(path)
    assert replay.name == "cassette:claude-opus-5-5"
    assert (await heard(replay.stand_in("claude-haiku-5-5"), sub("a", "x")))[-1].model == "cassette:claude-haiku-5-5"
    assert replay.unasked == ("the main agent, step 1",)
    with pytest.raises(ModelError, match=r"-model: claude-opus-5-5\n\+model: claude-sonnet-5"):
        await heard(replay.stand_in("claude-sonnet-5"), question("go"))


# --- secrets -------------------------------------------------------------------------------------------------------

FAKE_KEYS = (
    "sk-ant-api03-" + "aB3_" * 12, "ghp_" + "aB3c" * 9, "AKIA" + "ABCD1234" * 2, "xoxb-1234567890-abcdef",
    "eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxMjM0NTY3ODkwIn0" + ".c2lnbmF0dXJlLWhlcmU",
    "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBg\n-----END PRIVATE KEY-----",
)  # fmt: skip


async def test_no_secret_of_the_traffic_reaches_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.cassette"
    number = "4839201756"
    coded = base64.b64encode(b"x" + SECRET.encode()).decode()
    request = question(
        system=(f"Use {SECRET}.",),
        messages=(
            Message.user(f"the key is {SECRET}, or {coded}; {' '.join(FAKE_KEYS)}"),
            Message(role="assistant", content=(ToolCall(id="toolu_1", name="bash", input={SECRET: {"type": SECRET}}),)),
            Message(role="user", content=(ToolResult(tool_use_id="toolu_1", content=(TextBlock(text=SECRET),)),)),
        ),
        label=f"with {SECRET}",
    )
    half = len(SECRET) // 2
    answer = reply(
        TextBlock(text=f"It is {SECRET}."),
        ToolCall(id="toolu_2", name="bash", input={"command": f"echo {SECRET}", "pin": int(number)}),
        OpaqueBlock(raw={"type": "new", "content": SECRET}),
    )
    events = (
        RetryNotice(attempt=1, delay=0.5, reason=f"bad key {SECRET}"),
        TextChunk(text=f"It is {SECRET[:half]}"),
        TextChunk(text=f"{SECRET[half:]}."),
        answer,
    )
    await record(path, Streams(*events), request, secrets=(SECRET, number))
    refusal = ModelError(f"key {SECRET} is wrong", kind="authentication", hint=f"not {SECRET}")
    other = tmp_path / "b.cassette"
    await record(other, Streams(refusal), request, secrets=(SECRET, number))
    for text in (path.read_text(), other.read_text()):
        assert SECRET not in text
        assert number not in text
        assert coded[4:-4] not in text
        assert not [key for key in FAKE_KEYS if json.dumps(key)[1:-1] in text]
    replay = ReplayModel(path)
    replay.hiding(Redaction((SECRET, number)).whole)
    assert (await heard(replay, request))[1] == TextChunk(text="It is [secret].")


async def test_a_secret_that_is_a_word_of_the_sign_for_secrets_is_no_stray_when_its_reply_comes_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.cassette"
    hide = Redaction(("secret",)).whole
    tape = Writer(path, hide=hide)
    recording = RecordingModel(Streams(reply(TextBlock(text="the secret is out"))), tape)
    replies = []
    for model in (recording, None):
        replay = ReplayModel(path) if model is None else None
        if replay is not None:
            replay.hiding(hide)
        messages = [Message.user("tell me")]
        for step in (1, 2):
            answer = (await heard(model or replay, question(messages=tuple(messages), step=step)))[-1]
            messages += [answer.message, Message.user("again")]
            replies.append(answer.message.text)
        assert tape.close() is None
    assert replies == ["the secret is out"] * 2 + ["the [secret] is out"] * 2


@pytest.mark.parametrize(
    "text",
    [
        "class sk-estimator-doc-link-fitted",
        "if '-----BEGIN PRIVATE KEY-----' in text: raise",
        "AKIA is a prefix",
        "xoxb-",
    ],
)
def test_what_only_begins_like_a_key_stays_as_it_is(text: str) -> None:
    assert hidden(text, str) == text


async def test_the_models_own_key_is_hidden_without_being_asked(tmp_path: Path) -> None:
    path = tmp_path / "a.cassette"
    model = Streams(ModelError("invalid x-api-key: plain-key-of-mine", kind="authentication"))
    model.secrets = ("plain-key-of-mine",)  # type: ignore[attr-defined]
    await record(path, model, question("plain-key-of-mine?"))
    assert "plain-key-of-mine" not in path.read_text()


# --- the file ------------------------------------------------------------------------------------------------------


async def test_a_conversation_is_kept_once_however_often_it_is_sent(tmp_path: Path) -> None:
    path = tmp_path / "a.cassette"
    said = [Message.user("x" * 1000 + str(number)) for number in range(40)]
    requests = [question(messages=tuple(said[:step]), step=step) for step in range(1, 41)]
    await record(path, Streams(reply()), *requests)
    assert path.stat().st_size < 40 * 2200
    assert path.stat().st_mode & 0o777 == 0o600
    assert [exchange.request["step"] for exchange in read(path)] == list(range(1, 41))


async def test_every_cut_of_a_cassette_and_every_changed_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "a.cassette"
    await record(path, Streams(reply()), question())
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        with pytest.raises(ConfigError, match=r"cut off|is no cassette"):
            read(path)
    for at in range(0, len(whole), 7):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(ConfigError) as caught:
            read(path)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is no cassette"),
        (b"\x89PNG\r\n", "is no cassette"),
        (b'{"format": "other"}\n', "is no cassette"),
        (b"[" * 100_000, "is no cassette"),
        (
            b'{"format": "kinfold-cassette", "version": 2}\n{"new": 1}\n',
            "is of version 2, and this kinfold reads up to 1",
        ),
        (b'{"format": "kinfold-cassette", "version": null}\n', "no version"),
        (b'{"format": "kinfold-cassette", "version": 1}\n', "cut off"),
    ],
)
def test_what_is_no_cassette_of_ours_is_one_error_with_a_hint(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.cassette"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as caught:
        ReplayModel(path)
    assert caught.value.hint
    with pytest.raises(ConfigError, match="No such file"):
        ReplayModel(tmp_path / "absent")


def test_a_cassette_without_an_exchange_or_with_a_senseless_one_is_refused(tmp_path: Path) -> None:
    assert Writer(tmp_path / "empty").close() == "no model was asked"
    assert not list(tmp_path.iterdir())
    end = {"exchanges": 0, "sha256": hashlib.sha256(HEADER).hexdigest()}
    (tmp_path / "empty").write_bytes(HEADER + json.dumps({"end": end}).encode() + b"\n")
    with pytest.raises(ConfigError, match="no exchange was recorded"):
        read(tmp_path / "empty")
    tape = Writer(tmp_path / "odd")
    tape._write(
        [{"exchange": 1, "model": "m", "request": {"system": [9], "messages": [], "tools": None}, "stream": []}]
    )
    tape._exchanges = 1
    tape.close()
    with pytest.raises(ConfigError, match="makes no sense"):
        read(tmp_path / "odd")


async def test_a_recording_replaces_nothing_and_one_that_fails_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.cassette"
    path.write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        Writer(path)
    with pytest.raises(ConfigError, match="cannot be recorded into"):
        Writer(tmp_path / "absent" / "a.cassette")
    tape = Writer(tmp_path / "b.cassette")
    with pytest.raises(ConfigError, match=r"b\.cassette\.partial is there already") as caught:
        Writer(tmp_path / "b.cassette")
    assert "another task records into it now" in caught.value.hint

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    assert (await heard(RecordingModel(Streams(reply()), tape), question()))[-1] == reply()
    assert tape.close() == "No space left on device"
    monkeypatch.undo()
    assert sorted(found.name for found in tmp_path.iterdir()) == ["a.cassette"]
    assert path.read_text() == "mine"


BASE: dict[str, Any] = {
    "system": [], "messages": [], "tools": None, "run_kind": "main", "label": None, "subagent_type": None,
    "purpose": "step", "step": 1,
}  # fmt: skip


def written(path: Path, *lines: dict[str, Any]) -> Path:
    """A cassette made by hand, its digest right."""
    data = b"".join(
        json.dumps(line).encode() + b"\n" for line in ({"format": "kinfold-cassette", "version": 1}, *lines)
    )
    end = {"exchanges": sum("exchange" in line for line in lines), "sha256": hashlib.sha256(data).hexdigest()}
    path.write_bytes(data + json.dumps({"end": end}).encode() + b"\n")
    return path


@pytest.mark.parametrize(
    "line",
    [
        {"exchange": 1, "model": "m", "request": BASE, "stream": ["x"]},
        {"exchange": 1, "model": "m", "request": {"system": 5}, "stream": [{"left": True}]},
        {"exchange": 1, "model": "m", "request": [], "stream": [{"left": True}]},
        {"exchange": 1, "model": "m", "request": BASE, "stream": []},
        {"exchange": 1, "model": "m", "request": BASE, "stream": {"left": True}},
    ],
)
def test_a_cassette_written_by_hand_that_makes_no_sense_is_refused_with_a_hint(tmp_path: Path, line: Any) -> None:
    with pytest.raises(ConfigError, match="makes no sense") as caught:
        ReplayModel(written(tmp_path / "c", line))
    assert "record it again" in caught.value.hint


def test_what_a_request_leaves_out_has_its_default_when_it_is_read(tmp_path: Path) -> None:
    short = {name: value for name, value in BASE.items() if name in ("system", "messages", "tools")}
    twice = [{"exchange": 1, "model": "m", "request": short, "stream": [{"left": True}]} for _ in range(2)]
    assert len(ReplayModel(written(tmp_path / "c", *twice)).unasked) == 2


def test_a_hostile_text_is_looked_through_for_keys_in_no_time() -> None:
    for text in ("-eyJ" * 250_000, " eyJ" * 250_000, "eyJ" + "a." * 500_000, "-----BEGIN PRIVATE KEY-----\n" * 40_000):
        began = time.monotonic()
        KEY_SHAPES.sub("", text)
        assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"raw": True}},
        {"type": "object", "default": {"raw": "x", "type": "sk-ant-" + "a" * 30}},
    ],
)
def test_a_tools_schema_may_use_the_words_of_the_format(tmp_path: Path, schema: dict[str, Any]) -> None:
    tape = Writer(tmp_path / "c")
    tape.add(
        "m", ModelRequest(system=(), messages=(), tools=(ToolSpec(name="x", description="d", input_schema=schema),)), []
    )
    assert tape.close() is None
    assert "sk-ant-" not in (tmp_path / "c").read_text()
