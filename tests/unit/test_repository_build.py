"""What the build hook makes, and what it says where it cannot."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TREE = ("pyproject.toml", "README.md", "LICENSE", "platform", "sandbox_images", "scripts")
PROGRAM = "int main(void) { return 7; }\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the source tree whose supervisor is a one-line program, so that compiling takes no time."""
    copy = tmp_path / "tree"
    copy.mkdir()
    for name in TREE:
        source = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__", "_bin", "build", "bench")
        shutil.copytree(source, copy / name, ignore=ignore) if source.is_dir() else shutil.copy(source, copy / name)
    supervisor = copy / "sandbox_images" / "supervisor"
    for path in supervisor.glob("*.[ch]"):
        path.unlink()
    (supervisor / "main.c").write_text(PROGRAM)
    return copy


def build(tree: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build a wheel into `dist` with the running environment's hatchling."""
    return subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", "dist"],
        cwd=tree,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_the_wheel_carries_the_supervisor_the_images_and_the_words(tree: Path) -> None:
    done = build(tree)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tree / "dist").iterdir()
    machine = os.uname().machine
    assert wheel.name == f"kinfold-0.1.0-py3-none-linux_{machine}.whl"
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        for image in ("base", "python", "node"):
            assert {f"kinfold/_images/{image}/Dockerfile", f"kinfold/_images/{image}/packages"} <= names
        words = {f"kinfold/{path.relative_to(ROOT / 'platform' / 'kinfold')}" for path in _words()}
        assert words <= names
        assert not [name for name in names if name.startswith(("tests/", "scripts/", "platform/"))]
        info = opened.getinfo("kinfold/_bin/kinfold-supervisor")
        assert (info.external_attr >> 16) & 0o111, "the supervisor is not executable"
        binary = Path(opened.extract(info, tree))
    binary.chmod(0o755)
    assert subprocess.run([binary], check=False).returncode == 7


def _words() -> list[Path]:
    return list((ROOT / "platform" / "kinfold").rglob("*.md"))


def test_the_binary_needs_no_library(tree: Path) -> None:
    assert build(tree).returncode == 0
    (binary,) = (tree / "sandbox_images" / "supervisor" / "build").glob("wheel-*/kinfold-supervisor")
    headers = subprocess.run(["readelf", "-l", str(binary)], capture_output=True, text=True, check=True).stdout
    assert "INTERP" not in headers


def test_an_editable_install_has_one_binary_where_the_makefile_puts_it(tree: Path) -> None:
    code = "from hatchling.build import build_editable; print(build_editable('dist'))"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tree, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(tree.rglob("kinfold-supervisor")) == [
        tree / "sandbox_images" / "supervisor" / "build" / "kinfold-supervisor"
    ]
    (wheel,) = (tree / "dist").iterdir()
    with zipfile.ZipFile(wheel) as opened:
        assert not [name for name in opened.namelist() if "supervisor" in name]


def test_the_binary_knows_which_sources_it_was_built_from(tree: Path) -> None:
    source = "#include <stdio.h>\nint main(void) { return puts(KF_BUILD) < 0; }\n"
    supervisor = tree / "sandbox_images" / "supervisor"
    (supervisor / "main.c").write_text(source)
    (supervisor / "a.h").write_text("/* nothing */\n")
    assert build(tree).returncode == 0
    (binary,) = (supervisor / "build").glob("wheel-*/kinfold-supervisor")
    said = subprocess.run([binary], capture_output=True, text=True, check=True).stdout.strip()
    assert said == hashlib.sha256(source.encode() + b"/* nothing */\n").hexdigest()


def test_without_a_compiler_one_line_says_what_to_install(tree: Path) -> None:
    done = build(tree, CC="no-such-compiler")
    assert done.returncode != 0
    said = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(said) == 1, done.stderr
    assert said[0].startswith("error: no C compiler")
    assert "apt-get install -y gcc libc6-dev" in said[0]


def test_a_compilers_own_words_are_shown(tree: Path) -> None:
    (tree / "sandbox_images" / "supervisor" / "main.c").write_text("int main(void) { return nonsense; }\n")
    done = build(tree)
    assert done.returncode != 0
    assert "nonsense" in done.stderr
    assert "Traceback" not in done.stderr
    assert not list(tree.rglob("kinfold-supervisor")), "a half-built binary was left"


def test_a_cross_compilers_wheel_is_for_its_target(tree: Path, tmp_path: Path) -> None:
    """`$CC` may hold options; what it says of its target decides the wheel's tag."""
    cross = tmp_path / "cross-cc"
    cross.write_text(
        f"#!{shutil.which('bash')}\n"
        'if [ "$2" = -dumpmachine ]; then echo aarch64-linux-gnu; exit; fi\n'
        'shift; exec cc "$@"\n'
    )
    cross.chmod(0o755)
    done = build(tree, CC=f"{cross} --for-a-test")
    assert done.returncode == 0, done.stderr
    assert [path.name for path in (tree / "dist").iterdir()] == ["kinfold-0.1.0-py3-none-linux_aarch64.whl"]


def test_a_compiler_for_another_system_is_refused(tree: Path, tmp_path: Path) -> None:
    other = tmp_path / "other-cc"
    other.write_text(f"#!{shutil.which('bash')}\necho arm64-apple-darwin24.0.0\n")
    other.chmod(0o755)
    done = build(tree, CC=str(other))
    assert done.returncode != 0
    assert "needs Linux" in done.stderr
