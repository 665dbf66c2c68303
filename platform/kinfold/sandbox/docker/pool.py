"""Warm sandboxes: made ahead, each claimed once by a spec that asks for the very same container.

What shapes the container must be equal (the engine's create call tells, but for directories and labels); name, env,
secrets, labels, ttl, idle_ttl, keep and strict come with the claim. Whatever is wrong with the pool, `create` goes the
cold way. What a crash leaves is reaped like any sandbox of a dead owner.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import anyio
from pydantic import BaseModel, ConfigDict, Field

from kinfold.errors import ConfigError, KinfoldError, LeaseLost, NotFound, SandboxError
from kinfold.sandbox.base import Limits, SandboxSpec
from kinfold.sandbox.docker import ending
from kinfold.sandbox.docker.admission import Admitted, admit
from kinfold.sandbox.docker.create import engine_config
from kinfold.sandbox.docker.intent import intent
from kinfold.sandbox.docker.prepare import Prepared
from kinfold.sandbox.docker.workspaces import Layout
from kinfold.sandbox.record import SandboxRecord
from kinfold.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from kinfold.sandbox.docker.provider import DockerProvider

logger = logging.getLogger(__name__)

LOOK_EVERY = 30.0
"""Seconds after which the pool looks whether its image is another by now, with nothing else to do."""
ANSWER_WITHIN = 2.0
"""Seconds that a warm sandbox has to answer when it is claimed; a slower one is not handed out."""
_FIRST_DELAY, _LONGEST_DELAY = 0.5, 60.0
_ANYWHERE = Path("/")
_NO_LAYOUT = Layout(root=_ANYWHERE, workspace=_ANYWHERE, home=_ANYWHERE, dial=_ANYWHERE, made=True)


class PoolSpec(BaseModel):
    """How many warm sandboxes of which kind; the fields after `required` are `SandboxSpec`'s and must be equal there.

    `required`: a spec that can never match is refused with a `ConfigError` instead of being made the cold way.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    image: str = "kinfold/base"
    size: int = Field(default=2, ge=1, le=100)
    max_age: float = Field(default=1800.0, gt=0)
    """Seconds after which an unused one is replaced."""
    required: bool = False
    pull: Literal["missing", "never", "always"] = "missing"
    user: str | None = None
    network: Literal["none", "open"] = "none"
    limits: Limits = Limits()
    runtime: str | None = None
    read_only_root: bool = True
    orphan_grace: float = Field(default=60.0, gt=0)

    def sandbox_spec(self) -> SandboxSpec:
        """Of each warm one; its workspace goes with it."""
        own = self.model_copy().__dict__
        fields = {name: value for name, value in own.items() if name in SandboxSpec.model_fields}
        return SandboxSpec(**fields, keep=0.0, labels={"pool": "warm"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """How the pool does. Counts are since its start."""

    size: int
    ready: int
    claimed: int
    missed: int
    last_miss: str
    """Why the last `create` went the cold way; empty where none did."""
    failures: int
    """Refills that failed since the last one that did not."""
    last_failure: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Warm:
    sandbox: Sandbox
    record: SandboxRecord
    shape: Mapping[str, Any]
    born: float


class Pool:
    """The warm sandboxes of one provider. `start` it in an event loop; `aclose` drains it."""

    def __init__(self, provider: DockerProvider, spec: PoolSpec) -> None:
        self.spec = spec
        self._provider = provider
        self._admitted = admit(spec.sandbox_spec(), provider.state_dir)
        self._ready: list[_Warm] = []
        self._retiring: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._scope = anyio.CancelScope()
        self._closed = False
        self._shape: Mapping[str, Any] | None = None
        self._claimed = self._missed = self._failures = 0
        self._last_miss = self._last_failure = ""

    def status(self) -> PoolStatus:
        """How it does now."""
        return PoolStatus(
            size=self.spec.size,
            ready=len(self._ready),
            claimed=self._claimed,
            missed=self._missed,
            last_miss=self._last_miss,
            failures=self._failures,
            last_failure=self._last_failure,
        )

    def start(self) -> None:
        """Begin to fill it, if that has not begun."""
        if self._keeper is None and not self._closed:
            self._keeper = asyncio.get_running_loop().create_task(self._run())

    async def aclose(self) -> None:
        """End the filling and every warm one; what cannot be ended is logged, and left to the reaper."""
        self._closed = True
        if self._keeper is not None:
            # By its scope, not as a task: a call to the engine that is under way is waited for, or it leaves something.
            self._scope.cancel()
            await asyncio.gather(self._keeper)
        while self._ready:
            self._retire(self._ready.pop(), "the pool is closed")
        await asyncio.gather(*self._retiring)

    # --- the claim --------------------------------------------------------------------------------------------------

    async def claim(self, admitted: Admitted, prepared: Prepared) -> Sandbox | None:
        """A warm sandbox that is the caller's from now on; None where there is none for this spec.

        Raises `ConfigError` where there never can be one and the pool is `required`.
        """
        why = _unpoolable(admitted)
        shape = {} if why else self._shape_of(prepared)
        if not why and self._shape is not None:
            why = _differences(self._shape, shape)
        if why and self.spec.required:
            raise ConfigError(
                f"the pool of {self.spec.image} cannot serve this: {why}", hint="change one of them, or required=False"
            )
        while not why and (warm := self._take(shape)) is not None:
            try:
                return await self._hand_over(warm, admitted, prepared)
            except ConfigError:
                self._ready.append(warm)  # the name is taken: who has it is found the cold way
                why = f"the name {admitted.spec.name!r} is taken"
            except (SandboxError, LeaseLost, NotFound, TimeoutError) as error:
                self._retire(warm, f"it could not be claimed: {str(error) or 'no answer'}")
            except BaseException:
                self._retire(warm, "its claim was given up")
                raise
        self._missed += 1
        self._last_miss = why or "no warm one was ready"
        logger.info("a sandbox of %s is made the cold way: %s", admitted.spec.image, self._last_miss)
        return None

    def _take(self, shape: Mapping[str, Any]) -> _Warm | None:
        """Out of the pool, so that nobody else can get it; in one step of the loop."""
        for index, warm in enumerate(self._ready):
            if warm.shape == shape and self._why_stale(warm) is None:
                self._wake.set()
                return self._ready.pop(index)
        return None

    async def _hand_over(self, warm: _Warm, admitted: Admitted, prepared: Prepared) -> Sandbox:
        provider, held = self._provider, warm.record
        whose = (provider.name, provider.instance, prepared.facts.id)
        wanted = intent(held.id, admitted, Path(held.workspace), whose)
        # With what was read before: the record's keeper lets one claim of it through.
        same = {"handle": held.handle, "parts": held.parts, "generation": held.generation, "revision": held.revision}
        with anyio.fail_after(ANSWER_WITHIN):
            await warm.sandbox.stat(["."])
        record = await provider.records.adopt(wanted.model_copy(update=same))
        self._claimed += 1
        return warm.sandbox.succeeded_by(
            ref=provider.ref(record, "running"),
            spec=admitted.spec,
            not_enforced=prepared.settled.not_enforced,
            lifetime=ending.lifetime(provider, record, admitted.spec, ends=True),
        )

    def _shape_of(self, prepared: Prepared) -> dict[str, Any]:
        return engine_config(prepared.plan(self._provider, _NO_LAYOUT, {}))

    # --- the filling ------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        with self._scope:
            await self._keep()

    async def _keep(self) -> None:
        """Replace what is stale, add what is missing; after a failure wait longer each time."""
        while True:
            self._wake.clear()
            try:
                await self._look()
                while len(self._ready) < self.spec.size:
                    await self._add()
            except (KinfoldError, OSError) as error:
                self._failures += 1
                self._last_failure = str(error)
                delay = min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** min(self._failures - 1, 10))
                logger.warning("the pool of %s could not be filled: %s; again in %g s", self.spec.image, error, delay)
                await anyio.sleep(delay)
                continue
            self._failures = 0
            oldest = min((warm.born for warm in self._ready), default=time.monotonic())
            with anyio.move_on_after(max(0.05, min(LOOK_EVERY, oldest + self.spec.max_age - time.monotonic()))):
                await self._wake.wait()

    async def _look(self) -> None:
        """Retire what is too old, dead, or of another image than the name means now."""
        for warm in list(self._ready):
            self._drop(warm, self._why_stale(warm))
        self._shape = self._shape_of(await self._provider.prepare(self._admitted))
        for warm in list(self._ready):
            self._drop(warm, _differences(self._shape, warm.shape))

    async def _add(self) -> None:
        prepared = await self._provider.prepare(self._admitted)
        self._shape = self._shape_of(prepared)
        sandbox = await self._provider.create_prepared(self._admitted, prepared, pooled=True)
        try:
            (record,) = (await self._provider.records.list(id=sandbox.id)).records
        except BaseException:
            with anyio.CancelScope(shield=True):
                await sandbox.aclose()
            raise
        sandbox.watch(lambda change, reason: self._wake.set())
        self._ready.append(_Warm(sandbox=sandbox, record=record, shape=self._shape, born=time.monotonic()))

    def _why_stale(self, warm: _Warm) -> str | None:
        if time.monotonic() >= warm.born + self.spec.max_age:
            return f"it is older than {self.spec.max_age:g} s"
        return None if warm.sandbox.alive else "it does not answer"

    def _drop(self, warm: _Warm, reason: str | None) -> None:
        if reason and warm in self._ready:
            self._ready.remove(warm)
            self._retire(warm, reason)

    def _retire(self, warm: _Warm, reason: str) -> None:
        logger.info("warm sandbox %s is removed: %s", warm.sandbox.id, reason)
        task = asyncio.get_running_loop().create_task(_end(warm.sandbox))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)


async def _end(sandbox: Sandbox) -> None:
    try:
        await sandbox.aclose()
    except (KinfoldError, OSError) as error:
        logger.warning("warm sandbox %s could not be removed: %s; `kinfold reap` will", sandbox.id, error)


def _unpoolable(admitted: Admitted) -> str:
    """Why no pool can have one for this spec, whatever its kind; empty: one can."""
    if admitted.given is not None:
        return "a given workspace is mounted when its container is made"
    if admitted.copy_from is not None:
        return "copy_from fills the workspace before its container is made"
    # Its container's labels, which cannot change any more, name this process as its owner.
    return "a detached sandbox has no owner, a warm one has" if admitted.spec.detached else ""


def _differences(ours: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """The words of the engine's create call in which they differ; empty: they are of one kind."""
    flat, theirs = ({**shape, **shape["HostConfig"]} for shape in (ours, other))
    del flat["HostConfig"], theirs["HostConfig"]
    words = sorted(name for name in flat.keys() | theirs.keys() if flat.get(name) != theirs.get(name))
    return f"another {', '.join(words)}" if words else ""
