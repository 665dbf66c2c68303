"""Each case of the release gate has a test that runs with every change."""

from __future__ import annotations

from tests.hostile.release_gate import CASES, GATE, carried


def test_a_test_carries_cases_of_the_list_only() -> None:
    unknown = {test.where: test.cases for test in carried() if not test.cases or not CASES.issuperset(test.cases)}
    assert unknown == {}


def test_the_release_gate_has_61_rows_of_the_list() -> None:
    assert len(GATE) == len(set(GATE)) == 61
    assert CASES.issuperset(GATE)


def test_every_row_of_the_gate_has_a_test_that_runs_with_every_change() -> None:
    have = {case for test in carried() if not test.slow for case in test.cases}
    assert sorted(set(GATE) - have) == []
