"""A secret is hidden in every event, wherever it is cut and in whatever common spelling; the rest is shown at once."""

from __future__ import annotations

import base64
import json
import urllib.parse
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfold.events import Heartbeat, RunEnded, StepStarted, TaskEnded, TextDelta, ToolEnded, ToolOutput
from kinfold.tasks.log import EventLog
from kinfold.tasks.redaction import HIDDEN, Redaction

SECRET = 'k/9f+"Zq7~ä-canary'
BEFORE, AFTER = "the key is ", ", and k/9f is not"
ENCODERS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "json": lambda text: json.dumps(text),
    "url": lambda text: urllib.parse.quote(text, safe=""),
    "form": urllib.parse.quote_plus,
    "hex": lambda text: text.encode().hex(),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "url-safe base64": lambda text: base64.urlsafe_b64encode(text.encode()).decode(),
}


def shown(pieces: list[str], *secrets: str) -> tuple[str, list[str]]:
    """What a stream shows in all, and by piece."""
    stream = Redaction(secrets).pieces()
    parts = [stream.add(piece) for piece in pieces] + [stream.end()]
    return "".join(parts), parts


@pytest.mark.threat("S03")
def test_a_secret_is_hidden_at_every_cut_into_two_and_three() -> None:
    text = BEFORE + SECRET + AFTER + SECRET
    whole = BEFORE + HIDDEN + AFTER + HIDDEN
    assert Redaction([SECRET]).whole(text) == whole
    for first in range(len(text) + 1):
        assert shown([text[:first], text[first:]], SECRET)[0] == whole
        for second in range(first, len(text) + 1, 3):
            assert shown([text[:first], text[first:second], text[second:]], SECRET)[0] == whole
    assert shown(list(text), SECRET)[0] == whole


@pytest.mark.threat("S03")
@pytest.mark.parametrize("encoder", ENCODERS)
@pytest.mark.parametrize("before", ["", "x", "xy", "user:"])
def test_a_secret_is_hidden_in_common_spellings_wherever_it_lies_in_what_was_encoded(encoder: str, before: str) -> None:
    text = ENCODERS[encoder](f"{before}{SECRET}:behind")
    for secret in (SECRET, "another-secret-0815"):
        hidden = Redaction([SECRET, secret]).whole(text)
        assert HIDDEN in hidden
        assert "canary" not in hidden and "9f" not in hidden
    for cut in range(len(text)):
        assert shown([text[:cut], text[cut:]], SECRET)[0] == Redaction([SECRET]).whole(text)


def test_what_cannot_be_a_secrets_beginning_is_shown_at_once() -> None:
    assert shown(["all of this.", " now k", "ept back."], SECRET)[1] == ["all of this.", " now ", "kept back.", ""]


def test_a_secret_that_begins_as_another_hides_both() -> None:
    for text in ("abcdefgh", "abcd", "xabcdx", "abcdabcdefgh"):
        for cut in range(len(text)):
            found, _ = shown([text[:cut], text[cut:]], "abcd", "abcdefgh")
            assert "abcd" not in found and "efgh" not in found


def test_a_text_that_is_cut_off_inside_a_secret_does_not_show_its_beginning() -> None:
    assert Redaction([SECRET]).whole(BEFORE + SECRET[:-1]) == BEFORE + HIDDEN
    assert shown([BEFORE, SECRET[:-1]], SECRET)[0] == BEFORE + HIDDEN
    assert Redaction([SECRET]).whole("ends in k/9") == "ends in k/9"


@given(st.lists(st.text(alphabet="abc", max_size=6), max_size=8), st.lists(st.text("abc", min_size=4, max_size=6)))
def test_no_cutting_shows_what_the_whole_hides(pieces: list[str], secrets: list[str]) -> None:
    found, _ = shown(pieces, *secrets)
    assert not any(secret in found for secret in secrets)
    if not secrets:
        assert found == "".join(pieces)


@pytest.mark.anyio
@pytest.mark.threat("S03")
async def test_in_the_log_a_secret_split_over_events_of_one_text_is_hidden_whatever_lies_between() -> None:
    for cut in range(1, len(SECRET)):
        log = EventLog(secrets=[SECRET])
        ids: dict[str, Any] = {"task_id": "t", "run_id": "r"}
        outputs = [ToolOutput(call_id="c", stream="stdout", text=part, **ids) for part in (SECRET[:cut], SECRET[cut:])]
        texts = [TextDelta(text=part, **ids) for part in (SECRET[:cut], SECRET[cut:] + " over")]
        await log.append(texts[0])
        await log.append(Heartbeat(elapsed=1, since_progress=1, **ids))
        await log.append(TextDelta(text="of another", task_id="t", run_id="other"))
        await log.append(texts[1])
        await log.append(StepStarted(step=2, **ids))
        await log.append(outputs[0])
        await log.append(ToolOutput(call_id="c", stream="stderr", text="between", **ids))
        await log.append(outputs[1])
        await log.append(ToolEnded(tool="bash", call_id="c", is_error=False, duration=1, preview=SECRET[:-1], **ids))
        assert [event.seq for event in log.events] == list(range(1, len(log.events) + 1))
        said = [event.text for event in log.events if isinstance(event, TextDelta) and event.run_id == "r"]
        assert "".join(said) == f"{HIDDEN} over"
        out = [event.text for event in log.events if isinstance(event, ToolOutput) and event.stream == "stdout"]
        assert "".join(out) == HIDDEN
        assert isinstance(log.events[-1], ToolEnded) and log.events[-1].preview == HIDDEN


@pytest.mark.anyio
async def test_what_was_held_back_comes_before_the_event_that_ends_it() -> None:
    log = EventLog(secrets=[SECRET])
    assert await log.append(TextDelta(text="k", task_id="t", run_id="r")) is None
    assert await log.append(TextDelta(text="/", task_id="t", run_id="s")) is not None
    await log.append(RunEnded(status="completed", ended_by="text", steps=1, summary="s", task_id="t", run_id="r"))
    await log.append(TaskEnded(status="completed", ended_by="text", steps=1, task_id="t"))
    assert [(event.type, getattr(event, "text", "")) for event in log.events] == [
        ("text_delta", "/"),
        ("text_delta", "k"),
        ("run_ended", ""),
        ("task_ended", ""),
    ]


@pytest.mark.parametrize(
    ("secrets", "text", "shown"),
    [
        (["hunter2-hunter2"], "x [… 9 bytes] hunter2-hunter2 tail", "x [… 9 bytes] [secret] tail"),
        (["AKxyzabcd", "abcdEFGH12345"], "[… 9 bytes]abcdEFGH12345 z", "[… 9 bytes][secret] z"),
        (["AKxyzabcd"], "[… 9 bytes]zabcd z", "[… 9 bytes][secret] z"),
    ],
)
def test_a_whole_secret_behind_a_cut_is_hidden_whole_though_it_begins_like_ones_end(
    secrets: list[str], text: str, shown: str
) -> None:
    assert Redaction(secrets).whole(text) == shown
