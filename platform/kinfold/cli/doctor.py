"""`kinfold doctor`: what works here, what this engine was measured to enforce, and what to do about the rest."""

from __future__ import annotations

import platform
import sys
from typing import TYPE_CHECKING

import kinfold
from kinfold.cli.ending import one_line
from kinfold.cli.foreground import run_async
from kinfold.errors import KinfoldError
from kinfold.sandbox.base import ProbeReport

if TYPE_CHECKING:
    from kinfold.sandbox.docker.client import EngineFacts


def doctor_command() -> int:
    """Print a line per check; 1 when something is wrong."""
    print(f"kinfold {kinfold.__version__}, Python {platform.python_version()}, {platform.machine()}")
    wrong = 0
    for check in (_supervisor, _store, _images, _engine):
        try:
            check()
        except KinfoldError as error:
            wrong += 1
            print(one_line(f"wrong: {error.message}"))
            if error.hint:
                print(one_line(f"  hint: {error.hint}"))
    print(f"{wrong} problem{'s' if wrong != 1 else ''}" if wrong else "all well", file=sys.stderr)
    return 1 if wrong else 0


def _supervisor() -> None:
    from kinfold.sandbox.binary import supervisor_digest, supervisor_path

    print(one_line(f"supervisor: {supervisor_path()} ({supervisor_digest()[:12]})"))


def _store() -> None:
    """Whether the store can be read and written, and is whole."""
    from kinfold.cli.run import load_settings
    from kinfold.tasks.store.door import Store

    async def check() -> str:
        async with Store(load_settings({}).state_dir) as store:
            return await (await store.database()).check()

    print(one_line(f"store: {run_async(check)}"))


def _images() -> None:
    from kinfold.errors import ImageMissing
    from kinfold.sandbox.docker import images

    found = run_async(images.list_images)
    for image in found:
        print(one_line(f"image: {image.line()}"))
    if not any(image.current and image.name == "kinfold/base" for image in found):
        raise ImageMissing("this version's kinfold/base is not built", hint="kinfold images build")


def _engine() -> None:
    from kinfold.cli.run import load_settings, make_provider
    from kinfold.sandbox.docker.floors import outdated

    async def probe() -> tuple[ProbeReport, EngineFacts]:
        async with make_provider(load_settings({})) as provider:
            return await provider.probe(), await provider.engine.facts()

    report, facts = run_async(probe)
    print(one_line(f"engine: {report.engine}"))
    for control in report.controls:
        print(one_line(f"  {'enforced    ' if control.enforced else 'NOT enforced'} {control.name}  {control.reason}"))
    old = outdated(facts)
    for part in old:
        print(one_line(f"warning: {part.describe()}"))
    if old:
        print("  hint: update it; a distribution's package may have the fix under an older number: its changelog says")
