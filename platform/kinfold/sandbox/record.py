"""What is noted of one sandbox, and how that may change: the same rules for every place where records are kept.

The transitions here are pure. A keeper of records reads the current one, applies a transition and writes the outcome,
all in one step that nobody else can come between; that makes every change a compare-and-set.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict

from kinfold.errors import ConfigError, LeaseLost, NotFound
from kinfold.sandbox.owner import Owner

State = Literal["intended", "adopted", "ending", "released", "gone"]
_ID = re.compile(r"sbx_[0-9a-f]{16}\Z")
KEPT_GONE = 1000
"""How many records of sandboxes of which nothing is left are kept, for whoever asks what became of one."""


class SandboxRecord(BaseModel):
    """What is known of one sandbox, whatever became of its container."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    id: str
    provider: str
    instance: str
    engine: str = ""
    """The engine's own id: another engine's containers are never looked for here."""
    name: str = ""
    spec_hash: str = ""
    spec: dict[str, Any] = {}
    """The `SandboxSpec` without its secrets."""
    state: State = "intended"
    """`ending`: claimed by who removes it. `released`: only its workspace is left. `gone`: nothing is, but this."""
    generation: int = 1
    """Whose hold: one more with each new owner and each claim. A holder's changes count for its own hold only."""
    revision: int = 1
    """One more with every change: a claim is for the record as it was looked at."""
    handle: str = ""
    parts: dict[str, str] = {}
    """How its container was made, as a digest per part: whoever connects compares."""
    image: str = ""
    workspace: str = ""
    made: bool = True
    """Whether kinfold made the workspace; a given one is never removed."""
    owner: Owner
    detached: bool = False
    pooled: bool = False
    """Kept warm for a claim, by which it becomes an ordinary one."""
    labels: dict[str, str] = {}
    created_at: float
    """Seconds since the epoch, as are the other times."""
    expires_at: float | None = None
    """The lease's end; None: as long as the owner lives."""
    abandoned_at: float | None = None
    """When its owner was found dead; a new owner makes it None again."""
    reason: str = ""
    """Why it ended, in words; empty while it lives."""
    claimed_by: Owner | None = None
    """Who is removing it."""
    ended_at: float | None = None
    """When the first claim was made, or the release where there was none."""
    keep_until: float | None = None
    """Of a released record: when its workspace may go."""

    @property
    def live(self) -> bool:
        """Whether nobody has begun to end it."""
        return self.state in ("intended", "adopted")

    @property
    def abandoned(self) -> bool:
        """Whether it lives and its owner is provably dead."""
        return self.live and not self.detached and self.owner.fate() == "dead"

    @property
    def resumable_until(self) -> float | None:
        """Until when one whose owner was found dead waits for another; None where that was not seen yet."""
        if self.abandoned_at is None:
            return None
        until = self.abandoned_at + self._resume_ttl
        return until if self.expires_at is None else min(until, self.expires_at)

    def waits(self, now: float) -> bool:
        """Whether, should its owner be dead, another may still take it over."""
        if self.state != "adopted" or not self._resume_ttl or self.expired(now):
            return False
        return self.resumable_until is None or now < self.resumable_until

    @property
    def _resume_ttl(self) -> float:
        return float(self.spec.get("resume_ttl") or 0.0)

    def expired(self, now: float | None = None) -> bool:
        """Whether the lease is over."""
        return self.expires_at is not None and self.expires_at <= (time.time() if now is None else now)


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenRecord:
    """A record, or a whole store of them, that cannot be read: reported, never trusted."""

    source: str
    reason: str
    whole: bool = False
    """Not one record, but a place of records: nothing of what it holds is known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordList:
    """What `Records.list` found, the oldest first."""

    records: tuple[SandboxRecord, ...]
    broken: tuple[BrokenRecord, ...] = ()


def adopted(current: SandboxRecord, wanted: SandboxRecord) -> SandboxRecord:
    """`wanted` in place of `current`, which its writer had read; another owner makes it another hold.

    A pooled one is claimed as it was read: of two claims one goes through.
    """
    _check_hold(current, wanted)
    if current.pooled and not wanted.pooled and current.revision != wanted.revision:
        raise LeaseLost(f"warm sandbox {current.id} changed meanwhile: {_standing(current)}")
    step = 0 if wanted.owner == current.owner else 1
    return wanted.model_copy(
        update={"state": "adopted", "generation": current.generation + step, "revision": current.revision + 1}
    )


def renewed(current: SandboxRecord, held: SandboxRecord, expires_at: float | None) -> SandboxRecord:
    """The lease's new end, for whoever still holds it."""
    _check_hold(current, held)
    return current.model_copy(update={"expires_at": expires_at, "revision": current.revision + 1})


def claimed(current: SandboxRecord, seen: SandboxRecord, by: Owner, reason: str) -> SandboxRecord:
    """Marked as being removed by `by`, if it still is what the claimer saw. The first reason stays."""
    if current.revision != seen.revision or current.state == "gone":
        raise LeaseLost(f"sandbox {current.id} changed meanwhile: {_standing(current)}")
    return current.model_copy(
        update={
            "state": "ending",
            "generation": current.generation + 1,
            "revision": current.revision + 1,
            "claimed_by": by,
            "reason": current.reason or reason,
            "ended_at": current.ended_at or time.time(),
        }
    )


def released(current: SandboxRecord, held: SandboxRecord, keep_until: float | None) -> SandboxRecord:
    """The container is gone; with `keep_until` the workspace is not. What is gone already stays so."""
    if current.state == "gone":
        return current
    if current.generation != held.generation:
        raise LeaseLost(f"sandbox {current.id} is another's to release: {_standing(current)}")
    return current.model_copy(
        update={
            "state": "gone" if keep_until is None else "released",
            "revision": current.revision + 1,
            "keep_until": keep_until,
            "claimed_by": None,
            "reason": current.reason or held.reason,
            "ended_at": current.ended_at or time.time(),
        }
    )


def _check_hold(current: SandboxRecord, held: SandboxRecord) -> None:
    if not current.live or current.generation != held.generation:
        raise LeaseLost(
            f"sandbox {current.id} is not held any more: {_standing(current)}", hint="`kinfold sandbox list --all`"
        )


def _standing(record: SandboxRecord) -> str:
    """How a record stands, in words for an error."""
    if record.live:
        return f"{record.owner.describe()} holds it"
    who = f", removed by {record.claimed_by.describe()}" if record.claimed_by else ""
    return f"{record.state}{who}: {record.reason or 'no reason was noted'}"


def checked_id(id: str) -> str:
    """`id`, if it can be one: nothing else becomes part of a path or a query. Raises `NotFound`."""
    if not _ID.match(id):
        raise NotFound(f"{id!r} is not a sandbox id", hint="ids look like sbx_0123456789abcdef")
    return id


def unknown(id: str) -> NotFound:
    """The error for a record that is not there, or cannot be read."""
    return NotFound(f"no readable record of sandbox {id}", hint="`kinfold sandbox list --all` shows what is known")


def name_taken(held: SandboxRecord) -> ConfigError:
    """The error for a name that another live sandbox has."""
    return ConfigError(
        f"a sandbox named {held.name!r} exists ({held.id})",
        hint=f"`kinfold sandbox destroy {held.name}`, or choose another name",
    )
