"""`kinfold demo`: the main job with a scripted model and real everything else.

The input tree is copied into a staging directory (`tree/`) beside a small package with a failing test (`planted/`); the
workspace is a copy of that. Three subagents then measure, mend and report in one container, and the main agent compares
the two independent totals.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from kinfold.cli.ending import EXIT_OTHER, say_error
from kinfold.cli.run import RunOptions, run_for_result
from kinfold.errors import ConfigError
from kinfold.tasks.result import TaskResult

HERE = Path(__file__).parent
EXPECTED = ("inventory.json", "fix.patch", "test.log", "report.md", "sizes.svg")
MAX_TREE_BYTES = 512 * 1024 * 1024
_LEFT_OUT = ("build", "dist", "__pycache__", "node_modules", "_bin")
PROMPT = (
    "Take stock of the tree in `tree/`: measure it twice by independent means, mend the failing test in `planted/`, "
    "and report. Everything that you make goes to `out/`."
)


def own_tree() -> Path:
    """kinfold's own tree: the checkout it runs from, or else the installed package."""
    package = Path(__file__).resolve().parents[2]
    checkout = package.parent.parent
    return checkout if (checkout / "pyproject.toml").is_file() else package


def stage(source: Path, target: Path) -> None:
    """Copy `source` to `target/tree` and plant the failing test beside it.

    Hidden entries and build leftovers stay out; links are copied as links. Raises `ConfigError` for what is no
    directory or larger than 512 MiB.
    """
    if not source.is_dir():
        raise ConfigError(
            f"{str(source)!r} is not a directory", hint="name a directory, or none for kinfold's own tree"
        )
    size = sum(_sizes(source))
    if size > MAX_TREE_BYTES:
        raise ConfigError(
            f"{str(source)!r} holds {size:,} bytes, more than the demo's {MAX_TREE_BYTES:,}",
            hint="name a smaller directory; `kinfold run --workspace DIR` has no such bound",
        )
    shutil.copytree(source, target / "tree", symlinks=True, ignore=_left_out)
    shutil.copytree(HERE / "planted", target / "planted", ignore=_left_out)


def demo_command(directory: Path | None, *, json: bool, verbose: bool) -> int:
    """Run the demo; 0 only when every promised file was delivered and the totals agree."""
    with tempfile.TemporaryDirectory(prefix="kinfold-demo-") as staging:
        stage((directory or own_tree()).resolve(), Path(staging))
        options = RunOptions(
            prompt=PROMPT,
            workspace=staging,
            copy=True,
            json=json,
            verbose=verbose,
            flags={"model": f"scripted:{HERE / 'script.yaml'}"},
        )
        code, result = run_for_result(options)
    if result is None or code:
        return code
    missing = what_is_missing(result)
    if missing:
        say_error(f"the demo ended, but {'; '.join(missing)}", "run it again with -v and read what the agents did")
        return EXIT_OTHER
    return code


def what_is_missing(result: TaskResult) -> list[str]:
    """What the demo promised and this result does not show; empty: all of it."""
    delivered = {artifact.path.rsplit("/", 1)[-1] for artifact in result.artifacts}
    missing = [f"{name} was not delivered" for name in EXPECTED if name not in delivered]
    if "totals agree" not in result.summary:
        missing.append("the two totals do not agree")
    return missing


def _left_out(directory: str, names: list[str]) -> set[str]:
    return {
        name
        for name in names
        if name.startswith(".") or name in _LEFT_OUT or not _copyable(os.path.join(directory, name))
    }


def _copyable(path: str) -> bool:
    return os.path.islink(path) or os.path.isdir(path) or os.path.isfile(path)


def _sizes(source: Path) -> list[int]:
    sizes = []
    for parent, directories, names in os.walk(source):
        left_out = _left_out(parent, directories + names)
        directories[:] = [name for name in directories if name not in left_out]
        sizes += [os.lstat(os.path.join(parent, name)).st_size for name in names if name not in left_out]
    return sizes
