"""What a spec must satisfy before anything is made: every refusal here is a `ConfigError`, and no engine is asked."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

from kinfold.errors import ConfigError
from kinfold.sandbox.base import MIB, Limits, SandboxSpec
from kinfold.sandbox.docker.labels import check_labels
from kinfold.sandbox.docker.workspaces import UNUSABLE_UIDS, resolve_given

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,254}\Z")
_RUNTIME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z")
_USER = re.compile(r"(\d{1,10})(?::(\d{1,10}))?\Z")
_VARIABLE = re.compile(r"[^=\0]+\Z")
RUN_BYTES = MIB
"""Of each tmpfs at and below /run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admitted:
    """A spec whose words have been understood."""

    spec: SandboxSpec
    given: str | None
    """The given workspace, absolute."""
    copy_from: str | None
    user: tuple[int, int] | None
    hash: str
    """Of everything that shapes the container; what travels per exec (env, secrets) is not in it."""


def admit(spec: SandboxSpec, state_dir: Path) -> Admitted:
    """Check `spec` and resolve its paths. Raises `ConfigError`."""
    _check_words(spec)
    _check_times(spec)
    check_labels(spec.labels)
    if spec.workspace is not None and spec.copy_from is not None:
        raise ConfigError("workspace and copy_from exclude each other", hint="name one: --copy works on a copy of it")
    given = resolve_given(spec.workspace, "workspace", state_dir=state_dir) if spec.workspace is not None else None
    copied = spec.copy_from is not None
    copy_from = resolve_given(spec.copy_from, "directory to copy", state_dir=state_dir) if spec.copy_from else None
    if copied and copy_from is None:
        raise ConfigError("copy_from is empty", hint="name an existing directory")
    if given is not None and not os.access(given, os.X_OK):
        raise ConfigError(f"the workspace {given} cannot be entered by this user", hint=f"`chmod u+rwx {given}`")
    if copy_from is not None and not os.access(copy_from, os.R_OK | os.X_OK):
        raise ConfigError(f"the directory to copy {copy_from} cannot be read", hint=f"`chmod -R u+rX {copy_from}`")
    user = parse_user(spec.user)
    resolved = spec.model_copy(update={"workspace": given, "copy_from": copy_from})
    return Admitted(spec=resolved, given=given, copy_from=copy_from, user=user, hash=spec_hash(resolved))


def parse_user(user: str | None) -> tuple[int, int] | None:
    """uid and gid of the agent (the gid is the uid where it is not named)."""
    if user is None:
        return None
    match = _USER.match(user)
    if match is None:
        raise ConfigError(f"user {user!r} is not UID or UID:GID", hint="use numbers, as in --user 1000:1000")
    uid = int(match[1])
    gid = int(match[2]) if match[2] is not None else uid
    if uid in UNUSABLE_UIDS or uid > 4294967295:
        raise ConfigError(
            f"user {uid} cannot be the agent's: 0 is the supervisor's, 65533 the warden's, 65534 means unmapped",
            hint=f"name another uid, as in --user {os.geteuid() or 1000}",
        )
    if gid in UNUSABLE_UIDS or gid > 4294967295:
        raise ConfigError(f"group {gid} cannot be the agent's", hint=f"name another gid, as in --user {uid}:{uid}")
    return uid, gid


def spec_hash(spec: SandboxSpec) -> str:
    """What makes two specs of the same name the same."""
    data = spec.model_dump(mode="json", exclude={"env", "secrets", "name"})
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


def fit_limits(limits: Limits, cpus: int) -> Limits:
    """Limits that hang together on this engine.

    tmpfs, /dev/shm and SysV memory together stay under half of the memory, or a full one would let nothing start any
    more. Defaults shrink to fit; what the caller set is refused instead.
    """
    changes: dict[str, float | int] = {}
    if cpus and limits.cpus > cpus:
        if "cpus" in limits.model_fields_set:
            raise ConfigError(f"limits.cpus is {limits.cpus:g}, the engine has {cpus}", hint=f"ask for {cpus} or less")
        changes["cpus"] = float(cpus)
    for field in ("tmp_bytes", "shm_bytes"):
        if field not in limits.model_fields_set:
            changes[field] = max(MIB, min(getattr(limits, field), (limits.memory_bytes // 2 - 2 * RUN_BYTES) // 3))
    if "disk_inodes" not in limits.model_fields_set:
        changes["disk_inodes"] = min(limits.disk_inodes, limits.disk_bytes // 4096)
    fitted = limits.model_copy(update=changes)
    held = fitted.tmp_bytes + 2 * fitted.shm_bytes + 2 * RUN_BYTES
    if held > fitted.memory_bytes // 2:
        raise ConfigError(
            f"tmp_bytes + 2 × shm_bytes come to {held // MIB} MiB, over half of memory_bytes "
            f"({fitted.memory_bytes // MIB} MiB): full, they would leave no memory for programs",
            hint=f"lower them, or set limits.memory_bytes to at least {2 * held}",
        )
    return fitted


def _check_words(spec: SandboxSpec) -> None:
    if spec.name is not None and not _NAME.match(spec.name):
        raise ConfigError(f"sandbox name {spec.name!r} is not usable", hint="up to 63 of A-Z a-z 0-9 . _ -")
    if not _IMAGE.match(spec.image):
        raise ConfigError(f"image {spec.image!r} is not an image name", hint="as in --image kinfold/base")
    if spec.runtime is not None and not _RUNTIME.match(spec.runtime):
        raise ConfigError(f"runtime {spec.runtime!r} is not a runtime's name", hint="as in runc, runsc, kata")
    for key, value in [*spec.env.items(), *spec.secrets.items()]:
        if not _VARIABLE.match(key) or "\0" in value:
            raise ConfigError(f"environment variable {key[:64]!r} is not usable", hint="no '=' in names, no NUL bytes")


def _check_times(spec: SandboxSpec) -> None:
    for word in ("ttl", "idle_ttl"):
        value = getattr(spec, word)
        if value is not None and not value > 0:
            raise ConfigError(f"{word} is {value!r}", hint=f"{word} is a number of seconds above 0, or absent")
    if not spec.keep >= 0:
        raise ConfigError(f"keep is {spec.keep!r}", hint="keep is a number of seconds; 0 removes the workspace at once")
