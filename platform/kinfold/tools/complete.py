"""The tool `complete`: ends a run with a summary and the paths it delivers, each checked inside the container.

All claims are looked at in one round trip; each comes back as an artifact or as a skipped path with its reason.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pydantic import BaseModel, ConfigDict, Field, field_validator

from kinfold.errors import PathError, PathReason, ToolError
from kinfold.messages import Artifact, SkippedPath, SkipReason
from kinfold.sandbox.base import SCRATCH, WORKSPACE, FileStat
from kinfold.sandbox.workspace import is_under_root, normalize
from kinfold.tools import expected, provenance, words
from kinfold.tools.base import Completion, Tool, ToolContext, ToolOutcome
from kinfold.tools.names import shown
from kinfold.tools.spill import bounded_summary

MAX_CLAIMS = 1_000

SKIP_REASON: dict[PathReason, SkipReason] = {
    "path_escape": "symlink_escape",
    "not_found": "missing",
    "not_a_directory": "missing",
    "permission_denied": "unreadable",
    "not_regular": "not_regular",
    "is_directory": "not_regular",
    "too_large": "too_large",
    "invalid": "invalid",
    "conflict": "unreadable",
    "no_space": "unreadable",
}
"""What the container says of a claim → why it is not delivered. What its words alone rule out never gets there."""


class CompleteArguments(BaseModel):
    """The summary and the claims."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    summary: str = Field(
        description="Your conclusion, for a reader who saw nothing of your work.",
    )
    paths: list[str] = Field(
        default_factory=list,
        max_length=MAX_CLAIMS,
        description="Relative to the workspace, or absolute.",
    )

    @field_validator("summary")
    @classmethod
    def _says_something(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("must not be blank")
        return text


@dataclass(slots=True, kw_only=True)
class _Delivery:
    artifacts: list[Artifact] = field(default_factory=list)
    skipped: list[SkippedPath] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


async def _call(context: ToolContext, arguments: CompleteArguments) -> ToolOutcome | Completion:
    delivery = await _deliver(context, arguments.paths)
    objections = _objections(context, arguments.paths, delivery)
    if objections and not context.state.complete_refused:
        context.state.complete_refused = True
        raise ToolError(
            "Not completed yet: " + "; ".join(objections) + ".",
            hint="put it right and call complete again; called again as it is, it is accepted with a warning",
        )
    absent = await expected.absent(context)
    if absent and not context.state.outputs_refused:
        context.state.outputs_refused = True
        raise ToolError(
            f"Not completed yet: {len(absent)} of {len(context.expected_outputs)} expected outputs do not exist: "
            f"{', '.join(absent)}.",
            hint="write them and call complete again; called again as it is, it is accepted with a warning",
        )
    if absent:
        objections.append(f"expected outputs do not exist: {', '.join(absent)}")
    delivery.warnings += [f"complete was accepted although {objection}" for objection in objections]
    summary, cut = await bounded_summary(arguments.summary, sandbox=context.sandbox, run_id=context.run_id)
    return Completion(
        summary=summary,
        artifacts=tuple(delivery.artifacts),
        skipped=tuple(delivery.skipped),
        warnings=(*delivery.warnings, *cut),
    )


def _objections(context: ToolContext, claims: list[str], delivery: _Delivery) -> list[str]:
    objections = []
    if context.failed_siblings:
        count = context.failed_siblings
        objections.append(f"{'another call' if count == 1 else f'{count} other calls'} of this step failed")
    if claims and not delivery.artifacts:
        reasons = ", ".join(f"{shown(skipped.path[:200])}: {skipped.reason}" for skipped in delivery.skipped[:20])
        objections.append(f"none of the {len(claims)} claimed paths can be delivered ({reasons})")
    return objections


async def _deliver(context: ToolContext, claims: list[str]) -> _Delivery:
    """Look at every claim in one round trip; artifacts and skipped paths stand in the order of the claims."""
    delivery = _Delivery()
    checked = _by_words(claims, delivery)
    wanted = [path for path in checked if isinstance(path, str)]
    stats = iter(await context.sandbox.stat(wanted, digest=True, claim=True) if wanted else ())
    for claim, path in zip(claims, checked, strict=True):
        if isinstance(path, str):
            _record(context, delivery, claim, path, next(stats))
        else:
            delivery.skipped.append(path)
    if delivery.artifacts and (context.state.snapshot is None or context.state.snapshot.truncated):
        why = "was not taken" if context.state.snapshot is None else "has more entries than it can hold"
        delivery.warnings.append(f"the snapshot of the run's start {why}: whether a path changed is unknown")
    return delivery


def _by_words(claims: list[str], delivery: _Delivery) -> list[str | SkippedPath]:
    """Each claim's absolute path, or why its words alone rule it out."""
    seen: set[str] = set()
    checked: list[str | SkippedPath] = []
    for claim in claims:
        try:
            path = normalize(claim)
        except PathError as error:
            reason: SkipReason = "outside_workspace" if error.reason == "path_escape" else "invalid"
            checked.append(SkippedPath(path=claim, reason=reason))
            continue
        if path in seen:
            checked.append(SkippedPath(path=claim, reason="duplicate"))
        elif is_under_root(path, f"{WORKSPACE}/{SCRATCH}"):
            checked.append(SkippedPath(path=claim, reason="invalid"))
            delivery.warnings.append(f"{shown(claim)}: {SCRATCH} is scratch space and never delivered")
        else:
            checked.append(path)
        seen.add(path)
    return checked


def _record(context: ToolContext, delivery: _Delivery, claim: str, path: str, found: FileStat | PathError) -> None:
    if isinstance(found, PathError):
        delivery.skipped.append(SkippedPath(path=claim, reason=SKIP_REASON[found.reason]))
        return
    artifact = provenance.artifact(path, found, context.state)
    if artifact is None:
        delivery.skipped.append(SkippedPath(path=claim, reason="not_regular"))
        return
    if artifact.change == "unchanged":
        delivery.warnings.append(f"{shown(path)} was claimed, but did not change in this run")
    delivery.artifacts.append(artifact)


TOOL = Tool(
    key="complete", words=words.beside(__file__), arguments=CompleteArguments, call=_call, recover=_call, final=True
)
