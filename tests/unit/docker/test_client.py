"""Whatever goes wrong between us and an engine becomes one clear error, in bounded time."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from kinfold.errors import ConfigError, EngineUnavailable, ImageMissing
from kinfold.sandbox.base import SandboxSpec
from kinfold.sandbox.docker.client import Engine, EngineRefused, read_facts, unavailable
from kinfold.sandbox.docker.pull import find_image


class FakeEngine(BaseHTTPRequestHandler):
    """Answers as a Docker engine does, over real HTTP; every other path is its 404."""

    answers: ClassVar[dict[str, tuple[int, str]]] = {}

    def do_GET(self) -> None:
        """One answer by the path's end."""
        path = self.path.partition("?")[0]
        status, body = next(
            (answer for end, answer in self.answers.items() if path.endswith(end)),
            (404, '{"message": "No such image: x"}'),
        )
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    do_POST = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def engine_address() -> Iterator[str]:
    FakeEngine.answers = {"/version": (200, '{"ApiVersion": "1.41"}')}
    server = ThreadingHTTPServer(("127.0.0.1", 0), FakeEngine)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield f"tcp://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.mark.anyio
async def test_no_socket_at_all_says_how_to_start_the_engine(tmp_path: Path) -> None:
    engine = Engine(f"unix://{tmp_path}/none.sock")
    with pytest.raises(EngineUnavailable) as caught:
        await engine.call("look", lambda api: api.ping())
    assert f"no container engine answers at unix://{tmp_path}/none.sock" in caught.value.message
    assert "kinfold doctor" in caught.value.hint
    assert "DOCKER_HOST" in caught.value.hint


def test_no_permission_names_the_group() -> None:
    wrapped = RuntimeError("('Connection aborted.', PermissionError(13, 'Permission denied'))")
    wrapped.__cause__ = PermissionError(13, "Permission denied")
    error = unavailable("look", wrapped, "unix:///var/run/docker.sock")
    assert "no permission" in error.message
    assert "/var/run/docker.sock" in error.message
    assert "usermod -aG docker" in error.hint


@pytest.mark.anyio
async def test_a_silent_engine_is_given_up_at_the_deadline(engine_address: str) -> None:
    engine = Engine(engine_address)
    release = threading.Event()
    began = time.monotonic()
    with pytest.raises(EngineUnavailable, match=r"did not answer within 0\.2 s"):
        await engine.call("look", lambda api: release.wait(30), deadline=0.2)
    assert time.monotonic() - began < 5
    release.set()
    await engine.aclose()


@pytest.mark.anyio
async def test_a_refusal_keeps_the_engines_words(engine_address: str) -> None:
    engine = Engine(engine_address)
    with pytest.raises(EngineRefused) as caught:
        await engine.call("look at it", lambda api: api.inspect_container("x"))
    assert (caught.value.status, caught.value.explanation) == (404, "No such image: x")
    assert caught.value.message.startswith("look at it:")
    await engine.aclose()


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("image", "pull", "hint"),
    [
        ("kinfold/base", "missing", "kinfold images build"),
        ("kinfold/base:0.1.0", "always", "kinfold images build"),
        ("debian:bookworm-slim", "never", "docker pull debian:bookworm-slim"),
        ("sha256:0123456789ab", "missing", "--image"),
    ],
)
async def test_a_missing_image_names_the_command_that_brings_it(
    engine_address: str, image: str, pull: Any, hint: str
) -> None:
    engine = Engine(engine_address)
    with pytest.raises(ImageMissing) as caught:
        await find_image(engine, SandboxSpec(image=image, pull=pull))
    assert hint in caught.value.hint
    assert image in caught.value.message
    await engine.aclose()


@pytest.mark.anyio
async def test_a_pull_that_the_registry_refuses_is_a_missing_image(engine_address: str) -> None:
    FakeEngine.answers["/images/create"] = (500, '{"message": "dial tcp: lookup registry: no such host"}')
    engine = Engine(engine_address)
    with pytest.raises(ImageMissing, match="could not be pulled: dial tcp"):
        await find_image(engine, SandboxSpec(image="example/thing:1"))
    await engine.aclose()


def test_an_engine_over_ssh_is_refused_with_a_way_out() -> None:
    with pytest.raises(ConfigError) as caught:
        Engine("ssh://host")
    assert "ssh -NL" in caught.value.hint


def test_the_remapped_uids_are_read_from_the_engines_root_directory() -> None:
    info = {
        "SecurityOptions": ["name=seccomp,profile=default", "name=userns"],
        "DockerRootDir": "/var/lib/d/231072.100",
    }
    facts = read_facts(info, {"ApiVersion": "1.41"})
    assert facts.uid_base == (231072, 100)
    assert not facts.rootless
    assert facts.api_version == (1, 41)
    assert read_facts({"DockerRootDir": "/var/lib/d/231072.100"}, {"ApiVersion": "1.41"}).uid_base == (0, 0)
