"""What a task hands back when its main run is over: the run's result, and what was copied out or was not."""

from __future__ import annotations

from collections.abc import Sequence

from kinfold.agent.run import RunResult
from kinfold.errors import SandboxError
from kinfold.messages import Artifact, ErrorInfo, Usage
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tasks.main_run import MainRun
from kinfold.tasks.out import Copied, OutDirectory
from kinfold.tasks.result import TaskResult


async def copied_out(out: OutDirectory | None, artifacts: Sequence[Artifact], sandbox: Sandbox) -> Copied:
    """The artifacts in that directory; what could not be copied is a problem of the result's."""
    if out is None or not artifacts:
        return Copied()
    try:
        return await out.take(artifacts, sandbox)
    except SandboxError as error:
        return Copied(problems=[f"the sandbox failed while artifacts were copied out: {error.message}"])


def result_of(
    task_id: str, run: RunResult, main: MainRun, sandbox: Sandbox, *, copied: Copied, taped: Sequence[str]
) -> TaskResult:
    """The whole result of a run that came to an end, whichever."""
    return TaskResult(
        task_id=task_id,
        status=run.status,
        ended_by=run.ended_by,
        summary=run.summary,
        artifacts=run.artifacts,
        skipped=run.skipped,
        steps=run.steps,
        usage=main.usage(run.usage),
        cost=run.cost,
        records=main.records,
        warnings=(*not_enforced(sandbox), *run.warnings, *taped, *copied.problems, *copied.left_out),
        salvage=run.salvage,
        error=run.error or _copy_error(copied),
        workspace=sandbox.ref.workspace,
        out=tuple(copied.files),
    )


def result_of_bug(task_id: str, main: MainRun, sandbox: Sandbox, error: Exception) -> TaskResult:
    """For what neither the model nor the sandbox did; the traceback is in the program's log."""
    return TaskResult(
        task_id=task_id,
        status="error",
        ended_by="internal_error",
        summary="",
        steps=0,
        usage=main.usage(Usage()),
        records=main.records,
        error=ErrorInfo(code="internal_error", message=f"{type(error).__name__}: {error}", hint="a bug in kinfold"),
        workspace=sandbox.ref.workspace,
    )


def not_enforced(sandbox: Sandbox) -> list[str]:
    """A line for every control that does not hold here."""
    return [f"{control.name} is not enforced here: {control.reason}" for control in sandbox.not_enforced]


def _copy_error(copied: Copied) -> ErrorInfo | None:
    if not copied.problems:
        return None
    message = f"not everything was copied out: {copied.problems[0]}"
    return ErrorInfo(code="out_incomplete", message=message, hint="the files are in the workspace")
