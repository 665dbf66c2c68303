"""No secret lies where the engine, another uid, a log or a file of ours would show it."""

from __future__ import annotations

import json
import os
import stat
import time
from pathlib import Path

import pytest
from tests.docker.provider_support import docker_provider, engine_api, spec
from tests.hostile.hostile_support import sandbox_with
from tests.hostile.outside import AGENT, processes_of, read_as_root

from kinfold.sandbox.base import MIB, ExecRequest

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

CANARY = "canary-of-the-host-8f2d"
SECRET = "canary-of-the-spec-41ce"
HOSTS = ("AWS_SECRET_ACCESS_KEY", "OPENAI_API_KEY", "HTTP_PROXY", "https_proxy", "GITHUB_TOKEN", "A_NAME_OF_MY_OWN")


def files_below(root: Path) -> list[bytes]:
    """The bytes of every regular file but a disk's image: what lies on that is the sandbox's own."""
    found = [path for path in root.rglob("*") if path.is_file() and not path.is_symlink()]
    return [path.read_bytes() for path in found if path.stat().st_size < 16 * MIB]


@pytest.mark.threat("S01", "S02")
async def test_no_secret_lies_in_the_engines_words_in_argv_in_other_processes_or_in_our_files(
    own_state: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in HOSTS:
        monkeypatch.setenv(name, f"http://{CANARY}.invalid")
    proxies = {"default": {"httpProxy": f"http://{CANARY}.invalid", "noProxy": CANARY}}
    (tmp_path / "config.json").write_text(json.dumps({"proxies": proxies}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    began = int(time.time()) - 1
    async with docker_provider(own_state) as provider, await provider.create(spec(secrets={"TOKEN": SECRET})) as box:
        held = ExecRequest(command="echo $TOKEN; read word; sleep 300", stdin=f"{SECRET}\n".encode(), stream=True)
        process = await box.start(held)
        assert (await anext(process.output())).data == f"{SECRET}\n".encode()
        words: dict[str, bytes] = {}
        with engine_api() as api:
            found = api.inspect_container(box.ref.handle)
            words["the engine's container"] = json.dumps(found).encode()
            words["the image"] = json.dumps(api.inspect_image(found["Image"])).encode()
            events = api.events(since=began, until=int(time.time()) + 1, decode=True)
            told = [event for event in events if box.ref.handle in json.dumps(event)]
        assert told
        words["the engine's events"] = json.dumps(told).encode()
        running = processes_of(box.ref.handle)
        assert {one.uid for one in running} >= {0, AGENT}
        for one in running:
            words[f"argv of {one.words}"] = read_as_root(f"/proc/{one.pid}/cmdline")
            environment = read_as_root(f"/proc/{one.pid}/environ")
            assert CANARY.encode() not in environment
            if one.uid != AGENT:
                words[f"environment of {one.words}"] = environment
        words["our files"] = b"\n".join(files_below(own_state))
        for where, text in words.items():
            assert CANARY.encode() not in text, where
            assert SECRET.encode() not in text, where
        seen = await box.exec(
            "env; grep -rs canary-of-the-host / --include=* -l --exclude-dir=proc --exclude-dir=sys | head"
        )
        assert CANARY not in seen.stdout_text
        await process.kill(grace=0)


@pytest.mark.threat("S05")
async def test_a_crash_leaves_no_core_and_our_state_is_for_nobody_else(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        crashed = await box.exec("ulimit -c unlimited 2>/dev/null; ulimit -c; kill -SEGV $$")
        assert (crashed.stdout, crashed.signal) == (b"0\n", 11)
        assert [entry.path for entry in (await box.list(".", depth=3)).entries] == []
        for path in [own_state, *own_state.iterdir()]:
            if path.is_dir():
                assert stat.S_IMODE(os.stat(path).st_mode) & 0o077 == 0, path
