"""The shape of the house: who may import whom, what is public, and that the documents' examples are true."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "platform" / "kinfold"

RANKS: dict[str, int] = {
    "errors": 0,
    "messages": 1,
    "definitions": 2,
    "events": 2,
    "config": 2,
    "models": 3,
    "sandbox": 3,
    "tools": 4,
    "agent": 5,
    "tasks": 6,
    "server": 7,
    "interop": 7,
    "testing": 7,
    "cli": 8,
}
"""Imports point down only, or stay in their own room; rooms of one rank do not know each other."""

SEAMS = {("definitions", "kinfold.models.base"): "a definition names an effort, and the model's seam fixes its words"}
"""The exceptions: what a room may import of a higher one, with the reason."""

HOMES: dict[str, tuple[str, ...]] = {
    "docker": ("sandbox/docker/",),
    "requests": ("sandbox/docker/",),
    "anthropic": ("models/anthropic",),
    "tenacity": ("models/retry.py",),
    "sqlalchemy": ("tasks/store",),
    "aiosqlite": ("tasks/store",),
    "alembic": ("tasks/store",),
    "typer": ("cli/",),
    "rich": ("cli/",),
    "starlette": ("server/",),
    "uvicorn": ("server/",),
}
"""Each of these libraries has one place, so that it can be replaced there and is loaded only where it is used."""

PROGRAMS: dict[str, str] = {
    "sandbox/docker/root_file_system.py": "mmdebstrap, for an image's root file system",
    "sandbox/docker/quota.py": "mkfs, mount and umount of a workspace's disk, found in the system's directories",
    "cli/demo/__init__.py": "copies the demo's own files of this package, before any container is",
    "sandbox/local.py": "the supervisor itself as a plain child process, which says that it is no sandbox",
}
"""The only files that start a program on this side, or handle trees by path, and what for."""

STARTERS = {
    *("subprocess", "shutil", "multiprocessing", "pty", "pickle", "marshal", "shelve", "zipfile", "runpy", "code"),
    *("os.system", "os.popen", "os.startfile", "os.fork", "os.forkpty", "os.posix_spawn", "os.posix_spawnp"),
    *(f"os.{word}{tail}" for word in ("exec", "spawn") for tail in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
    *("anyio.open_process", "anyio.run_process", "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"),
    *("yaml.load", "yaml.unsafe_load", "yaml.full_load"),
}
"""What would let a workspace's content run on this side. `exec` and `eval` are the linter's."""

HEAVY = ("anthropic", "docker", "rich", "sqlalchemy", "alembic", "typer")
TEXT_SUFFIXES = {".md", ".toml", ".py", ".c", ".h", ".sh"}
LOOSE_NAMES = {"utils.py", "helpers.py", "common.py", "types.py", "misc.py"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import statement, wherever in its file it stands."""

    file: Path
    line: int
    module: str
    typing_only: bool

    @property
    def place(self) -> str:
        """The importing file below the package: `sandbox/docker/client.py`."""
        return self.file.relative_to(PACKAGE).as_posix()

    @property
    def room(self) -> str:
        """The importing room: the first part of its path, without `.py`."""
        return self.place.split("/")[0].removesuffix(".py")


def imports_of(file: Path) -> Iterator[Import]:
    """Every import in the file; those under `if TYPE_CHECKING:` are marked."""
    tree = ast.parse(file.read_text(), str(file))
    typing_only: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            typing_only |= {id(inner) for statement in node.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # `from kinfold.sandbox import base` may name a module: both readings are checked.
            modules = [node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names)]
        else:
            continue
        for module in modules:
            yield Import(file=file, line=node.lineno, module=module, typing_only=id(node) in typing_only)


ALL_IMPORTS = [found for file in sorted(PACKAGE.rglob("*.py")) for found in imports_of(file)]


def test_platform_is_a_source_root_and_no_package() -> None:
    assert not (ROOT / "platform" / "__init__.py").exists()
    # A fresh interpreter in the repository still finds Python's own module of that name.
    code = "import platform; print(platform.python_version())"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip().startswith("3.")


def test_every_room_has_a_rank() -> None:
    rooms = {path.name.removesuffix(".py") for path in PACKAGE.iterdir() if not path.name.startswith(("_", "."))}
    assert rooms <= RANKS.keys(), f"give these a rank in {Path(__file__).name}: {sorted(rooms - RANKS.keys())}"


def test_imports_point_down_only() -> None:
    wrong = []
    for found in ALL_IMPORTS:
        parts = found.module.split(".")
        if found.room not in RANKS or parts[0] != "kinfold" or len(parts) < 2 or parts[1] not in RANKS:
            continue
        target = parts[1]
        allowed = target == found.room or RANKS[target] < RANKS[found.room] or _is_a_seam(found)
        if not allowed:
            wrong.append(f"{found.place}:{found.line}: {found.room} must not import {found.module}")
    assert not wrong, "\n".join(sorted(set(wrong)))


def _is_a_seam(found: Import) -> bool:
    return any(room == found.room and f"{found.module}.".startswith(f"{seam}.") for room, seam in SEAMS)


