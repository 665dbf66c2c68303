"""What the sandbox images are made of: the Dockerfiles and package lists that travel with kinfold."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import kinfold
from kinfold.errors import ConfigError

PARENT: dict[str, str | None] = {"base": None, "python": "base", "node": "base"}
"""Every image that kinfold ships, and the one that it builds on; parents come first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """One image: a folder with a Dockerfile and the list of Debian packages that it adds."""

    name: str
    """`base`, `python` or `node`."""
    folder: Path
    parent: Recipe | None

    @property
    def repository(self) -> str:
        """The image's name without its tag."""
        return f"kinfold/{self.name}"

    @property
    def packages(self) -> tuple[str, ...]:
        """The Debian packages of this image and of those it builds on, sorted."""
        own = {line.strip() for line in (self.folder / "packages").read_text().splitlines() if line.strip()}
        inherited = self.parent.packages if self.parent else ()
        return tuple(sorted({name for name in own if not name.startswith("#")} | set(inherited)))

    @property
    def digest(self) -> str:
        """Hex sha256 of all that decides the image's content; an image labelled with another one is out of date."""
        total = hashlib.sha256()
        for name in ("Dockerfile", "packages"):
            total.update((self.folder / name).read_bytes() + b"\0")
        total.update(self.parent.digest.encode() if self.parent else b"")
        return total.hexdigest()


def find(name: str) -> Recipe:
    """The recipe of `base`, `python` or `node` (also as `kinfold/base`). Raises `ConfigError` for any other name."""
    short = name.removeprefix("kinfold/").removesuffix(":latest")
    if short not in PARENT:
        raise ConfigError(f"there is no sandbox image {name!r}", hint=f"choose from: {', '.join(PARENT)}")
    parent = PARENT[short]
    return Recipe(name=short, folder=_root() / short, parent=find(parent) if parent else None)


def in_build_order(names: Iterable[str]) -> tuple[Recipe, ...]:
    """The named recipes, without repeats, parents first."""
    wanted = {find(name).name for name in names}
    return tuple(find(name) for name in PARENT if name in wanted)


def _root() -> Path:
    """The folder with one folder per image: inside an installed package, or `sandbox_images` of a source tree."""
    package = Path(kinfold.__file__).parent
    for candidate in (package / "_images", package.parents[1] / "sandbox_images"):
        if (candidate / "base" / "Dockerfile").is_file():
            return candidate
    raise ConfigError("this installation of kinfold carries no Dockerfiles", hint="reinstall it: pip install kinfold")
