"""The cases that hostile code and faults must not win, by their ids, and which test carries which.

A test carries a case by `@pytest.mark.threat("P04")`, or several. The ids are those of the threat list: P paths,
O ownership, H flags, R resources, K processes and the supervisor, N network, C control plane, F crashes,
G garbage, S secrets.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

TESTS = Path(__file__).parents[1]

_LAST = {"P": 19, "O": 5, "H": 10, "R": 16, "K": 13, "N": 7, "C": 9, "F": 9, "G": 4, "S": 6}
CASES = {f"{area}{number:02}" for area, last in _LAST.items() for number in range(1, last + 1)}

_IN_THE_GATE = {
    "P": (*range(1, 16), 17, 18, 19),
    "O": (1, 2, 3, 4),
    "H": (1, 2, 3, 4, 5, 6, 8),
    "R": (1, 2, 3, 4, 5, 7, 9, 10, 12, 14),
    "K": (1, 2, 3, 5, 6, 7, 8, 10, 11),
    "N": (1, 2, 3, 4, 5),
    "C": (5, 8),
    "F": (1, 4, 5),
    "G": (1,),
    "S": (1, 2),
}
GATE = tuple(f"{area}{number:02}" for area, numbers in _IN_THE_GATE.items() for number in numbers)
"""What no release goes without: each has a test that runs with every change, not only among the slow ones."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Carried:
    """One test function that carries cases."""

    where: str
    """File and function, for a message."""
    cases: tuple[str, ...]
    slow: bool


def carried() -> Iterator[Carried]:
    """Every test function under tests/ with the marker `threat`, read without importing it."""
    for path in sorted(TESTS.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                markers = [_marker(decorator) for decorator in node.decorator_list]
                names = {name for name, _ in markers}
                if "threat" in names:
                    where = f"{path.relative_to(TESTS)}::{node.name}"
                    cases = tuple(case for name, words in markers if name == "threat" for case in words)
                    yield Carried(where=where, cases=cases, slow="slow" in names)


def _marker(decorator: ast.expr) -> tuple[str, tuple[str, ...]]:
    call = decorator if isinstance(decorator, ast.Call) else None
    name = ast.unparse(call.func if call else decorator)
    words = tuple(ast.literal_eval(argument) for argument in call.args) if call and name.endswith(".threat") else ()
    return name.removeprefix("pytest.mark.") if name.startswith("pytest.mark.") else "", words
