"""What holds for every test: one event loop, a state directory of its own, no key, no world outside, no container left.

Unit tests reach nothing but loopback. Docker tests (everything under `tests/docker`, and the marker `docker`) are
skipped with the reason where no engine answers, and fail there under KINFOLD_REQUIRE_DOCKER=1.
"""

from __future__ import annotations

import functools
import ipaddress
import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).parent
REQUIRE_DOCKER = "KINFOLD_REQUIRE_DOCKER"
KEPT_SETTINGS = {REQUIRE_DOCKER, "KINFOLD_SUPERVISOR"}
"""What a test run may be told from outside; every other KINFOLD_* variable would be somebody's own configuration."""
INSTANCE_LABEL = "kinfold.instance"
collect_ignore = ["example_project"]  # runs as a project of its own, in tests/docker/test_plugin.py


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    """Asyncio is the one backend that kinfold promises."""
    return "asyncio"


def pytest_sessionstart() -> None:
    """Unmount what a killed run left of its sandboxes: pytest could not remove its directories, and would fail."""
    base = Path(tempfile.gettempdir())
    for line in Path("/proc/self/mounts").read_text().splitlines() if sys.platform == "linux" else ():
        point = Path(line.split()[1])
        if point.is_relative_to(base) and len(point.relative_to(base).parts) > 2 and os.geteuid() == 0:
            user, run = point.relative_to(base).parts[:2]
            if user.startswith("pytest-of-") and _is_over(base / user / run):
                subprocess.run(["umount", "--lazy", str(point)], check=True)


def _is_over(run: Path) -> bool:
    """Whether the pytest of this directory has ended."""
    try:
        pid = int((run / ".lock").read_text())
    except (OSError, ValueError):
        return run.name.startswith("garbage-")
    return not Path(f"/proc/{pid}").exists()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give every test under tests/docker the marker `docker`."""
    for item in items:
        if item.path.is_relative_to(TESTS / "docker"):
            item.add_marker(pytest.mark.docker)


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, or under KINFOLD_REQUIRE_DOCKER=1 fail, a Docker test before any fixture asks for the engine."""
    if not _wants_docker(item):
        return
    problem = engine_problem()
    if problem is None:
        return
    if os.environ.get(REQUIRE_DOCKER) == "1":
        pytest.fail(f"{REQUIRE_DOCKER}=1, but no container engine answers: {problem}", pytrace=False)
    pytest.skip(f"NO CONTAINER ENGINE: {problem}")


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say in the last lines how much was not tested for want of an engine."""
    skipped = [r for r in terminalreporter.stats.get("skipped", ()) if "NO CONTAINER ENGINE" in str(r.longrepr)]
    if skipped:
        terminalreporter.write_line(
            f"{len(skipped)} Docker tests did NOT run: no engine answers ({REQUIRE_DOCKER}=1 makes this a failure)",
            red=True,
        )


@functools.cache
def engine_problem() -> str | None:
    """Ask the daemon, not the client: None when it answers, else why it does not."""
    import docker

    try:
        client = docker.from_env(timeout=10)
    except docker.errors.DockerException as error:
        return str(error)
    try:
        client.ping()
    except Exception as error:  # noqa: BLE001 - whatever keeps the daemon from answering is the reason to report
        return str(error)
    finally:
        client.close()
    return None


def _wants_docker(item: pytest.Item) -> bool:
    return item.get_closest_marker("docker") is not None


@pytest.fixture(autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh KINFOLD_STATE, and none of the developer's own keys and settings."""
    for name in list(os.environ):
        foreign = name.startswith("KINFOLD_") and name not in KEPT_SETTINGS
        if foreign or name.startswith("ANTHROPIC_"):
            monkeypatch.delenv(name)
    state = tmp_path_factory.mktemp("state")
    state.chmod(0o700)
    monkeypatch.setenv("KINFOLD_STATE", str(state))
    return state


@pytest.fixture(autouse=True)
def no_world(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A test that is no Docker test can connect to loopback only, and never to the engine's socket."""
    if _wants_docker(request.node):
        return
    connect = socket.socket.connect
    connect_ex = socket.socket.connect_ex

    def guarded_connect(self: socket.socket, address: Any) -> None:
        _refuse_the_world(self, address)
        connect(self, address)

    def guarded_connect_ex(self: socket.socket, address: Any) -> int:
        _refuse_the_world(self, address)
        return connect_ex(self, address)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket.socket, "connect_ex", guarded_connect_ex)


def _refuse_the_world(sock: socket.socket, address: Any) -> None:
    if sock.family == socket.AF_UNIX:
        allowed = "docker" not in os.fsdecode(address)
    else:
        allowed = _is_loopback(str(address[0]))
    if not allowed:
        raise AssertionError(f"a unit test tried to reach {address!r}; only loopback is allowed")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@pytest.fixture(scope="session", autouse=True)
def no_container_left_at_the_end(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What a fixture of wider scope made must be gone too, once every fixture is closed."""
    yield
    asked = engine_problem.cache_info().currsize > 0
    if asked and engine_problem() is None:
        _fail_over(_our_containers(tmp_path_factory.getbasetemp()))


@pytest.fixture(autouse=True)
def no_container_left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fail a Docker test that leaves a container of its own behind, and remove that container.

    Several test runs may share an engine, so only containers that mount something of this run's temporary
    directory count: its workspaces and its state directories all lie there.
    """
    if not _wants_docker(request.node) or engine_problem() is not None:
        yield
        return
    base = tmp_path_factory.getbasetemp()
    before, mounted = _our_containers(base), _mounts_below(base)
    yield
    left = {ident: labels for ident, labels in _our_containers(base).items() if ident not in before}
    mounts = [point for point in _mounts_below(base) if point not in mounted]
    _unmount(mounts)
    _fail_over(left)
    if mounts:
        pytest.fail(f"{len(mounts)} mount(s) were left behind: {', '.join(mounts)}", pytrace=False)


def _fail_over(left: dict[str, dict[str, str]]) -> None:
    if left:
        _remove_containers(left)
        names = ", ".join(f"{ident[:12]} {labels}" for ident, labels in left.items())
        pytest.fail(f"{len(left)} container(s) were left behind: {names}", pytrace=False)


def _mounts_below(base: Path) -> list[str]:
    try:
        lines = Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    return [point for point in (line.split()[4] for line in lines) if Path(point).is_relative_to(base)]


def _unmount(points: list[str]) -> None:
    """A mount that stays keeps the temporary directory, and with it every later test run, from being cleared."""
    as_root = [] if os.geteuid() == 0 else ["sudo", "-n", "--"]
    for point in reversed(points):
        subprocess.run([*as_root, "umount", "--lazy", point], check=True)


def _our_containers(base: Path) -> dict[str, dict[str, str]]:
    """Every container with kinfold's label and a mount from under `base`, running or not, as id → labels."""
    import docker

    client = docker.from_env(timeout=30)
    try:
        found = client.api.containers(all=True, filters={"label": [INSTANCE_LABEL]})
    finally:
        client.close()
    return {entry["Id"]: dict(entry.get("Labels") or {}) for entry in found if _mounts_from(entry, base)}


def _mounts_from(entry: dict[str, Any], base: Path) -> bool:
    return any(Path(mount.get("Source") or "/").is_relative_to(base) for mount in entry.get("Mounts") or ())


def _remove_containers(idents: Iterable[str]) -> None:
    import docker

    client = docker.from_env(timeout=30)
    try:
        for ident in idents:
            client.api.remove_container(ident, force=True, v=True)
    finally:
        client.close()
