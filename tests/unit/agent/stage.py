"""A stage for agents without a container: a workspace in memory, recorded events, and tools made for a test.

`MemorySandbox` is a fake of the files part of `Sandbox` alone: it runs no program, and says so as an image without a
shell does (127).
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import anyio
import anyio.lowlevel
from pydantic import BaseModel

from kinfold.agent.context import RuntimeContext
from kinfold.agent.loop import run_agent_loop
from kinfold.agent.past import PastRun
from kinfold.agent.run import LoopConfig, LoopInput, RunResult
from kinfold.errors import PathError, PathReason, SandboxLost
from kinfold.events import EventBase, RunEnded
from kinfold.messages import Message
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedCall, ScriptedModel, ScriptedReply
from kinfold.sandbox.base import (
    Control,
    ExecRequest,
    ExecResult,
    FileStat,
    Listing,
    OnEgress,
    OwnerEnd,
    SandboxRef,
    SandboxSpec,
    Snapshot,
)
from kinfold.sandbox.link import OnChange
from kinfold.sandbox.sandbox import Sandbox
from kinfold.sandbox.workspace import normalize
from kinfold.tools.base import Tool, ToolContext, ToolOutcome

ROOT = "/workspace"


class MemorySandbox(Sandbox):
    """Files in a dict, by absolute path."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.stamps: dict[str, int] = {}
        self.clock = itertools.count(1)
        self.ended_owners: list[str] = []
        self.left_running: dict[str, list[OwnerEnd]] = {}
        """What `end` finds, by owner."""
        self.lost = False
        self.closed = 0
        self.spec_given = SandboxSpec()

    @property
    def id(self) -> str:
        return "sbx_0000000000000000"

    @property
    def ref(self) -> SandboxRef:
        return SandboxRef(id=self.id, provider="memory", workspace="(in memory)")

    @property
    def spec(self) -> SandboxSpec:
        return self.spec_given

    @property
    def not_enforced(self) -> tuple[Control, ...]:
        return ()

    def watch(self, on_change: OnChange) -> None:
        """Nothing here ever changes."""

    def _alive(self) -> None:
        if self.lost:
            raise SandboxLost("the container is gone", hint="start again")

    async def run(self, request: ExecRequest) -> ExecResult:
        self._alive()
        return ExecResult(
            id="exec_0000000000000000", ended_by="exited", exit_code=127, signal=None, stdout=b"", stderr=b"",
            stdout_head_bytes=0, stderr_head_bytes=0, stdout_total=0, stderr_total=0, duration=0.0,
        )  # fmt: skip

    async def end(self, owner: str, *, grace: float = 2.0) -> list[OwnerEnd]:
        self._alive()
        self.ended_owners.append(owner)
        return self.left_running.pop(owner, [])

    async def write(
        self,
        path: str,
        data: bytes,
        *,
        if_match: str | None = None,
        exclusive: bool = False,
        mode: int = 0,
        parents: bool = True,
        digest: bool | None = None,
    ) -> FileStat:
        self._alive()
        where = normalize(path)
        now = self.files.get(where)
        if if_match is not None and if_match != ("absent" if now is None else sha256(now)):
            raise PathError("conflict", path)
        self.files[where] = data
        self.stamps[where] = next(self.clock)
        return self._stat(where, digest=True)

    async def read(self, path: str, *, offset: int = 0, limit: int | None = None, digest: bool = False) -> bytes:
        self._alive()
        data = self._data(path)[offset:]
        return data if limit is None else data[:limit]

    async def read_stream(self, path: str, *, offset: int = 0) -> AsyncGenerator[bytes, None]:
        self._alive()
        yield self._data(path)[offset:]

    async def stat(
        self, paths: Iterable[str], *, digest: bool = False, claim: bool = False
    ) -> list[FileStat | PathError]:
        self._alive()
        found: list[FileStat | PathError] = []
        for path in paths:
            where = normalize(path)
            found.append(self._stat(where, digest=digest) if where in self.files else missing(path))
        return found

    async def snapshot(self, max_entries: int = 1_000_000) -> Snapshot:
        self._alive()
        return Snapshot(entries={path.removeprefix(f"{ROOT}/"): self._stat(path) for path in self.files})

    async def list(self, path: str = ".", *, depth: int = 1, max_entries: int = 10_000) -> Listing:
        self._alive()
        beneath = normalize(path) + "/"
        return Listing(entries=tuple(self._stat(name) for name in sorted(self.files) if name.startswith(beneath)))

    def on_egress(self, told: OnEgress) -> None:
        """Kept, so that a test can make an attempt."""
        self.told = told

    async def end_egress(self) -> None:
        """Nothing is open here."""

    async def aclose(self) -> None:
        self.closed += 1

    def _data(self, path: str) -> bytes:
        where = normalize(path)
        if where not in self.files:
            raise missing(path)
        return self.files[where]

    def _stat(self, where: str, *, digest: bool = False) -> FileStat:
        data, stamp = self.files[where], self.stamps.get(where, 0)
        return FileStat(
            path=where, type="file", size=len(data), mode=0o644, mtime_ns=stamp, ctime_ns=stamp, inode=hash(where),
            sha256=sha256(data) if digest else None,
        )  # fmt: skip


