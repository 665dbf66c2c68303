"""Proof that both sides see one workspace, before a sandbox is handed out."""

from __future__ import annotations

import errno
import secrets
from pathlib import Path

import anyio.to_thread

from kinfold.errors import ConfigError, PathError, StartFailed
from kinfold.sandbox.base import SCRATCH
from kinfold.sandbox.docker import workspaces
from kinfold.sandbox.sandbox import Sandbox

REMOTE_HINT = (
    "the engine does not see this machine's files: on another machine, or with kinfold itself in a container, "
    "KINFOLD_STATE and the workspace must lie on a path that is the same on both sides"
)


async def prove_workspace(sandbox: Sandbox, workspace: Path) -> None:
    """Prove that both sides see one tree, and that the agent may write to it.

    Raises `StartFailed` where the container sees another tree, `ConfigError` where the workspace cannot be written.
    """
    name = f"marker-{secrets.token_hex(8)}"
    content = secrets.token_hex(16).encode()
    try:
        await anyio.to_thread.run_sync(workspaces.write_marker, str(workspace), name, content)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise ConfigError(
                f"the workspace {workspace} cannot be written: {error.strerror}", hint="free some disk space"
            ) from error
        raise _not_writable(sandbox, workspace, f"by this user ({error.strerror})") from error
    try:
        seen = await sandbox.read(f"{SCRATCH}/{name}")
    except PathError as error:
        if error.reason == "permission_denied":
            raise _not_writable(sandbox, workspace, f"by the agent (uid {sandbox.agent_uid})") from error
        seen = b""
    finally:
        await anyio.to_thread.run_sync(workspaces.remove_marker, str(workspace), name)
    if seen != content:
        raise StartFailed(
            f"the container does not see the workspace {workspace}: a marker written there is not in it",
            hint=REMOTE_HINT,
        )
    if "workspace_writable" not in sandbox.controls:
        raise _not_writable(sandbox, workspace, f"by the agent (uid {sandbox.agent_uid})")


def _not_writable(sandbox: Sandbox, workspace: Path, who: str) -> ConfigError:
    return ConfigError(
        f"the workspace {workspace} cannot be written {who}",
        hint=f"`chown -R {sandbox.agent_uid} {workspace}`, or work on a copy of it (`--copy`)",
    )
