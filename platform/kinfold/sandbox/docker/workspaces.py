"""The host's side of a workspace: where it lies, how it is made, copied, given to the agent, proved and removed.

    <state>/instance                          this installation's random id
    <state>/sandboxes/<id>/   0700            only such trees are ever removed
        disk/workspace/                       bind-mounted at /workspace, unless the caller gave a directory
        disk/home/                            bind-mounted at /home/agent
        dial/                                 bind-mounted read-only at /run/kf/host; the host listens in it
        disk.img                              mounted at disk/ where this host can bound it (see `quota`)

All of it is made here before the container, never by the engine's daemon. By directory descriptors only.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from kinfold.errors import ConfigError, SandboxError
from kinfold.sandbox.base import SCRATCH
from kinfold.sandbox.docker import quota
from kinfold.sandbox.docker.keeping import keep_files, reattach
from kinfold.sandbox.docker.labels import SANDBOX_ID
from kinfold.sandbox.docker.trees import DIRECTORY, Checkpoint, CopyRules, copy_tree, never, opened, remove_tree
from kinfold.sandbox.state_files import private_dir, unwritable

DEFAULT_AGENT = 1000
UNUSABLE_UIDS = frozenset({0, 65533, 65534, 4294967295})
"""Root (the supervisor), the warden, the overflow uid, and -1: never the agent's."""
_INSTANCE_FILE = "instance"
_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/boot")
"""Nothing at or below these is ever a workspace."""
_TOPS = frozenset({"/", "/run", "/var", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/usr/bin", "/usr/lib", "/usr/sbin"})
_STAYS = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR, errno.EACCES, errno.EPERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """Where one sandbox's directories are on the host."""

    root: Path
    workspace: Path
    home: Path
    dial: Path
    made: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Mapping:
    """How uids inside the container relate to those on the host."""

    base: tuple[int, int] = (0, 0)
    """Added to a uid and gid inside (userns-remap)."""
    rootless: bool = False

    def can_give(self) -> bool:
        """Whether we may hand a file to any uid of the container."""
        return os.geteuid() == 0 and not self.rootless


@dataclass(frozen=True, slots=True, kw_only=True)
class Making:
    """What the directories of a new sandbox shall be."""

    id: str
    given: str | None
    copy_from: str | None
    user: tuple[int, int] | None
    """The agent's uid and gid, where the spec names them."""
    mapping: Mapping
    size: quota.Size
    """What the workspace and the home may hold together."""
    bounded: bool = False
    """Whether they get a file system of that size; else a copy is bounded, and what comes later only watched."""


class Workspaces:
    """The directories of all sandboxes of one state directory."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self._sandboxes = state_dir / "sandboxes"

    def instance(self) -> str:
        """This state directory's random id; made at the first call, the same for ever after."""
        path = private_dir(self.state_dir) / _INSTANCE_FILE
        if not path.exists():
            try:
                _write_once(path, secrets.token_hex(8))
            except OSError as error:
                raise unwritable(path, error) from error
        found = path.read_text(encoding="ascii", errors="replace").strip()
        if not found.isalnum():
            raise ConfigError(f"{path} does not hold an instance id", hint=f"remove {path}; a new id is made")
        return found

    def layout(self, sandbox_id: str, given: str | None = None) -> Layout:
        """Where the directories of this sandbox are; nothing is looked up."""
        if not SANDBOX_ID.match(sandbox_id):
            raise ValueError(f"not a sandbox id: {sandbox_id!r}")
        root = self._sandboxes / sandbox_id
        return Layout(
            root=root,
            workspace=Path(given) if given else root / quota.POINT / "workspace",
            home=root / quota.POINT / "home",
            dial=root / "dial",
            made=given is None,
        )

    def make(self, making: Making, checkpoint: Checkpoint = never) -> Layout:
        """Make the directories; blocks while copying. Raises `ConfigError`; what was made then stays for `remove`."""
        layout = self.layout(making.id, making.given)
        private_dir(self._sandboxes)
        try:
            layout.root.mkdir(mode=0o700)
            with opened(str(layout.root), DIRECTORY) as root:
                self._fill(root, layout, making, checkpoint)
        except OSError as error:
            raise ConfigError(
                f"cannot make the sandbox's directories in {layout.root}: {error.strerror}",
                hint="free some disk space" if error.errno == errno.ENOSPC else "look at the state directory's owner",
            ) from error
        return layout

    def make_dial(self, sandbox_id: str) -> Path:
        """The dial directory, made again where it was removed."""
        layout = self.layout(sandbox_id)
        with opened(str(layout.root), DIRECTORY) as root:
            _make_dial(root)
        return layout.dial

    def _fill(self, root: int, layout: Layout, making: Making, checkpoint: Checkpoint) -> None:
        owner, extra = _ownership(making)
        _make_dial(root)
        os.mkdir(quota.POINT, 0o700, dir_fd=root)
        if making.bounded:
            quota.make(layout.root, making.size)
        with opened(quota.POINT, DIRECTORY, dir_fd=root) as disk:
            _make_given_to(disk, "home", owner, 0o700 | extra)
            if not layout.made:
                return
            _make_given_to(disk, "workspace", owner, 0o755 | extra)
            if making.copy_from is not None:
                rules = CopyRules(
                    owner=owner,
                    extra_mode=extra,
                    max_bytes=making.size.bytes,
                    max_entries=making.size.inodes,
                    skip=frozenset({SCRATCH}),
                )
                with (
                    opened(making.copy_from, DIRECTORY) as source,
                    opened("workspace", DIRECTORY, dir_fd=disk) as target,
                ):
                    copy_tree(source, target, rules, checkpoint)

    def remove(self, sandbox_id: str, *, workspace: bool, checkpoint: Checkpoint = never) -> list[str]:
        """Remove the home and dial directories, and with `workspace` all of the sandbox's tree; blocks.

        Gives back what would not go. Only `<state>/sandboxes/<id>` is ever touched; a link in its place is removed,
        not followed.
        """
        if not SANDBOX_ID.match(sandbox_id):
            raise ValueError(f"not a sandbox id: {sandbox_id!r}")
        try:
            with opened(str(self._sandboxes), DIRECTORY) as sandboxes:
                if not workspace:
                    return self._keep(sandboxes, sandbox_id, checkpoint)
                if not (self._sandboxes / sandbox_id).is_symlink():
                    quota.detach(self._sandboxes / sandbox_id)
                return remove_tree(sandboxes, sandbox_id, checkpoint)
        except FileNotFoundError:
            return []
        except OSError as error:
            return [f"{sandbox_id}: {error.strerror}"]
        except SandboxError as error:
            return [f"{sandbox_id}: {error.message}"]

    def _keep(self, sandboxes: int, sandbox_id: str, checkpoint: Checkpoint) -> list[str]:
        """All but the workspace goes, which then lies in a plain directory of the same path."""
        with opened(sandbox_id, DIRECTORY, dir_fd=sandboxes) as root:
            left = [name for gone in ("dial", quota.UNFINISHED) for name in remove_tree(root, gone, checkpoint)]
            if quota.has_image(self._sandboxes / sandbox_id):
                keep_files(self._sandboxes / sandbox_id, root, checkpoint)
            with opened(quota.POINT, DIRECTORY, dir_fd=root) as disk:
                return left + remove_tree(disk, "home", checkpoint)

    def reattach(self, sandbox_id: str) -> bool:
        """Mount kept files again that a restart of the machine has unmounted. Raises `SandboxError`, `OSError`."""
        return reattach(self.layout(sandbox_id).root)

    def ids(self) -> list[str]:
        """The sandboxes that have a directory here."""
        try:
            return sorted(name for name in os.listdir(self._sandboxes) if SANDBOX_ID.match(name))
        except FileNotFoundError:
            return []


def _write_once(path: Path, text: str) -> None:
    """Whole or not at all; where another process was first, its text stays."""
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        fresh.write_text(text, encoding="ascii")
        with contextlib.suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def _ownership(making: Making) -> tuple[tuple[int, int] | None, int]:
    """Who gets what we make, as host ids, and which permission bits it needs beyond its own.

    Where we cannot give it away and the agent will not be us, everybody may write: the directory above is 0700.
    """
    if making.mapping.can_give():
        uid, gid = making.user or _owner_inside(making) or (DEFAULT_AGENT, DEFAULT_AGENT)
        return (uid + making.mapping.base[0], gid + making.mapping.base[1]), 0
    ours = os.geteuid()
    agent = making.user[0] if making.user else (_owner_inside(making) or (ours, 0))[0]
    ours_inside = not making.mapping.rootless and making.mapping.base == (0, 0) and ours not in UNUSABLE_UIDS
    return None, 0 if ours_inside and agent == ours else 0o777


def _owner_inside(making: Making) -> tuple[int, int] | None:
    """The given workspace's owner as the container sees it, where the supervisor would take that for the agent."""
    if making.given is None:
        return None
    found = os.stat(making.given)
    uid, gid = found.st_uid - making.mapping.base[0], found.st_gid - making.mapping.base[1]
    return (uid, max(gid, 0)) if uid > 0 and uid not in UNUSABLE_UIDS else None


def _make_dial(root: int) -> None:
    """0755: the supervisor is uid 0 without CAP_DAC_OVERRIDE, and has to look into it."""
    with contextlib.suppress(FileExistsError):
        os.mkdir("dial", 0o755, dir_fd=root)
    with opened("dial", DIRECTORY, dir_fd=root) as dial:
        os.fchmod(dial, 0o755)


def _make_given_to(parent: int, name: str, owner: tuple[int, int] | None, mode: int) -> None:
    os.mkdir(name, 0o700, dir_fd=parent)
    with opened(name, DIRECTORY, dir_fd=parent) as made:
        if owner is not None:
            os.fchown(made, *owner)
        os.fchmod(made, mode)


# --- a given workspace ----------------------------------------------------------------------------------------------


def resolve_given(path: str, what: str, *, state_dir: Path | None = None) -> str:
    """The absolute path of a directory that the operator named; `ConfigError` where it cannot be one.

    Links above it are resolved; it must not be one itself, for whoever can change the link chooses what is mounted.
    """
    if "\0" in path or not path.strip():
        raise ConfigError(f"the {what} {path!r} is not a path", hint="name an existing directory")
    bare = os.path.abspath(os.path.expanduser(path))
    if os.path.islink(bare):
        raise ConfigError(f"the {what} {path} is a symbolic link", hint=f"name its target: {os.path.realpath(bare)}")
    resolved = os.path.realpath(bare)
    if not os.path.lexists(resolved):
        raise ConfigError(f"the {what} {path} does not exist", hint=f"`mkdir -p {path}`, or leave it out")
    if not os.path.isdir(resolved):
        raise ConfigError(f"the {what} {path} is not a directory", hint="name the directory that holds it")
    _refuse_system(resolved, path, what)
    if state_dir is not None:
        _refuse_state(Path(resolved), state_dir, what)
    return resolved


def _refuse_system(resolved: str, path: str, what: str) -> None:
    """No directory in which a write changes how this machine or its engine runs."""
    place = Path(resolved)
    below = any(place.is_relative_to(system) for system in _SYSTEM)
    if below or resolved in _TOPS:
        hint = "name a directory of your own below it" if resolved in _TOPS else "name a directory of your own"
        raise ConfigError(f"the {what} {path} is a directory of the system", hint=hint)
    for own in map(Path, map(os.path.realpath, _engines_own())):
        if own.is_relative_to(place) or place.is_relative_to(own):
            raise ConfigError(
                f"the {what} {path} holds the container engine's own {own}",
                hint="who can reach that is root on this machine: name a directory of your own",
            )


def _engines_own() -> tuple[str, ...]:
    """Sockets and data of container engines: whether they are there or come later."""
    endpoint = os.environ.get("DOCKER_HOST", "")
    named = (endpoint.removeprefix("unix://"),) if endpoint.startswith("unix:///") else ()
    rootless = f"/run/user/{os.getuid()}/docker.sock"
    return (
        "/run/docker.sock",
        "/run/docker",
        "/run/containerd",
        "/var/lib/docker",
        "/var/lib/containerd",
        rootless,
        *named,
    )


def _refuse_state(resolved: Path, state_dir: Path, what: str) -> None:
    """The state directory holds every other sandbox's files; only a workspace that lies in it may be named."""
    state = Path(os.path.realpath(state_dir))
    inside = resolved.is_relative_to(state)
    parts = resolved.relative_to(state).parts if inside else ()
    a_workspace = (*parts[:1], *parts[2:4]) == ("sandboxes", quota.POINT, "workspace")
    if state.is_relative_to(resolved) or (inside and not a_workspace):
        raise ConfigError(f"the {what} {resolved} holds kinfold's own state", hint="name another directory")


def remove_scratch(workspace: str) -> list[str]:
    """Remove `.kinfold` from a given workspace where it is empty; anything else in its place stays.

    Gives back why it would not go, where that is not for its content or for want of permission.
    """
    try:
        with opened(workspace, DIRECTORY) as root:
            os.rmdir(SCRATCH, dir_fd=root)
    except OSError as error:
        if error.errno not in _STAYS:
            return [f"{workspace}/{SCRATCH}: {error.strerror}"]
    return []


def write_marker(workspace: str, name: str, content: bytes) -> None:
    """Put a file into `.kinfold` from the host's side; makes that directory where it is missing.

    What is made is given to the workspace's owner, so that the agent can use it. Raises `ConfigError` where
    `.kinfold` is something else than a directory, `OSError` where we may not write.
    """
    with opened(workspace, DIRECTORY) as root:
        owner = os.fstat(root)
        try:
            os.mkdir(SCRATCH, 0o755, dir_fd=root)
        except FileExistsError:
            fresh = False
        else:
            fresh = True
        try:
            scratch = os.open(SCRATCH, DIRECTORY, dir_fd=root)
        except NotADirectoryError:
            raise ConfigError(
                f"{workspace}/{SCRATCH} is not a directory",
                hint=f"remove it: kinfold keeps its scratch files in {SCRATCH}",
            ) from None
        try:
            # Whoever owns the workspace may have put another directory in its place: that one is not given away.
            fresh = fresh and os.fstat(scratch).st_uid == os.geteuid() and not os.listdir(scratch)
            if fresh and os.geteuid() == 0:
                os.fchown(scratch, owner.st_uid, owner.st_gid)
            if fresh:
                os.fchmod(scratch, 0o755 | owner.st_mode & 0o022)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            with opened(name, flags, dir_fd=scratch) as marker:
                os.fchmod(marker, 0o644)
                os.write(marker, content)
        finally:
            os.close(scratch)


def remove_marker(workspace: str, name: str) -> None:
    """Take the marker away again; no error where it is gone."""
    try:
        with opened(workspace, DIRECTORY) as root, opened(SCRATCH, DIRECTORY, dir_fd=root) as scratch:
            os.unlink(name, dir_fd=scratch)
    except FileNotFoundError:
        return
