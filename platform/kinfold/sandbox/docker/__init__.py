"""Sandboxes as Docker containers; the only package that knows Docker. Classes are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinfold.sandbox.docker.provider import DockerProvider

__all__ = ["DockerProvider"]


def __getattr__(name: str) -> Any:
    if name == "DockerProvider":
        from kinfold.sandbox.docker import provider

        return provider.DockerProvider
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
