"""Builds and lists kinfold's sandbox images, whether an image registry is in reach or not.

`kinfold/base` is built on `debian:bookworm-slim` where the engine has that or can pull it; otherwise on a root file
system made by mmdebstrap, which is kept under a tag of its own (`kinfold/os:<suite>`), since it takes a minute or two.
"""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import anyio

from kinfold import config
from kinfold.errors import ImageMissing
from kinfold.sandbox.docker import recipes, root_file_system
from kinfold.sandbox.docker.client import Engine
from kinfold.sandbox.docker.image_engine import ImageEngine, StoredImage
from kinfold.sandbox.docker.recipes import Recipe
from kinfold.sandbox.docker.root_file_system import Progress

DEFAULT_BASE = "debian:bookworm-slim"
OS_REPOSITORY = "kinfold/os"
RECIPE_LABEL = "kinfold.recipe"
BASE_LABEL = "kinfold.base"
LOCK_POLL = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxImage:
    """One of kinfold's images as the engine has it."""

    name: str
    """`kinfold/base`, `kinfold/python` or `kinfold/node`."""
    tag: str
    """This version's tag: `kinfold/base:0.1.0`."""
    present: bool
    """The engine has this version's image."""
    current: bool
    """It was built by this version's recipe; False for one that is missing or out of date."""
    id: str | None = None
    size_bytes: int | None = None
    created_at: str | None = None
    """RFC 3339, as the engine says it."""
    built_on: str | None = None
    """The image below `kinfold/base`: `debian:bookworm-slim`, `kinfold/os:bookworm`…"""

    def __str__(self) -> str:
        return self.tag

    def line(self) -> str:
        """Tag, state, size and origin in one line."""
        if not self.present:
            return f"{self.tag}\tmissing\t`kinfold images build {self.name.removeprefix('kinfold/')}` makes it"
        state = "current" if self.current else "out of date"
        return f"{self.tag}\t{state}\t{(self.size_bytes or 0) / 1e6:.0f} MB\ton {self.built_on or 'an unknown image'}"


async def build(
    names: Iterable[str] = ("base",),
    progress: Progress = lambda line: None,
    *,
    host: str | None = None,
    state_dir: Path | None = None,
    base: str | None = None,
) -> tuple[SandboxImage, ...]:
    """Build the named images and those they need; an image that is up to date is left alone.

    Only one build at a time runs per state directory; a second caller waits for the first. `base` names another image
    to build `kinfold/base` on. Raises `ConfigError`, `EngineUnavailable`, `ImageMissing` or `SandboxError`.
    """
    wanted = _with_parents(recipes.in_build_order(names))
    async with _engine(host) as engine, _single_flight(state_dir or config.state_dir(), progress):
        builder = _Builder(engine=engine, progress=progress, base=base)
        return tuple([await builder.ensure(recipe) for recipe in wanted])


async def list_images(*, host: str | None = None) -> tuple[SandboxImage, ...]:
    """Every image that kinfold ships and its state on the engine. Raises `EngineUnavailable`."""
    async with _engine(host) as engine:
        return tuple([await _state_of(engine, recipes.find(name)) for name in recipes.PARENT])


