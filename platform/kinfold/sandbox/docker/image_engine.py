"""The engine's image calls that building needs: inspect, pull, build, import, tag."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.from_thread

from kinfold.errors import EngineUnavailable, SandboxError
from kinfold.sandbox.docker.client import Engine, EngineRefused

if TYPE_CHECKING:
    from docker.api.client import APIClient

SILENCE = 20.0
"""Seconds without a word from the registry after which it counts as out of reach."""
STEP_TIMEOUT = 900
"""Seconds that one step of a build may be silent."""
WHOLE = 3600.0
"""Seconds for a whole pull, build or import."""
KEPT_WORDS = 2000
STEP_WIDTH = 100

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredImage:
    """An image as the engine describes it."""

    id: str
    size_bytes: int
    created_at: str
    labels: Mapping[str, str]


class ImageEngine:
    """An engine, seen by whoever builds images; does not own it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def inspect(self, tag: str) -> StoredImage | None:
        """What the engine knows of an image; None where it has none of that name."""
        try:
            found = await self._engine.call(f"look at the image {tag}", partial(_inspect, tag))
        except EngineRefused as error:
            if error.status == 404:
                return None
            raise
        config = found.get("Config") or found.get("ContainerConfig") or {}
        return StoredImage(
            id=str(found["Id"]),
            size_bytes=int(found.get("Size", 0)),
            created_at=str(found.get("Created", "")),
            labels=dict(config.get("Labels") or {}),
        )

    async def obtain(self, image: str, progress: Progress) -> bool:
        """True when the engine has the image, or pulls it from a registry that is never silent for 20 s."""
        if await self.inspect(image) is not None:
            return True
        progress(f"asking the registry for {image}")
        with anyio.move_on_after(SILENCE) as scope:

            def heard() -> None:
                scope.deadline = anyio.current_time() + SILENCE

            try:
                problem = await self._engine.call(f"pull {image}", lambda api: _pull(api, image, heard), deadline=WHOLE)
            except EngineRefused as error:
                problem = error.explanation
            except EngineUnavailable as error:
                problem = error.message
            if problem is not None:
                progress(f"{image} cannot be pulled: {problem}")
            return problem is None
        progress(f"no registry answered within {SILENCE:g} s")
        return False

    async def build(self, folder: Path, *, tag: str, base: str, labels: Mapping[str, str], progress: Progress) -> None:
        """Build the folder's Dockerfile with `BASE` set. Raises `SandboxError` with the failing step's own words."""

        def work(api: APIClient) -> str | None:
            return _build(api, folder, tag, base, dict(labels), progress)

        problem = await self._engine.call(f"build {tag}", work, deadline=WHOLE)
        if problem is not None:
            raise SandboxError(
                f"building {tag} failed: {problem}",
                hint="the step's last words above say why; a step that installs needs the engine to reach a mirror",
            )

    async def import_tar(self, tar: Path, *, tag: str, labels: Mapping[str, str]) -> None:
        """Make an image of one root file system."""
        repository, _, name = tag.rpartition(":")
        changes = [f'LABEL {key}="{value}"' for key, value in labels.items()]

        def work(api: APIClient) -> str:
            return str(api.import_image(str(tar), repository=repository, tag=name, changes=changes))

        answer = await self._engine.call(f"import {tag}", work, deadline=WHOLE)
        if '"error"' in answer:
            raise SandboxError(f"the engine refused the root file system for {tag}: {answer.strip()[:KEPT_WORDS]}")

    async def tag(self, image: str, new: str) -> None:
        """Give an image one more name; a name that another image had moves."""
        repository, _, name = new.rpartition(":")
        await self._engine.call(f"tag {new}", lambda api: api.tag(image, repository, name, force=True))

    async def untag(self, tag: str) -> None:
        """Take a name away; layers that another image uses stay."""
        await self._engine.call(f"remove the name {tag}", lambda api: api.remove_image(tag, noprune=True))


def _inspect(tag: str, api: APIClient) -> dict[str, Any]:
    found: dict[str, Any] = api.inspect_image(tag)  # type: ignore[no-untyped-call]
    return found


def _pull(api: APIClient, image: str, heard: Callable[[], None]) -> str | None:
    """Pull; None when done, else why not. Calls `heard` in the event loop at every word of the registry's."""
    from docker.utils import parse_repository_tag

    repository, tag = parse_repository_tag(image)  # a registry's port is no tag
    for line in api.pull(repository, tag=tag or "latest", stream=True, decode=True):
        anyio.from_thread.run_sync(heard)
        if "error" in line:
            return str(line["error"])
    return None


def _build(api: APIClient, folder: Path, tag: str, base: str, labels: dict[str, str], progress: Progress) -> str | None:
    """Build and pass each step on; None when done, else the engine's own words about the failure.

    The build shares the machine's network: name servers and proxies on loopback are reached like from the host.
    """
    words = ""
    for line in api.build(
        path=str(folder),
        tag=tag,
        buildargs={"BASE": base},
        labels=labels,
        network_mode="host",
        rm=True,
        forcerm=True,
        decode=True,
        timeout=STEP_TIMEOUT,
    ):
        anyio.from_thread.check_cancelled()
        if "error" in line:
            return f"{str(line['error']).strip()}\n{words.strip()}".strip()
        text = str(line.get("stream", ""))
        words = (words + text)[-KEPT_WORDS:]
        if text.startswith("Step "):
            anyio.from_thread.run_sync(progress, textwrap.shorten(text, STEP_WIDTH, placeholder=" …"))
    return None
