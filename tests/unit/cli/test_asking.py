"""A person at the terminal: what stands there, and what a typed line means. On a real pseudo-terminal."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import anyio
import pytest

from kinfold.cli.asking import Terminal, people_for
from kinfold.tools.people import Answer, Asked

pytestmark = pytest.mark.anyio

ASKED = Asked(id="c", kind="question", text="Which?\x1b[2J", choices=("one", "two"), assumption="one", timeout=30)
CONFIRM = replace(ASKED, kind="confirm", text="Publish", choices=("yes", "no"), assumption="no")


class Desk:
    """A terminal with a person at its other end."""

    def __init__(self, source: int, person: int) -> None:
        self.person = person
        self.shown = io.StringIO()
        self.calm = 0
        self.terminal = Terminal(calm=self._calm, source=os.fdopen(source, "r"), target=self.shown)

    @contextmanager
    def _calm(self) -> Iterator[None]:
        self.calm += 1
        yield

    def types(self, text: str) -> None:
        os.write(self.person, text.encode())


@pytest.fixture
def desk() -> Iterator[Desk]:
    person, source = os.openpty()
    desk = Desk(source, person)
    yield desk
    desk.terminal.source.close()
    os.close(person)


@pytest.mark.parametrize(
    ("asked", "typed", "answer"),
    [
        (ASKED, "2\n", "two"),
        (ASKED, "9\n", "9"),
        (ASKED, "\n", "one"),
        (ASKED, "neither of them\n", "neither of them"),
        (CONFIRM, "Y\n", "yes"),
        (CONFIRM, "what?\n\nno\n", "no"),
    ],
)
async def test_a_typed_line_is_a_number_own_words_or_a_plain_yes_or_no(
    desk: Desk, asked: Asked, typed: str, answer: str
) -> None:
    desk.types(typed)
    with anyio.fail_after(5):
        assert await desk.terminal(asked) == Answer(text=answer)
    assert desk.calm == 1


async def test_the_question_shows_options_and_what_holds_without_an_answer_and_cannot_draw(desk: Desk) -> None:
    desk.types("\n")
    await desk.terminal(ASKED)
    shown = desk.shown.getvalue()
    assert "\x1b" not in shown
    assert "? Which?\\x1b[2J\n  1. one\n  2. two\n" in shown
    assert "without an answer in 30 s: one" in shown


async def test_at_the_deadline_the_terminal_is_free_again(desk: Desk) -> None:
    with anyio.move_on_after(0.05) as bound:
        await desk.terminal(ASKED)
    assert bound.cancelled_caught
    assert desk.shown.getvalue().endswith("(no longer waited for)\n")
    desk.types("1\n")
    assert await desk.terminal(ASKED) == Answer(text="one")


async def test_a_closed_standard_input_is_nobody(desk: Desk) -> None:
    desk.types("\x04")  # Ctrl-D
    assert await desk.terminal(ASKED) is None


async def test_without_a_terminal_and_without_a_policy_there_is_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    calm = pytest.fail
    assert people_for(None, calm) is None
    assert people_for("deny", calm) is not None
