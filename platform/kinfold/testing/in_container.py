"""What the fixtures of `plugin.py` are: tasks and sandboxes in containers of one test, and models made of a script."""

from __future__ import annotations

import asyncio
import functools
import gc
import itertools
import warnings
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import anyio
from pydantic import ValidationError

from kinfold.errors import ConfigError, SandboxError
from kinfold.models.base import Model
from kinfold.models.script_file import HINT, Script
from kinfold.models.scripted import ScriptedModel
from kinfold.sandbox.base import SandboxSpec
from kinfold.sandbox.docker.provider import DockerProvider
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tasks.result import TaskResult
from kinfold.tasks.task import ParentTask

Files = Mapping[str, str | bytes] | Path
"""What the workspace holds at first: contents by relative path, or a directory to be copied; the original stays."""


class RunTask:
    """Runs parent tasks for one test; each in a container and a workspace of its own, gone when it ends."""

    def __init__(self, *, state_dir: Path, folder: Path, image: str) -> None:
        self._state_dir = state_dir
        self._workspaces = _Workspaces(folder, image)
        self._numbers = itertools.count(1)
        self._folder = folder
        self.out = folder / "out-0"
        """The directory with the artifacts of the last task, by their paths in the workspace."""

    def __call__(
        self,
        prompt: str,
        *,
        model: Model | str,
        files: Files | None = None,
        spec: SandboxSpec | None = None,
        **options: Any,
    ) -> TaskResult:
        """Run a task to its end. `options` are those of `kinfold.ParentTask`: definitions, limits, tools, record…

        Raises `ConfigError` and `SandboxError` before the first step; afterwards every ending is a result.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return anyio.run(functools.partial(self.run, prompt, model=model, files=files, spec=spec, **options))
        raise RuntimeError("an event loop runs here: `await kinfold_task.run(…)` instead of calling kinfold_task")

    async def run(
        self,
        prompt: str,
        *,
        model: Model | str,
        files: Files | None = None,
        spec: SandboxSpec | None = None,
        **options: Any,
    ) -> TaskResult:
        """The same for an asynchronous test, on asyncio."""
        self.out = self._folder / f"out-{next(self._numbers)}"
        given = {"spec": self._workspaces.spec(spec, files), "out": self.out, "state_dir": self._state_dir, **options}
        async with ParentTask(prompt, model=model, **given) as task:
            await task.start()
            await task.wait()
        return task.result


class OpenSandbox:
    """Opens sandboxes for one test."""

    def __init__(self, *, state_dir: Path, folder: Path, image: str) -> None:
        self._state_dir = state_dir
        self._workspaces = _Workspaces(folder, image)

    @asynccontextmanager
    async def __call__(self, *, files: Files | None = None, spec: SandboxSpec | None = None) -> AsyncIterator[Sandbox]:
        """A sandbox that is removed when the block is left. Raises `ConfigError` and `SandboxError`."""
        async with (
            DockerProvider(state_dir=self._state_dir) as provider,
            await provider.create(self._workspaces.spec(spec, files)) as sandbox,
        ):
            yield sandbox


def scripted_model(
    file: str | Path | None = None,
    *,
    main: list[Any] | None = None,
    subagents: Mapping[str, list[Any]] | None = None,
) -> ScriptedModel:
    """The model that plays a script: of a YAML file, or given here in the same form. Raises `ConfigError`.

    A reply is a text, or a dict of `text`, `calls` (`{"tool": …, "input": {…}}`), `stop_reason`, `usage` and `delay`;
    `subagents` has lists of them by the label of the `task` call, else by the subagent's type.
    """
    if file is not None:
        return ScriptedModel.from_file(Path(file))
    try:
        script = Script(main=main or [], subagents=dict(subagents or {}), source="the test's script")
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
        raise ConfigError(f"the test's script: {problems}", hint=HINT) from None
    return ScriptedModel(script.reply)


def engine_problem(state_dir: Path) -> str | None:
    """Why no container engine answers, with the way out; None where one does."""
    found: list[str] = []

    async def ask() -> None:
        async with DockerProvider(state_dir=state_dir) as provider:
            try:
                await provider.list()
            except SandboxError as error:
                found.append(f"{error.message}; {error.hint}")

    with ThreadPoolExecutor(1, "kinfold-engine-check") as thread:  # which has no event loop yet, whatever runs in this
        thread.submit(anyio.run, ask).result()
    if not found:
        return None
    with warnings.catch_warnings():
        # The docker SDK drops the socket of a connect that failed; it must not fail a suite where warnings are errors.
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
    return found[0]


class _Workspaces:
    """Makes the specs of one test's sandboxes."""

    def __init__(self, folder: Path, image: str) -> None:
        self._folder = folder
        self._image = image
        self._numbers = itertools.count(1)

    def spec(self, spec: SandboxSpec | None, files: Files | None) -> SandboxSpec:
        """What is asked for; the image and the workspace's short life are added where nothing was said of them."""
        fields: dict[str, Any] = {"image": self._image, "keep": 0.0}
        if spec is not None:
            fields |= {name: getattr(spec, name) for name in spec.model_fields_set}
        if files is not None:
            if {"workspace", "copy_from"} & fields.keys():
                raise ConfigError("`files`, and a workspace in the spec", hint="give one of them")
            fields["copy_from"] = str(files if isinstance(files, Path) else self._written(files))
        return SandboxSpec(**fields)

    def _written(self, files: Mapping[str, str | bytes]) -> Path:
        folder = self._folder / f"files-{next(self._numbers)}"
        folder.mkdir()
        for name, content in files.items():
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or path == PurePosixPath():
                raise ConfigError(f"files: {name!r} is no path in a workspace", hint="name it relative, without `..`")
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(content.encode() if isinstance(content, str) else content)
        return folder
