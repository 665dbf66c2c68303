"""The sandbox images on a real engine: what is in them, what they weigh, and how building behaves."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import docker
import pytest

from kinfold.errors import EngineUnavailable, ImageMissing, SandboxError
from kinfold.sandbox.docker import images, recipes
from kinfold.sandbox.docker.client import Engine
from kinfold.sandbox.docker.image_engine import ImageEngine

MB = 1_000_000
PROGRAMS = ("bash", "git", "rg", "python3", "python", "ps", "less", "grep", "find", "patch", "sh", "ls")


@pytest.fixture
def client() -> Iterator[docker.DockerClient]:
    made = docker.from_env()
    yield made
    made.close()


def run_in(client: docker.DockerClient, image: str, command: list[str], **options: Any) -> str:
    """Run one command in a throw-away container without network and give back its output."""
    output: bytes = client.containers.run(image, command, remove=True, network_mode="none", **options)
    return output.decode()


@pytest.fixture
def one_file_image(client: docker.DockerClient) -> Iterator[str]:
    """An image without a shell: one text file."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        member = tarfile.TarInfo("readme")
        member.size = 5
        tar.addfile(member, io.BytesIO(b"hello"))
    client.api.import_image_from_data(buffer.getvalue(), repository="kinfold-test/one-file", tag="latest")
    yield "kinfold-test/one-file:latest"
    client.images.remove("kinfold-test/one-file:latest", force=True)


@pytest.mark.anyio
async def test_the_base_image_is_this_versions_and_building_it_again_does_nothing() -> None:
    lines: list[str] = []
    (base,) = await images.build(["base"], lines.append)
    assert base.current
    before = base.id
    lines.clear()
    (again,) = await images.build(["kinfold/base"], lines.append)
    assert again.id == before
    assert lines == [f"{base.tag} is up to date"]
    assert base in await images.list_images()


@pytest.mark.anyio
async def test_the_base_image_weighs_less_than_300_mb() -> None:
    (base,) = await images.build(["base"])
    assert base.size_bytes is not None
    assert base.size_bytes < 300 * MB


@pytest.mark.anyio
async def test_latest_names_this_versions_image(client: docker.DockerClient) -> None:
    (base,) = await images.build(["base"])
    assert client.images.get("kinfold/base:latest").id == base.id


def test_the_base_image_holds_every_program_that_the_tools_promise(client: docker.DockerClient) -> None:
    script = f"for p in {' '.join(PROGRAMS)}; do command -v $p >/dev/null || echo $p; done"
    assert run_in(client, "kinfold/base", ["sh", "-c", script]) == ""
    assert run_in(client, "kinfold/base", ["python", "-c", "import json, ssl, sqlite3; print('ok')"]) == "ok\n"
    assert (
        run_in(client, "kinfold/base", ["sh", "-c", "test -s /etc/ssl/certs/ca-certificates.crt && echo ok"]) == "ok\n"
    )


def test_the_agent_is_user_1000_and_owns_its_home_and_workspace(client: docker.DockerClient) -> None:
    seen = run_in(client, "kinfold/base", ["sh", "-c", "id -un; stat -c %u /home/agent /workspace"], user="1000")
    assert seen.split() == ["agent", "1000", "1000"]


def test_no_file_in_the_base_image_keeps_a_setuid_bit(client: docker.DockerClient) -> None:
    assert run_in(client, "kinfold/base", ["find", "/", "-xdev", "-type", "f", "-perm", "/6000"]) == ""


def test_nothing_of_this_machines_apt_settings_is_left_inside(client: docker.DockerClient) -> None:
    settings = run_in(client, "kinfold/base", ["sh", "-c", "cat /etc/apt/apt.conf.d/* 2>/dev/null; true"])
    assert "Proxy" not in settings
    assert "Check-Valid-Until" not in settings


@pytest.mark.anyio
async def test_a_base_that_cannot_be_had_is_an_image_missing_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kinfold.sandbox.docker.image_engine.SILENCE", 5.0)
    with pytest.raises(ImageMissing, match="no-such-base"):
        await images.build(["base"], base="localhost:1/kinfold-test/no-such-base:1")


@pytest.mark.anyio
async def test_a_failing_step_is_reported_in_the_engines_own_words(
    one_file_image: str, tmp_path: Path, client: docker.DockerClient
) -> None:
    (tmp_path / "Dockerfile").write_text("ARG BASE\nFROM ${BASE}\nRUN true\n")
    engine = Engine()
    try:
        with pytest.raises(SandboxError, match=r"building kinfold-test/broken:1 failed") as caught:
            await ImageEngine(engine).build(
                tmp_path, tag="kinfold-test/broken:1", base=one_file_image, labels={}, progress=lambda line: None
            )
    finally:
        await engine.aclose()
    assert "/bin/sh" in caught.value.message
    assert caught.value.hint
    assert not client.images.list("kinfold-test/broken")


@pytest.mark.anyio
async def test_a_cancelled_build_stops_and_frees_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_state: Path
) -> None:
    started = anyio.Event()

    async def endless(*_: object, **__: object) -> bool:
        started.set()
        await anyio.sleep_forever()
        return False

    monkeypatch.setattr(ImageEngine, "obtain", endless)
    async with anyio.create_task_group() as group:

        async def build() -> None:
            await images.build(["base"], base="something-else:1")

        group.start_soon(build)
        await started.wait()
        group.cancel_scope.cancel()
    with anyio.fail_after(20):
        await images.build(["base"])


@pytest.mark.anyio
async def test_no_engine_is_an_error_with_a_hint(tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable) as caught:
        await images.list_images(host=f"unix://{tmp_path}/nobody.sock")
    assert caught.value.hint


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.anyio
async def test_the_python_and_node_images_work_without_root_and_without_network(client: docker.DockerClient) -> None:
    built = await images.build(["python", "node"])
    assert [image.name for image in built] == [f"kinfold/{name}" for name in recipes.PARENT]
    assert all(image.current for image in built)
    program = """printf '#include <Python.h>\nint main(void) { return PY_MAJOR_VERSION - 3; }' > /tmp/a.c
        gcc $(python3-config --includes) -o /tmp/a /tmp/a.c && /tmp/a && python -m pytest --version 2>&1"""
    assert run_in(client, "kinfold/python", ["sh", "-c", program], user="1000").startswith("pytest ")
    assert run_in(client, "kinfold/node", ["node", "-e", "console.log(6 * 7)"], user="1000") == "42\n"
    assert run_in(client, "kinfold/node", ["npm", "--version"], user="1000", environment={"HOME": "/tmp"}).strip()
