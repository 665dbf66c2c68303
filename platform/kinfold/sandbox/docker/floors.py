"""Versions below which an engine's parts have known holes that matter to a sandbox. One table; it warns, no more.

What an engine enforces is measured, not read from a version. But a hole cannot be measured without going through it,
and so here the number has to do.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from kinfold.sandbox.docker.client import EngineFacts

Version = tuple[int, int, int, float]
"""Major, minor, patch, and the number of a pre-release; infinity for the release itself."""
_VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:[-~](?:rc|beta|alpha)\.?(\d{1,6}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """One part of an engine."""

    component: str
    fixed: tuple[str, ...]
    """The first good version of each line that has one, ascending; a line after the last is good, others are not."""
    reason: str


FLOORS = (
    Floor(
        component="runc",
        fixed=("1.2.8", "1.3.3", "1.4.3"),
        reason="a container can write to the host's /proc by racing its own mounts (CVE-2025-31133, CVE-2025-52565, "
        "CVE-2025-52881; in 1.4 also CVE-2026-41579)",
    ),
    Floor(
        component="containerd",
        fixed=("1.6.38", "1.7.27", "2.0.4"),
        reason="a user id beyond 31 bits becomes root (CVE-2024-40635)",
    ),
    Floor(
        component="engine",
        fixed=("29.7",),
        reason="its own filter lets system calls through that later ones refuse (io_uring, AF_VSOCK, AF_ALG: "
        "CVE-2026-31431); what holds them is kinfold's second filter alone",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outdated:
    """A part that is below its floor, or does not say its version."""

    component: str
    version: str
    floor: Floor

    def describe(self) -> str:
        """For a person."""
        wanted = " or ".join(self.floor.fixed)
        if parse(self.version) is None:
            return (
                f"{self.component} names no version that can be read ({self.version}); it should be {wanted} or later"
            )
        return f"{self.component} {self.version} is older than {wanted}: {self.floor.reason}"


def parse(text: str) -> Version | None:
    """The version that `text` begins with; what a distribution appends is ignored. None where there is none."""
    found = _VERSION.match(text.strip())
    if found is None:
        return None
    major, minor, patch, candidate = found.groups()
    return int(major), int(minor), int(patch or 0), float(candidate) if candidate is not None else float("inf")


def outdated(facts: EngineFacts) -> tuple[Outdated, ...]:
    """The parts that the engine names and that are below their floor."""
    versions = {"engine": facts.version, **dict(facts.components)}
    return tuple(
        Outdated(component=floor.component, version=versions[floor.component], floor=floor)
        for floor in FLOORS
        if floor.component in versions and not _holds(versions[floor.component], floor)
    )


def _holds(text: str, floor: Floor) -> bool:
    version = parse(text)
    if version is None:
        return False
    fixed = [known for known in map(parse, floor.fixed) if known is not None]
    if version[:2] > fixed[-1][:2]:
        return True
    return any(version[:2] == known[:2] and version >= known for known in fixed)
