"""The one place that talks to the blocking docker SDK: own worker threads, a deadline on every call, errors mapped.

`Engine.call` runs one function of the SDK's low-level client. Whatever goes wrong leaves as a `SandboxError`: nobody
answers (`EngineUnavailable`, with what to do about it), or the engine answered and refused (`EngineRefused`).
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import anyio
import anyio.to_thread

from kinfold.errors import ConfigError, EngineUnavailable, SandboxError

if TYPE_CHECKING:
    from docker.api.client import APIClient

T = TypeVar("T")

CALLS_AT_ONCE = 16
"""Worker threads that may wait for the engine at the same time, per `Engine`."""
HTTP_TIMEOUT = 60
"""Seconds without a byte after which the SDK itself gives up; ends the threads of abandoned calls."""
DEFAULT_DEADLINE = 30.0
DEFAULT_ENDPOINT = "unix:///var/run/docker.sock"


class EngineRefused(SandboxError):
    """Raised inside this package when the engine answered with an HTTP error; the caller says what that means.

    Outside it reads as a plain `SandboxError`. Raise `EngineUnavailable` when nobody answered.
    """

    code = "engine_refused"

    def __init__(self, what: str, status: int, explanation: str) -> None:
        super().__init__(f"{what}: the engine refused ({status}): {explanation}", hint="`kinfold doctor` shows more")
        self.status = status
        self.explanation = explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFacts:
    """What the engine says of itself, as far as kinfold uses it."""

    id: str
    name: str
    version: str
    api_version: tuple[int, int]
    kernel: str
    cgroup_version: str
    cpus: int
    memory_bytes: int
    runtimes: tuple[str, ...]
    default_runtime: str
    storage_driver: str
    security_options: tuple[str, ...]
    root_dir: str
    components: tuple[tuple[str, str], ...] = ()
    """Its parts by name (`containerd`, `runc` …) and their versions, as they say themselves."""

    @property
    def rootless(self) -> bool:
        """Whether the engine itself runs without root: uid 0 inside is the host's user."""
        return any("rootless" in option for option in self.security_options)

    @property
    def uid_base(self) -> tuple[int, int]:
        """What userns-remap adds to uids and gids on their way to the host; (0, 0) without it."""
        if not any("name=userns" in option for option in self.security_options):
            return (0, 0)
        uid, _, gid = os.path.basename(self.root_dir.rstrip("/")).partition(".")
        return (int(uid), int(gid)) if uid.isdigit() and gid.isdigit() else (0, 0)

    def describe(self) -> str:
        """Name and version, for a person."""
        return f"Docker Engine {self.version} (cgroup v{self.cgroup_version}, {self.default_runtime}, {self.kernel})"


class Engine:
    """One container engine, reached through the SDK; cheap to make, connects at the first call."""

    def __init__(self, host: str | None = None) -> None:
        if host is not None and host.startswith("ssh://"):
            raise _no_ssh(host)
        self._host = host
        self._api: APIClient | None = None
        self._lock = threading.Lock()
        self._limiter: anyio.CapacityLimiter | None = None
        self._facts: EngineFacts | None = None

    @property
    def endpoint(self) -> str:
        """Where the engine is looked for, for messages."""
        return self._host or os.environ.get("DOCKER_HOST") or _context_endpoint() or DEFAULT_ENDPOINT

    async def call(
        self,
        what: str,
        function: Callable[[Any], T],
        *,
        deadline: float = DEFAULT_DEADLINE,
        settle: bool = False,
    ) -> T:
        """Run `function(api)` in a worker thread and give back its value.

        `what` names the act in errors. After `deadline` seconds the call is abandoned: `EngineUnavailable`. With
        `settle` a cancelled caller waits for the outcome (at most HTTP_TIMEOUT): for acts not to be lost sight of.
        """
        if self._limiter is None:
            self._limiter = anyio.CapacityLimiter(CALLS_AT_ONCE)

        def work() -> T:
            with self._mapped(what):
                return function(self._connect())

        try:
            with anyio.fail_after(deadline):
                return await anyio.to_thread.run_sync(work, abandon_on_cancel=not settle, limiter=self._limiter)
        except TimeoutError:
            raise EngineUnavailable(
                f"{what}: the container engine at {self.endpoint} did not answer within {deadline:g} s",
                hint="look at the engine's log; `kinfold doctor` checks it again",
            ) from None

    async def facts(self) -> EngineFacts:
        """What the engine says of itself; asked once."""
        if self._facts is None:
            info, version = await self.call("ask the engine about itself", lambda api: (api.info(), api.version()))
            self._facts = read_facts(info, version)
        return self._facts

    async def aclose(self) -> None:
        """Close the idle connections; streams that are open stay open."""
        api, self._api = self._api, None
        if api is not None:
            api.close()

    def _connect(self) -> APIClient:
        with self._lock:
            if self._api is None:
                self._api = self._make_api()
            return self._api

    def _make_api(self) -> APIClient:
        import docker

        if self._host is not None:
            return docker.DockerClient(
                base_url=self._host, version="auto", timeout=HTTP_TIMEOUT, max_pool_size=CALLS_AT_ONCE
            ).api
        if os.environ.get("DOCKER_HOST", "").startswith("ssh://"):
            raise _no_ssh(os.environ["DOCKER_HOST"])
        return docker.from_env(version="auto", timeout=HTTP_TIMEOUT, max_pool_size=CALLS_AT_ONCE).api

    @contextlib.contextmanager
    def _mapped(self, what: str) -> Iterator[None]:
        import docker.errors
        import requests.exceptions

        try:
            yield
        except docker.errors.APIError as error:
            status = int(error.status_code or 500)
            raise EngineRefused(what, status, str(error.explanation or error)[:1000]) from error
        except (docker.errors.DockerException, requests.exceptions.RequestException, OSError) as error:
            raise unavailable(what, error, self.endpoint) from error


