"""Which image a spec means on this engine: looked up locally first, pulled only where a registry can have it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from kinfold.errors import EngineUnavailable, ImageMissing
from kinfold.sandbox.base import SandboxSpec
from kinfold.sandbox.docker.client import Engine, EngineRefused

if TYPE_CHECKING:
    from docker.api.client import APIClient

PULL_DEADLINE = 900.0
_BUILT_HERE = re.compile(r"kinfold/[a-z0-9._-]+(:[\w.-]+)?\Z")
"""Names that `kinfold images build` makes; no registry has them."""
_BARE_ID = re.compile(r"(sha256:)?[0-9a-f]{12,64}\Z")


async def find_image(engine: Engine, spec: SandboxSpec) -> str:
    """The digest of the image that `spec` names. Raises `ImageMissing`, `EngineUnavailable`."""
    if spec.pull != "always":
        found = await local_image(engine, spec.image)
        if found is not None:
            return found
    if spec.pull == "never" or not _pullable(spec.image):
        raise _missing(spec.image, "is not on the engine")
    await _pull(engine, spec.image)
    found = await local_image(engine, spec.image)
    if found is None:
        raise _missing(spec.image, "was pulled, but the engine does not know it by this name")
    return found


async def local_image(engine: Engine, image: str) -> str | None:
    """The digest of an image that is on the engine; None where it is not."""
    try:
        found = await engine.call(f"look for image {image}", lambda api: api.inspect_image(image))
    except EngineRefused as error:
        if error.status == 404:
            return None
        raise
    return str(found["Id"])


def _pullable(image: str) -> bool:
    return not _BUILT_HERE.match(image) and not _BARE_ID.match(image)


async def _pull(engine: Engine, image: str) -> None:
    try:
        problem = await engine.call(f"pull {image}", lambda api: _pull_all(api, image), deadline=PULL_DEADLINE)
    except EngineRefused as error:
        raise _missing(image, f"is not on the engine and could not be pulled: {error.explanation[:300]}") from error
    except EngineUnavailable as error:
        if "did not answer within" not in error.message:
            raise
        raise _missing(image, f"is not on the engine and was not pulled within {PULL_DEADLINE:g} s") from error
    if problem:
        raise _missing(image, f"is not on the engine and could not be pulled: {problem}")


def _pull_all(api: APIClient, image: str) -> str:
    """Blocking. The registry's complaint, or nothing."""
    problem = ""
    progress: Any = api.pull(*_name_and_tag(image), stream=True, decode=True)
    for line in progress:
        if isinstance(line, dict) and line.get("error"):
            problem = str(line["error"])[:300]
    return problem


def _name_and_tag(image: str) -> tuple[str, str | None]:
    """Without a tag the SDK would pull all of them."""
    if "@" in image:
        return image, None
    name, _, tag = image.rpartition(":")
    return (name, tag) if name and "/" not in tag else (image, "latest")


def _missing(image: str, why: str) -> ImageMissing:
    if _BUILT_HERE.match(image):
        return ImageMissing(f"image {image} {why}", hint="kinfold images build")
    return ImageMissing(f"image {image} {why}", hint=f"`docker pull {image}`, or use an image that is there (--image)")
