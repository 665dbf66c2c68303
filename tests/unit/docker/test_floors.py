"""`kinfold doctor` warns of parts with known holes: by the engine's own answer, however a distribution spells it."""

from __future__ import annotations

from typing import Any

import pytest

from kinfold.sandbox.docker.client import read_facts
from kinfold.sandbox.docker.floors import FLOORS, outdated, parse


def _answer(**versions: str) -> dict[str, Any]:
    parts = [{"Name": name, "Version": version, "Details": {}} for name, version in versions.items()]
    return {"ApiVersion": "1.41", "Version": versions.get("Engine", "99.0"), "Components": parts}


@pytest.mark.threat("H07")
@pytest.mark.parametrize(
    ("runc", "holds"),
    [
        ("1.1.5+ds1", False), ("1.1.99", False), ("1.2.7", False), ("1.2.8", True), ("v1.2.9-1~deb13u1", True),
        ("1.3.2", False), ("1.3.3", True), ("1.4.0-rc.3", False), ("1.4.3-rc.1", False), ("1.4.3~rc1", False),
        ("1.4.3+ds1", True), ("1.4.10", True), ("1.5.0", True), ("2.0", True), ("0.1.1", False), ("", False),
        ("unknown", False), ("\x1b[31m1.9", False), ("9" * 5000, False),
    ],
)  # fmt: skip
def test_a_runtime_is_warned_of_unless_its_line_has_the_fix(runc: str, holds: bool) -> None:
    facts = read_facts({}, _answer(Engine="99.0", containerd="99.0.0", runc=runc))
    assert (outdated(facts) == ()) is holds


@pytest.mark.threat("H07")
def test_a_warning_names_the_part_its_version_the_floor_and_the_reason() -> None:
    facts = read_facts({}, _answer(Engine="20.10.24+dfsg1", containerd="1.6.20~ds1", runc="1.1.5+ds1"))
    old = {part.component: part.describe() for part in outdated(facts)}
    assert list(old) == ["runc", "containerd", "engine"]
    assert old["runc"].startswith("runc 1.1.5+ds1 is older than 1.2.8 or 1.3.3 or 1.4.3: ")
    assert "CVE-2024-40635" in old["containerd"]
    assert "29.7" in old["engine"]


@pytest.mark.threat("H07")
def test_a_part_that_an_engine_does_not_have_is_not_warned_of() -> None:
    assert outdated(read_facts({}, {"ApiVersion": "1.41", "Version": "29.7.0"})) == ()


def test_every_floor_is_a_version_and_the_lines_ascend() -> None:
    for floor in FLOORS:
        versions = [parse(text) for text in floor.fixed]
        assert None not in versions
        assert versions == sorted(version for version in versions if version is not None)