def _context_endpoint() -> str | None:
    """Of the command line client's current context, which the SDK follows where DOCKER_HOST is not set."""
    from docker.context import ContextAPI

    found: dict[str, Any] = getattr(ContextAPI, "kwargs_from_context", dict)()
    host = found.get("base_url")
    return str(host) if host else None


def unavailable(what: str, error: BaseException, endpoint: str) -> EngineUnavailable:
    """Say why nobody answers at `endpoint`, and what the person in front of it can do."""
    cause = _os_error(error)
    if cause is not None and cause.errno in (errno.EACCES, errno.EPERM):
        return EngineUnavailable(
            f"{what}: no permission to use the container engine at {endpoint}",
            hint="join the group that owns the socket (`sudo usermod -aG docker $USER`, then log in again), "
            "or point DOCKER_HOST at an engine of yours",
        )
    if cause is not None and cause.errno in (errno.ENOENT, errno.ECONNREFUSED):
        return EngineUnavailable(
            f"{what}: no container engine answers at {endpoint}",
            hint="start it (`sudo systemctl start docker`) or set DOCKER_HOST; `kinfold doctor` checks it",
        )
    return EngineUnavailable(
        f"{what}: the container engine at {endpoint} failed: {str(error)[:300]}",
        hint="`kinfold doctor` checks the engine; DOCKER_HOST chooses another",
    )


def _os_error(error: BaseException) -> OSError | None:
    """The operating system's own error somewhere below the SDK's wrappings; the innermost one."""
    found: OSError | None = None
    queue: list[object] = [error]
    seen: set[int] = set()
    while queue:
        item = queue.pop()
        if not isinstance(item, BaseException) or id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, OSError) and item.errno is not None:
            found = item
        queue.extend([*item.args, item.__cause__, item.__context__, getattr(item, "reason", None)])
    return found


def _no_ssh(host: str) -> ConfigError:
    return ConfigError(
        f"{host}: engines over ssh are not supported",
        hint="forward the socket (`ssh -NL /tmp/docker.sock:/var/run/docker.sock HOST`) and use its unix:// address",
    )


def read_facts(info: dict[str, Any], version: dict[str, Any]) -> EngineFacts:
    """The engine's answers to `info` and `version`, in our words."""
    major, _, minor = str(version.get("ApiVersion", "1.0")).partition(".")
    return EngineFacts(
        id=str(info.get("ID") or info.get("Name") or "unknown"),
        name=str(info.get("Name") or ""),
        version=str(info.get("ServerVersion") or version.get("Version") or "unknown"),
        api_version=(int(major), int(minor or 0)),
        kernel=str(info.get("KernelVersion") or "unknown kernel"),
        cgroup_version=str(info.get("CgroupVersion") or "1"),
        cpus=int(info.get("NCPU") or 0),
        memory_bytes=int(info.get("MemTotal") or 0),
        runtimes=tuple(sorted(info.get("Runtimes") or {})),
        default_runtime=str(info.get("DefaultRuntime") or "runc"),
        storage_driver=str(info.get("Driver") or ""),
        security_options=tuple(str(option) for option in info.get("SecurityOptions") or ()),
        root_dir=str(info.get("DockerRootDir") or ""),
        components=tuple(
            (str(part.get("Name", "")).lower(), str(part.get("Version") or "unknown"))
            for part in version.get("Components") or ()
            if str(part.get("Name", "")).lower() != "engine"
        ),
    )
