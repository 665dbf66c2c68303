"""The tools `ask_user_question` and `confirm`, and the policies that answer without a person."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import anyio
import pytest
from tests.unit.tools.bench import Bench, text_of

from kinfold.errors import ConfigError
from kinfold.events import Answered, Question
from kinfold.tools import policy
from kinfold.tools.people import Answer, Answerer, Asked, People
from kinfold.tools.registry import SHIPPED

pytestmark = pytest.mark.anyio

QUESTION = {"question": "Which film?", "options": ["2011", "2024"], "assumption": "2024"}


def says(text: str) -> Answerer:
    async def answer(asked: Asked) -> Answer:
        return Answer(text=text)

    return answer


async def nobody(asked: Asked) -> None:
    await anyio.sleep_forever()


async def put(name: str, arguments: Mapping[str, object], people: People | None) -> tuple[str, list[object], bool]:
    bench = Bench(None)
    outcome = await bench.answer(SHIPPED, name, arguments, people=people)
    return text_of(outcome), [e for e in bench.events if isinstance(e, (Question, Answered))], outcome.is_error


async def test_a_question_reaches_a_person_with_its_options_and_the_answer_stands_in_the_log() -> None:
    text, events, failed = await put("ask_user_question", QUESTION, People(answer=says("2011")))
    assert (text, failed) == ("The user answered: 2011", False)
    question, answered = events
    assert isinstance(question, Question)
    assert (question.question, question.choices, question.assumption) == ("Which film?", ("2011", "2024"), "2024")
    assert (question.call_id, question.kind, question.timeout) == ("call_1", "question", 300)
    assert isinstance(answered, Answered)
    assert (answered.call_id, answered.answer, answered.by) == ("call_1", "2011", "person")


async def test_at_the_deadline_the_result_says_that_nobody_answered_and_what_was_assumed() -> None:
    text, events, failed = await put("ask_user_question", QUESTION, People(answer=nobody, deadline=0.01))
    assert text.startswith("Nobody answered (at most 0.01 s were waited).") and text.endswith(": 2024")
    assert not failed
    assert isinstance(events[1], Answered)
    assert (events[1].answer, events[1].by) == ("2024", "nobody")


@pytest.mark.parametrize(
    ("answer", "words"),
    [(says("yes"), "Confirmed by the user."), (says("no"), "do not do it"), (says("sure"), "do not do it")],
)
async def test_only_a_plain_yes_confirms(answer: Answerer, words: str) -> None:
    assert words in (await put("confirm", {"action": "Publish it"}, People(answer=answer)))[0]


async def test_silence_does_not_confirm() -> None:
    text, events, _ = await put("confirm", {"action": "Publish it"}, People(answer=nobody, deadline=0.01))
    assert "it is not confirmed: do not do it" in text
    assert isinstance(events[1], Answered)
    assert events[1].answer == "no"


@pytest.mark.parametrize(("name", "arguments"), [("ask_user_question", QUESTION), ("confirm", {"action": "x"})])
async def test_where_there_are_no_people_the_call_is_refused(name: str, arguments: Mapping[str, object]) -> None:
    text, events, failed = await put(name, arguments, None)
    assert failed and "nobody to ask here" in text
    assert events == []


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("ask_user_question", {"question": "x"}),
        ("ask_user_question", {**QUESTION, "question": " "}),
        ("ask_user_question", {**QUESTION, "options": ["a", "a"]}),
        ("ask_user_question", {**QUESTION, "options": [""]}),
        ("confirm", {"action": " "}),
    ],
)
async def test_a_question_that_cannot_be_answered_is_never_put(name: str, arguments: Mapping[str, object]) -> None:
    text, events, failed = await put(name, arguments, People(answer=says("x")))
    assert failed, text
    assert events == []


async def test_a_policy_denies_or_takes_what_would_be_assumed_and_says_that_no_person_answered() -> None:
    deny, default = People(answer=policy.load("deny")), People(answer=policy.load("default"))
    assert "Nobody answered" in (await put("ask_user_question", QUESTION, deny))[0]
    assert (await put("ask_user_question", QUESTION, default))[0].endswith("no person: 2024")
    for people in (deny, default):
        assert "Not confirmed by a policy" in (await put("confirm", {"action": "x"}, people))[0]


async def test_a_file_of_answers_answers_by_the_first_pattern_that_fits(tmp_path: Path) -> None:
    path = tmp_path / "answers.toml"
    path.write_text(
        'otherwise = "default"\n[[answer]]\nmatch = "(?i)which FILM"\nanswer = "the original"\n'
        '[[answer]]\nmatch = "Publish"\nanswer = "Yes"\n'
    )
    people = People(answer=policy.load(str(path)))
    assert (await put("ask_user_question", QUESTION, people))[0].endswith(": the original")
    assert (await put("confirm", {"action": "Publish it"}, people))[0].startswith("Confirmed by a policy")
    assert "Not confirmed" in (await put("confirm", {"action": "Delete it"}, people))[0]
    other = {"question": "How?", "assumption": "slowly"}
    assert (await put("ask_user_question", other, people))[0].endswith(": slowly")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = ", "is not TOML"),
        ("[[answer]]\nmatch = '('\nanswer = 'x'\n", "answer.0.match: is not a regular expression"),
        ("[[answer]]\nmatch = 'x'\n", "answer.0.answer: Field required"),
        ("otherwise = 'allow'\n", "otherwise: Input should be 'deny' or 'default'"),
    ],
)
async def test_a_file_of_answers_that_is_wrong_is_the_operators_error(tmp_path: Path, text: str, reason: str) -> None:
    path = tmp_path / "answers.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as raised:
        policy.load(str(path))
    assert reason in raised.value.message
    assert str(path) in raised.value.message


async def test_a_word_that_is_no_policy_and_no_file_says_what_there_is() -> None:
    with pytest.raises(ConfigError) as raised:
        policy.load("allow")
    assert "deny, default, or a TOML file" in raised.value.hint
