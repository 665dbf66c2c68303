"""The images' recipes, and how a root file system is asked for where no registry answers."""

from __future__ import annotations

import shutil
from pathlib import Path

import anyio
import pytest

from kinfold.errors import ConfigError, SandboxError
from kinfold.sandbox.docker import images, recipes, root_file_system
from kinfold.sandbox.docker.root_file_system import Origin

DEB822 = "Types: deb\nURIs: https://mirror.example/debian\nSuites: trixie\nComponents: main\n"


def etc(folder: Path, release: str, **files: str) -> Path:
    """A made-up /etc."""
    (folder / "apt" / "sources.list.d").mkdir(parents=True)
    (folder / "os-release").write_text(release)
    for name, text in files.items():
        (folder / "apt" / name.replace("__", "/").replace("_", ".")).write_text(text)
    return folder


def program(folder: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A stand-in for mmdebstrap, first on PATH."""
    file = folder / "mmdebstrap"
    file.write_text(f"#!{shutil.which('bash')}\n{script}\n")
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_a_child_image_holds_its_parents_packages_too() -> None:
    base, python = recipes.find("base"), recipes.find("kinfold/python")
    assert {"bash", "coreutils", "git", "ripgrep", "python3", "python-is-python3", "procps", "less"} <= set(
        base.packages
    )
    assert set(base.packages) < set(python.packages)
    assert not [name for name in python.packages if name.startswith("#")]


def test_parents_are_built_first_and_nothing_twice() -> None:
    assert [recipe.name for recipe in recipes.in_build_order(["node", "base", "kinfold/base:latest"])] == [
        "base",
        "node",
    ]


def test_an_unknown_image_is_refused_with_the_ones_there_are() -> None:
    with pytest.raises(ConfigError, match="'ruby'") as caught:
        recipes.find("ruby")
    assert "base, python, node" in caught.value.hint


def test_a_changed_recipe_has_another_digest(tmp_path: Path) -> None:
    for name in ("Dockerfile", "packages"):
        (tmp_path / name).write_text("one\n")
    before = recipes.Recipe(name="base", folder=tmp_path, parent=None)
    first = before.digest
    child = recipes.Recipe(name="python", folder=recipes.find("python").folder, parent=before).digest
    (tmp_path / "packages").write_text("one\ntwo\n")
    assert before.digest != first
    assert recipes.Recipe(name="python", folder=recipes.find("python").folder, parent=before).digest != child


@pytest.mark.parametrize("distribution", ["debian", "ubuntu"])
def test_a_debian_or_ubuntu_machine_makes_its_own_suite_from_its_own_sources(tmp_path: Path, distribution: str) -> None:
    folder = etc(tmp_path, f'ID={distribution}\nVERSION_CODENAME="trixie"\n')
    own = folder / "apt" / "sources.list.d" / f"{distribution}.sources"
    own.write_text(DEB822)
    (folder / "apt" / "sources.list.d" / "third-party.sources").write_text(DEB822)
    (folder / "apt" / "sources.list").write_text("# moved to sources.list.d\n")
    origin = root_file_system.own_origin(folder)
    assert origin.suite == "trixie"
    assert origin.mirrors == (str(own),)


def test_another_distribution_makes_bookworm_from_the_default_archive(tmp_path: Path) -> None:
    origin = root_file_system.own_origin(etc(tmp_path, "ID=fedora\nVERSION_CODENAME=\n"))
    assert origin.suite == "bookworm"
    assert origin.mirrors == ()


@pytest.mark.anyio
async def test_without_mmdebstrap_the_hint_is_the_apt_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        await root_file_system.make(
            tmp_path / "root.tar",
            packages=("bash",),
            origin=Origin(suite="x", mirrors=(), keyring=None),
            progress=print,
        )
    assert caught.value.hint == "apt-get install -y mmdebstrap"


@pytest.mark.anyio
async def test_mmdebstraps_steps_are_progress_and_its_last_words_the_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = 'echo "I: downloading packages" >&2; printf "%s\\n" "$@" >$0.args; printf "E: no such suite" >&2; exit 3'
    program(tmp_path, monkeypatch, script)
    lines: list[str] = []
    with pytest.raises(SandboxError, match=r"(?s)exit code 3.*E: no such suite"):
        await root_file_system.make(
            tmp_path / "root.tar",
            packages=("bash", "git"),
            origin=Origin(suite="nowhere", mirrors=("/etc/a.sources",), keyring=None),
            progress=lines.append,
        )
    assert lines == ["mmdebstrap: downloading packages"]
    given = (tmp_path / "mmdebstrap.args").read_text().splitlines()
    assert "--include=bash,git" in given
    assert given[-3:] == ["nowhere", str(tmp_path / "root.tar"), "/etc/a.sources"]


@pytest.mark.anyio
async def test_a_cancelled_root_file_system_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path, monkeypatch, 'echo "I: $$" >&2; exec sleep 1000')
    seen = anyio.Event()
    pids: list[int] = []

    def progress(line: str) -> None:
        pids.append(int(line.rpartition(" ")[2]))
        seen.set()

    async with anyio.create_task_group() as group:

        async def make() -> None:
            origin = Origin(suite="x", mirrors=(), keyring=None)
            await root_file_system.make(tmp_path / "root.tar", packages=("bash",), origin=origin, progress=progress)

        group.start_soon(make)
        await seen.wait()
        group.cancel_scope.cancel()
    assert not Path(f"/proc/{pids[0]}").exists()


@pytest.mark.anyio
async def test_one_build_runs_at_a_time_and_the_second_says_that_it_waits(own_state: Path) -> None:
    order: list[str] = []
    inside = anyio.Event()
    leave = anyio.Event()

    async def first() -> None:
        async with images._single_flight(own_state, order.append):
            inside.set()
            await leave.wait()
            order.append("first is done")

    async def second() -> None:
        await inside.wait()

        def told(line: str) -> None:
            order.append(line)
            leave.set()

        async with images._single_flight(own_state, told):
            order.append("second begins")

    with anyio.fail_after(20):
        async with anyio.create_task_group() as group:
            group.start_soon(first)
            group.start_soon(second)
    assert order == ["another process is building images here; waiting for it", "first is done", "second begins"]
