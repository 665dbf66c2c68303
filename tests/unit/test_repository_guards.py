"""What `tests/conftest.py` promises: no world for unit tests, no silent skip of Docker tests, no foreign settings."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCKER_TESTS = "tests/docker/test_images.py"


def run_docker_tests(tmp_path: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A test run of its own where no engine answers."""
    clean = {name: value for name, value in os.environ.items() if name != "KINFOLD_REQUIRE_DOCKER"}
    nobody = f"unix://{tmp_path}/nobody.sock"
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", DOCKER_TESTS, "-k", "agent_is_user"],
        cwd=ROOT,
        env={**clean, "DOCKER_HOST": nobody, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_docker_tests_without_an_engine_are_skipped_loudly(tmp_path: Path) -> None:
    done = run_docker_tests(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "1 skipped" in done.stdout
    assert "NO CONTAINER ENGINE" in done.stdout
    assert "1 Docker tests did NOT run" in done.stdout


def test_docker_tests_without_an_engine_fail_where_docker_is_required(tmp_path: Path) -> None:
    done = run_docker_tests(tmp_path, KINFOLD_REQUIRE_DOCKER="1")
    assert done.returncode == 1, done.stdout
    assert "no container engine answers" in done.stdout


@pytest.mark.parametrize("address", [("192.0.2.1", 80), ("kinfold.invalid", 443)])
def test_a_unit_test_reaches_nobody_outside(address: tuple[str, int]) -> None:
    with socket.socket() as outside, pytest.raises(AssertionError, match="only loopback"):
        outside.connect(address)


def test_a_unit_test_does_not_reach_the_engine() -> None:
    with socket.socket(socket.AF_UNIX) as engine, pytest.raises(AssertionError, match="only loopback"):
        engine.connect("/var/run/docker.sock")


def test_a_unit_test_may_use_loopback() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        assert client.getpeername() == server.getsockname()


def test_no_key_and_no_setting_of_the_developers_is_seen(own_state: Path) -> None:
    assert "ANTHROPIC_API_KEY" not in os.environ
    assert os.environ["KINFOLD_STATE"] == str(own_state)
    assert own_state.stat().st_mode & 0o777 == 0o700
    foreign = {name for name in os.environ if name.startswith("KINFOLD_")}
    assert foreign <= {"KINFOLD_STATE", "KINFOLD_SUPERVISOR", "KINFOLD_REQUIRE_DOCKER"}