def test_each_library_is_imported_only_in_its_own_place() -> None:
    wrong = []
    for found in ALL_IMPORTS:
        homes = HOMES.get(found.module.split(".")[0])
        if homes and not found.place.startswith(homes):
            wrong.append(f"{found.place}:{found.line}: {found.module} belongs in {' or '.join(homes)} only")
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_the_loop_and_the_models_name_no_tool() -> None:
    keys = {path.stem for path in (PACKAGE / "tools").glob("*.md")} - {"task", "complete"}
    wrong = []
    for room in ("agent", "models"):
        for file in sorted((PACKAGE / room).glob("*.py")):
            strings = [n.value for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Constant)]
            wrong += [f"{room}/{file.name} names {key!r}" for key in keys if key in strings]
    assert not wrong, "\n".join(wrong)


def test_no_file_has_a_name_that_says_nothing() -> None:
    loose = [path.relative_to(ROOT).as_posix() for path in PACKAGE.rglob("*.py") if path.name in LOOSE_NAMES]
    assert not loose


def test_the_public_surface_is_what_all_says() -> None:
    import kinfold

    assert sorted(set(kinfold.__all__)) == sorted(kinfold.__all__), "a name stands twice"
    for name in kinfold.__all__:
        assert getattr(kinfold, name) is not None, name
    assert set(kinfold.__all__) <= set(dir(kinfold))
    unknown = "no_such_name"
    with pytest.raises(AttributeError, match=unknown):
        getattr(kinfold, unknown)


def test_importing_kinfold_loads_nothing_heavy() -> None:
    code = f"import sys, kinfold; print([name for name in {HEAVY!r} if name in sys.modules])"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r}); {code}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == "[]"


def test_errors_that_callers_catch_are_drawn_in_one_file() -> None:
    tree = ast.parse((PACKAGE / "errors.py").read_text())
    drawing = ast.get_docstring(tree) or ""
    classes = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    assert classes <= set(re.findall(r"\w+", drawing)), "the tree at the top of errors.py lacks a class"


def python_examples(document: Path) -> list[tuple[int, str]]:
    """The document's Python blocks with the line that each begins on."""
    found = re.finditer(r"^```python\n(.*?)^```", document.read_text(), re.DOTALL | re.MULTILINE)
    text = document.read_text()
    return [(text[: match.start()].count("\n") + 2, match.group(1)) for match in found]


EXAMPLES = [
    pytest.param(document, line, code, id=f"{document.relative_to(ROOT).as_posix()}:{line}")
    for document in (ROOT / "README.md", ROOT / "platform" / "README.md")
    for line, code in python_examples(document)
]


def test_the_readme_has_an_example_of_at_most_15_lines() -> None:
    examples = [code for _, code in python_examples(ROOT / "README.md")]
    assert examples
    assert all(len(code.splitlines()) <= 15 for code in examples)


@pytest.mark.docker
@pytest.mark.parametrize(("document", "line", "code"), EXAMPLES)
def test_every_example_in_the_documents_runs(
    document: Path, line: int, code: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Each runs as its own program in an empty directory; what its comments promise (`# → …`) is what it prints."""
    program = tmp_path / "example.py"
    program.write_text(code)
    work = tmp_path / "empty"
    work.mkdir()
    command = [sys.executable, "-c", _runner(program)]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, f"{document.name}:{line} failed:\n{done.stderr}"
    for promised in re.findall(r"# → (.*)$", code, re.MULTILINE):
        assert promised.strip() in done.stdout, f"{document.name}:{line} does not print {promised!r}:\n{done.stdout}"


def _runner(program: Path) -> str:
    source_root = f"import runpy, sys; sys.path.insert(0, {str(PACKAGE.parent)!r})"
    return f"{source_root}; runpy.run_path({str(program)!r}, run_name='__main__')"


def test_every_link_in_the_documents_leads_somewhere() -> None:
    documents = [
        ROOT / "README.md",
        ROOT / "CHANGELOG.md",
        *(ROOT / "platform").glob("*.md"),
        *(ROOT / "sandbox_images").glob("*.md"),
    ]
    broken = [
        f"{document.relative_to(ROOT)}: {target}"
        for document in documents
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", document.read_text())
        if not (document.parent / target).exists()
    ]
    assert not broken, "\n".join(broken)


def test_no_committed_text_names_the_place_where_it_was_written() -> None:
    folders = ("platform", "sandbox_images", "scripts", "tests", ".ci")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in TEXT_SUFFIXES]
    named = [path for path in [*files, *ROOT.glob("*.md")] if path != Path(__file__) and str(ROOT) in path.read_text()]
    assert not named


def _words_of(tree: ast.AST) -> Iterator[str]:
    """Every module that is imported and every dotted name that is used."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Attribute):
            yield ast.unparse(node)
            yield f"*.{node.attr}"


@pytest.mark.threat("P19")
def test_no_program_of_this_side_runs_in_or_on_a_workspace() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        name = path.relative_to(PACKAGE).as_posix()
        tree = ast.parse(path.read_bytes())
        words = set(_words_of(tree))
        if "cli/demo/planted/" in name:
            continue  # a program for the agents; it never runs on this side
        if name in PROGRAMS:
            given = {word.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for word in node.keywords}
            assert "shell" not in given and ("cwd" not in given or name == "sandbox/local.py"), name
        else:
            assert not words & STARTERS, (name, words & STARTERS)
        assert not words & {"*.extractall", "*.extract_all", "shutil.unpack_archive"}, name