def sha256(data: bytes) -> str:
    """In hex."""
    return hashlib.sha256(data).hexdigest()


def missing(path: str, reason: PathReason = "not_found") -> PathError:
    """What a path that is not there is answered with."""
    return PathError(reason, path)


@dataclass
class Stage:
    """One main run's surroundings, everything that happened on it, and short ways to act."""

    sandbox: MemorySandbox = field(default_factory=MemorySandbox)
    events: list[EventBase] = field(default_factory=list)
    requests: list[ModelRequest] = field(default_factory=list)

    async def writer(self, event: EventBase) -> None:
        self.events.append(event)

    def context(self, **fields: Any) -> RuntimeContext:
        return RuntimeContext(
            task_id="task_1", user_id="ada", sandbox=self.sandbox, workspace=ROOT, timezone="UTC", writer=self.writer,
            **fields,
        )  # fmt: skip

    def model(self, *replies: ScriptedReply | str) -> ScriptedModel:
        """A model that gives these replies in turn, whoever asks, and a failing test when it is asked once more."""
        queue = list(replies)

        def reply(request: ModelRequest) -> ScriptedReply:
            self.requests.append(request)
            assert queue, f"no reply is left for {request.messages[-1]}"
            answer = queue.pop(0)
            return ScriptedReply(text=answer) if isinstance(answer, str) else answer

        return ScriptedModel(reply)

    async def run(
        self, *replies: ScriptedReply | str, tools: tuple[Tool, ...] = (), context: RuntimeContext | None = None,
        model: Any = None, past: PastRun | None = None, **config: Any,
    ) -> RunResult:  # fmt: skip
        """Run a main agent on a script."""
        keys = ("write_file", "read_file", *(tool.key for tool in tools))
        settings = {"max_steps": 10, "tool_keys": keys, "extra_tools": tools, **config}
        asked = LoopInput(kind="main", messages=(Message.user("do it"),), past=past)
        return await run_agent_loop(
            context or self.context(), LoopConfig(model=model or self.model(*replies), **settings), asked
        )

    def of(self, kind: type[EventBase], run_id: str | None = None) -> list[Any]:
        """The events of a kind, of one run or of all."""
        return [event for event in self.events if isinstance(event, kind) and run_id in (None, event.run_id)]

    def only_ending(self) -> RunEnded:
        """The one `run_ended` there must be."""
        (ended,) = self.of(RunEnded)
        assert isinstance(ended, RunEnded)
        return ended


def calls(*named: tuple[str, dict[str, Any]], text: str = "", **more: Any) -> ScriptedReply:
    """A reply of tool calls."""
    return ScriptedReply(text=text, calls=tuple(ScriptedCall(tool=tool, input=args) for tool, args in named), **more)


def complete(summary: str = "done", *paths: str) -> ScriptedReply:
    """A reply that completes."""
    return calls(("complete", {"summary": summary, "paths": list(paths)}))


class Nothing(BaseModel):
    """No arguments."""


class Named(BaseModel):
    """One name."""

    name: str = ""


def tool(
    key: str, act: Callable[[ToolContext, Any], Awaitable[ToolOutcome]], *, parallel: bool = False,
    arguments: type[BaseModel] = Named,
) -> Tool:  # fmt: skip
    """A tool made of a function."""
    return Tool(key=key, words=f"the tool {key}", arguments=arguments, call=act, parallel=parallel)


async def hang(context: ToolContext, arguments: Any) -> ToolOutcome:
    """Never answers."""
    await anyio.sleep_forever()
    raise AssertionError


async def until(condition: Callable[[], Any], *, seconds: float = 5.0) -> None:
    """Wait for something that another task of this loop brings about; `TimeoutError` when it does not."""
    with anyio.fail_after(seconds):
        while not condition():
            await anyio.lowlevel.checkpoint()
