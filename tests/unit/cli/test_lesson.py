"""The lesson on context isolation, by the figures that it is there to show."""

from __future__ import annotations

import pytest

from kinfold.cli.lesson import Lesson, learn, show
from kinfold.cli.lesson_archive import LENGTHS

pytestmark = pytest.mark.anyio


def within(value: float, target: float, share: float) -> bool:
    return abs(value - target) <= share * target


def sent(lesson: Lesson) -> int:
    """Tokens of all the main agent's requests: what stands in the context is sent again with each."""
    return sum(row.as_sent for row in lesson.lane("main"))


async def test_delegating_keeps_the_main_context_a_twentieth_of_searching_inline(
    capsys: pytest.CaptureFixture[str],
) -> None:
    delegated, inline = await learn(), await learn(inline=True)
    main, lane, all_of_it = delegated.lane("main"), delegated.lane("subagent"), inline.lane("main")
    assert within(main[-1].card_text, 90, 0.15)
    assert within(all_of_it[-1].card_text, 2128, 0.10)
    assert within(lane[-1].card_text, 2100, 0.10)
    assert 20 <= all_of_it[-1].card_text / main[-1].card_text <= 28
    assert len(main) == 2, "main moves at the plan and at the answer to the merged summary, and never between"
    start = main[0].card_text
    for row, expected in zip(all_of_it[1:], (432, 1004, 1396, 2088), strict=True):
        assert within(row.card_text - start, expected, 0.10)
    assert "1987" in delegated.answer and "1987" in inline.answer
    show(delegated)
    assert capsys.readouterr().out.splitlines()[-1] == f"main = {main[-1].card_text} tok"
    assert 4 * sent(delegated) < sent(inline), "instructions and tools' schemas are sent too, `task`'s among them"


async def test_the_figures_follow_the_pages() -> None:
    short = await learn(inline=True)
    long = await learn(inline=True, lengths={**LENGTHS, "Northlight": LENGTHS["Northlight"] + 400})
    for then, now in (
        (short.rows[-1].card_text, long.rows[-1].card_text),
        (short.rows[-1].as_sent, long.rows[-1].as_sent),
    ):
        assert within(now - then, 400, 0.10)


async def test_a_constraint_that_the_prompt_lacks_gives_a_confident_wrong_answer_and_a_warning() -> None:
    delegated, inline = await learn(context_dependent=True), await learn(context_dependent=True, inline=True)
    assert "1989" in delegated.answer
    assert "1974" in inline.answer and not inline.warnings
    assert '"2011 original"' in delegated.warnings[0]