def tag_of(recipe: Recipe) -> str:
    """The image's name with this version's tag."""
    return f"{recipe.repository}:{version('kinfold')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Builder:
    """Builds recipes on one engine; the base image's origin decides how its children get their packages."""

    engine: ImageEngine
    progress: Progress
    base: str | None

    async def ensure(self, recipe: Recipe) -> SandboxImage:
        """Build the image unless it is there and current; its parent must be there."""
        known = await _state_of(self.engine, recipe)
        if known.current and (self.base is None or recipe.parent or known.built_on == self.base):
            self.progress(f"{known.tag} is up to date")
        elif recipe.parent is None:
            await self._build_base(recipe)
        else:
            await self._build_child(recipe, recipe.parent)
        return await _state_of(self.engine, recipe)

    async def _build_base(self, recipe: Recipe) -> None:
        if self.base is not None:
            if not await self.engine.obtain(self.base, self.progress):
                raise ImageMissing(
                    f"the image {self.base!r} to build on is neither on the engine nor can it be pulled",
                    hint=f"load it into the engine, or leave it out to build on {DEFAULT_BASE}",
                )
            below = self.base
        elif await self.engine.obtain(DEFAULT_BASE, self.progress):
            below = DEFAULT_BASE
        else:
            below = await self._bootstrapped(recipe)
        await self._build(recipe, on=below, built_on=below, tag=tag_of(recipe))

    async def _build_child(self, recipe: Recipe, parent: Recipe) -> None:
        """On the parent where apt answers inside a build; else on a parent bootstrapped with the child's packages."""
        below = await _state_of(self.engine, parent)
        origin = below.built_on or ""
        if not origin.startswith(f"{OS_REPOSITORY}:"):
            await self._build(recipe, on=below.tag, built_on=origin, tag=tag_of(recipe))
            return
        origin = await self._bootstrapped(recipe)
        intermediate = f"{parent.repository}:{version('kinfold')}-for-{recipe.name}"
        await self._build(parent, on=origin, built_on=origin, tag=intermediate, latest=False)
        await self._build(recipe, on=intermediate, built_on=origin, tag=tag_of(recipe))
        await self.engine.untag(intermediate)

    async def _build(self, recipe: Recipe, *, on: str, built_on: str, tag: str, latest: bool = True) -> None:
        self.progress(f"building {tag} on {on}")
        labels = {RECIPE_LABEL: recipe.digest, BASE_LABEL: built_on}
        await self.engine.build(recipe.folder, tag=tag, base=on, labels=labels, progress=self.progress)
        if latest:
            await self.engine.tag(tag, f"{recipe.repository}:latest")
        self.progress(f"built {tag}")

    async def _bootstrapped(self, recipe: Recipe) -> str:
        """The tag of a root file system with the recipe's packages, made now unless the engine has it already."""
        origin = root_file_system.own_origin()
        tag = f"{OS_REPOSITORY}:{origin.suite}" + (f"-{recipe.name}" if recipe.parent else "")
        content = " ".join(recipe.packages)
        known = await self.engine.inspect(tag)
        if known is not None and known.labels.get("kinfold.packages") == content:
            self.progress(f"using {tag}")
            return tag
        self.progress(f"making {tag} with mmdebstrap, which takes a minute or two")
        with tempfile.TemporaryDirectory(prefix="kinfold-os-") as folder:
            tar = Path(folder) / "root.tar"
            await root_file_system.make(tar, packages=recipe.packages, origin=origin, progress=self.progress)
            await self.engine.import_tar(tar, tag=tag, labels={"kinfold.packages": content})
        self.progress(f"made {tag}")
        return tag


@asynccontextmanager
async def _engine(host: str | None) -> AsyncIterator[ImageEngine]:
    engine = Engine(host)
    try:
        yield ImageEngine(engine)
    finally:
        await engine.aclose()


async def _state_of(engine: ImageEngine, recipe: Recipe) -> SandboxImage:
    tag = tag_of(recipe)
    stored: StoredImage | None = await engine.inspect(tag)
    if stored is None:
        return SandboxImage(name=recipe.repository, tag=tag, present=False, current=False)
    return SandboxImage(
        name=recipe.repository,
        tag=tag,
        present=True,
        current=stored.labels.get(RECIPE_LABEL) == recipe.digest,
        id=stored.id,
        size_bytes=stored.size_bytes,
        created_at=stored.created_at,
        built_on=stored.labels.get(BASE_LABEL),
    )


def _with_parents(wanted: Sequence[Recipe]) -> tuple[Recipe, ...]:
    names = {recipe.name for recipe in wanted}
    parents = {recipe.parent.name for recipe in wanted if recipe.parent}
    return recipes.in_build_order(names | parents)


@asynccontextmanager
async def _single_flight(state_dir: Path, progress: Progress) -> AsyncIterator[None]:
    """Hold the state directory's build lock; released by the kernel when this process ends, however it ends."""
    state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (state_dir / "images.lock").open("a") as lock:
        told = False
        while not _locked(lock.fileno()):
            if not told:
                progress("another process is building images here; waiting for it")
                told = True
            await anyio.sleep(LOCK_POLL)
        yield


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
