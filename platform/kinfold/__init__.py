"""kinfold runs an agent and its subagents inside one disposable container, and gives back files that it has checked.

    import kinfold
    result = await kinfold.run("…", model="claude-sonnet-5", workspace="./project", out="./delivered")

Everything public is named in `__all__` and loaded when it is first used: importing this package is cheap.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfold.config import Tier
    from kinfold.definitions import SubagentDefinition, has_tool_call, text_matches, tokens_over
    from kinfold.errors import (
        ConfigError,
        EngineUnavailable,
        ImageMissing,
        KinfoldError,
        LeaseLost,
        LimitExceeded,
        ModelError,
        NotFound,
        PathError,
        SandboxError,
        SandboxLost,
        StartFailed,
        StoreError,
        ToolError,
        Unenforceable,
    )
    from kinfold.messages import Artifact, SkippedPath, SubagentRecord, TaskOutput, Usage
    from kinfold.sandbox.base import Limits, SandboxSpec
    from kinfold.tasks.result import RunLimits, TaskResult
    from kinfold.tasks.resume import ResumedTask, resume
    from kinfold.tasks.run import run, run_sync
    from kinfold.tasks.task import ParentTask
    from kinfold.tools.base import Tool, ToolContext, ToolOutcome
    from kinfold.tools.people import Answer, Asked, People

__version__ = "0.1.0"

_HOME = {
    "kinfold.config": ("Tier",),
    "kinfold.definitions": ("SubagentDefinition", "has_tool_call", "text_matches", "tokens_over"),
    "kinfold.errors": (
        "ConfigError", "EngineUnavailable", "ImageMissing", "KinfoldError", "LeaseLost", "LimitExceeded", "ModelError",
        "NotFound", "PathError", "SandboxError", "SandboxLost", "StartFailed", "StoreError", "ToolError",
        "Unenforceable",
    ),
    "kinfold.messages": ("Artifact", "SkippedPath", "SubagentRecord", "TaskOutput", "Usage"),
    "kinfold.sandbox.base": ("Limits", "SandboxSpec"),
    "kinfold.tasks.result": ("RunLimits", "TaskResult"),
    "kinfold.tasks.resume": ("ResumedTask", "resume"),
    "kinfold.tasks.run": ("run", "run_sync"),
    "kinfold.tasks.task": ("ParentTask",),
    "kinfold.tools.base": ("Tool", "ToolContext", "ToolOutcome"),
    "kinfold.tools.people": ("Answer", "Asked", "People"),
}  # fmt: skip
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = [
    "Answer",
    "Artifact",
    "Asked",
    "ConfigError",
    "EngineUnavailable",
    "ImageMissing",
    "KinfoldError",
    "LeaseLost",
    "LimitExceeded",
    "Limits",
    "ModelError",
    "NotFound",
    "ParentTask",
    "PathError",
    "People",
    "ResumedTask",
    "RunLimits",
    "SandboxError",
    "SandboxLost",
    "SandboxSpec",
    "SkippedPath",
    "StartFailed",
    "StoreError",
    "SubagentDefinition",
    "SubagentRecord",
    "TaskOutput",
    "TaskResult",
    "Tier",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolOutcome",
    "Unenforceable",
    "Usage",
    "__version__",
    "has_tool_call",
    "resume",
    "run",
    "run_sync",
    "text_matches",
    "tokens_over",
]


def __getattr__(name: str) -> Any:
    if (module := _WHERE.get(name)) is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
