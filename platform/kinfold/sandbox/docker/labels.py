"""What stands on every container, volume and network that kinfold makes: facts that never change, under `kinfold.*`."""

from __future__ import annotations

import re
from collections.abc import Mapping

from kinfold.errors import ConfigError

INSTANCE = "kinfold.instance"
SANDBOX = "kinfold.sandbox"
SPEC = "kinfold.spec"
NAME = "kinfold.name"
IMAGE = "kinfold.image"
CREATED = "kinfold.created"
OWNER = "kinfold.owner"
"""Who made it; empty on a detached one. Its owner may be another by now: the record says, where there is one."""
UNTIL = "kinfold.until"
"""When its `ttl` ends, whatever happens, in seconds since the epoch; empty without one."""
TASK = "kinfold.task"
ROLE = "kinfold.role"
DIGEST = "kinfold.digest"
USER_PREFIX = "kinfold.label."
"""The caller's own labels stand below this, so that no caller can set one of ours."""

ROLE_SANDBOX = "sandbox"
ROLE_SUPERVISOR = "supervisor"
ROLE_FILLER = "filler"
ROLE_NETWORK = "network"

SANDBOX_ID = re.compile(r"sbx_[0-9a-f]{16}\Z")
_KEY = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}\Z")
_VALUE = re.compile(r"[A-Za-z0-9._:/@+=-]{0,256}\Z")


def container_name(sandbox_id: str) -> str:
    """The container's name; only ids that we made reach the engine."""
    if not SANDBOX_ID.match(sandbox_id):
        raise ValueError(f"not a sandbox id: {sandbox_id!r}")
    return f"kinfold-{sandbox_id}"


def check_labels(labels: Mapping[str, str]) -> None:
    """Refuse what could be mistaken for one of our own labels, or could not be shown in one line."""
    for key, value in labels.items():
        if not _KEY.match(key) or key.startswith("kinfold"):
            raise ConfigError(
                f"label {key!r} is not usable",
                hint="keys are up to 63 of a-z 0-9 . _ -, begin with a letter or digit, and not with 'kinfold'",
            )
        if not _VALUE.match(value):
            raise ConfigError(
                f"label {key}={value!r} is not usable", hint="values are up to 256 of A-Z a-z 0-9 ._:/@+=-"
            )


def to_engine(labels: Mapping[str, str]) -> dict[str, str]:
    """The caller's labels as they stand on the container; `task` is the one that has a name of its own there."""
    return {TASK if key == "task" else USER_PREFIX + key: value for key, value in labels.items()}


def from_engine(labels: Mapping[str, str]) -> dict[str, str]:
    """The caller's labels, read back from a container."""
    own = {key.removeprefix(USER_PREFIX): value for key, value in labels.items() if key.startswith(USER_PREFIX)}
    if TASK in labels:
        own["task"] = labels[TASK]
    return own
