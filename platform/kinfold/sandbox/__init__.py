"""Where things happen: one sandbox API, and providers that make sandboxes; classes are imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from kinfold.sandbox.allowlist import Allowlist, allowlist
from kinfold.sandbox.base import (
    DiskUse,
    EgressAttempt,
    ExecRequest,
    ExecResult,
    FileStat,
    Limits,
    Listing,
    Output,
    Provider,
    SandboxRef,
    SandboxSpec,
    SandboxUsage,
    Snapshot,
)

if TYPE_CHECKING:
    from kinfold.sandbox.docker.pool import PoolSpec
    from kinfold.sandbox.docker.provider import DockerProvider
    from kinfold.sandbox.local import LocalProvider
    from kinfold.sandbox.process import Process
    from kinfold.sandbox.sandbox import Sandbox

_LAZY = {
    "DockerProvider": "kinfold.sandbox.docker",
    "LocalProvider": "kinfold.sandbox.local",
    "PoolSpec": "kinfold.sandbox.docker.pool",
    "Process": "kinfold.sandbox.process",
    "Sandbox": "kinfold.sandbox.sandbox",
}

__all__ = [
    "Allowlist",
    "DiskUse",
    "DockerProvider",
    "EgressAttempt",
    "ExecRequest",
    "ExecResult",
    "FileStat",
    "Limits",
    "Listing",
    "LocalProvider",
    "Output",
    "PoolSpec",
    "Process",
    "Provider",
    "Sandbox",
    "SandboxRef",
    "SandboxSpec",
    "SandboxUsage",
    "Snapshot",
    "allowlist",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
