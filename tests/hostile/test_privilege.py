"""Code in the container can do nothing to the supervisor, its shims or the kernel that the design denies it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.docker.provider_support import docker_provider
from tests.hostile.hostile_support import sandbox_with
from tests.hostile.outside import of_the_agent
from tests.unit.sandbox.fake_supervisor import FakeProvider, Frame, Peer
from tests.unit.tools.bench import Bench

from kinfold.errors import SandboxLost, Unenforceable
from kinfold.sandbox.base import ExecRequest, SandboxSpec
from kinfold.sandbox.docker.create import THREADS
from kinfold.sandbox.local import LocalProvider
from kinfold.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


@pytest.mark.threat("K06", "N02")
async def test_an_agent_can_do_nothing_to_foreign_processes_while_they_work_for_it(own_state: Path) -> None:
    async with sandbox_with(own_state, "probe") as box:
        attack = asyncio.ensure_future(box.exec(["./probe", "4"], timeout=20))
        while not attack.done():
            await box.stat(["probe"] * 200)
            await box.exec(["true"], timeout=1, grace=0)
        seen = (await attack).stdout_text.splitlines()
        assert seen[-1] == "done"
        assert [line for line in seen if line.startswith("WORKED")] == []


async def test_nothing_of_the_hosts_environment_reaches_a_program(
    own_state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_HOST_SECRET", "leak")
    async with sandbox_with(own_state) as box:
        names = {line.partition("=")[0] for line in (await box.exec(["env"])).stdout_text.splitlines()}
        assert names == {"HOME", "USER", "LOGNAME", "PATH", "TMPDIR", "TZ", *THREADS}


@pytest.mark.parametrize("number", [9, 19])
async def test_signals_at_everybody_end_only_their_own_and_leave_the_supervisor_working(
    own_state: Path, number: int
) -> None:
    async with sandbox_with(own_state, "spin") as box:
        spinning = await box.start(ExecRequest(command=["./spin", str(number)], owner="spin"))
        for _ in range(15):
            hit = await box.exec(["true"], timeout=0.3, grace=0)
            assert hit.ended_by in ("exited", "signalled", "timed_out")
            assert hit.survivors == 0
        ended = await box.end("spin", grace=0)  # of nobody, where the three have ended each other on two processors
        assert [one.survivors for one in ended] in ([0], [])
        assert (await spinning.wait()).ended_by in ("cancelled", "signalled")
        assert (await box.exec(["true"], timeout=5)).exit_code == 0


@pytest.mark.threat("K07")
async def test_where_agent_and_supervisor_share_a_uid_that_is_said_and_strict_refuses(tmp_path: Path) -> None:
    async with LocalProvider(state_dir=tmp_path) as provider:
        assert "supervisor_isolation" in {control.name for control in (await provider.probe()).not_enforced}
        async with await provider.create(SandboxSpec(workspace=None, keep=0)) as box:
            assert "supervisor_isolation" in {control.name for control in box.not_enforced}
        with pytest.raises(Unenforceable, match="none of the controls is enforced"):
            await provider.create(SandboxSpec(strict=True))


@pytest.mark.threat("K07")
@pytest.mark.parametrize("forged", [b"\xff" * 64, b"\x01\x00\x04\x00\x43" + bytes(11)], ids=["noise", "too long"])
async def test_forged_frames_on_every_channel_end_as_a_lost_sandbox_after_few_of_them(forged: bytes) -> None:
    def answer(peer: Peer, frame: Frame) -> None:
        peer.raw(forged)

    provider = FakeProvider(answer)
    box = await provider.sandbox()
    try:
        async with asyncio.timeout(20):
            with pytest.raises(SandboxLost):
                await box.stat(["a"])
            with pytest.raises(SandboxLost):
                await box.exec(["true"], timeout=1)
        assert len(provider.peers) < 12
    finally:
        await box.aclose()
        await provider.close()


PLANT = r"""
canary() { printf '#!/bin/sh\necho %s >> /workspace/ran\n' "$1" > "$1"; chmod 755 "$1"; }
mkdir -p ~/bin ~/.local/bin ~/.config/git ~/.local/lib/python3.11/site-packages
for d in . ~/bin ~/.local/bin /tmp; do
    ( cd $d && for name in sh bash dash env rg grep git find ls cat mkdir tar python3 stat true kinfold-supervisor
      do canary $name; done )
done
for name in .profile .bashrc .bash_profile .bash_login .bash_logout .zshenv .shrc .kshrc .inputrc .envrc
do echo "echo $name >> /workspace/ran" > ~/$name; done
for name in os json sitecustomize usercustomize encodings
do
    for d in . ~/.local/lib/python3.11/site-packages
    do echo "open('/workspace/ran','a').write('$name.py')" > $d/$name.py; done
done
git init -q . 2>/dev/null; git config core.fsmonitor "echo fsmonitor >> /workspace/ran; false" 2>/dev/null
git config core.pager "echo pager >> /workspace/ran"; git config alias.status "!echo alias >> /workspace/ran"
printf '[core]\n\tfsmonitor = "echo global >> /workspace/ran"\n' > ~/.gitconfig
printf -- '--pre=/workspace/sh\n' > ~/.ripgreprc
cp /bin/true libc.so.6; cp /bin/true preload.so
for place in /etc/ld.so.preload /etc/profile.d/x.sh /etc/bash.bashrc /usr/local/bin/sh /usr/local/bin/rg \
    /bin/sh /run/kf/bin/x /etc/environment /etc/gitconfig /etc/nsswitch.conf
do (echo /workspace/preload.so > $place) 2>/dev/null && echo "WROTE $place"; done
rm -f ran; echo planted
"""


@pytest.mark.threat("K08")
async def test_nothing_that_an_agent_plants_is_run_by_what_the_platform_does_in_the_sandbox(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        assert (await box.exec(PLANT, timeout=60)).stdout == b"planted\n"
        assert (await box.exec(["./rg"])).exit_code == 0
        assert await box.read("ran") == b"rg\n"
        await box.remove("ran")
        await every_request(box)
        bench = Bench(box)
        await bench.text("bash", command="echo needle > new; ls > /dev/null; cat new")
        for arguments in ({"pattern": "needle"}, {"pattern": "needle", "glob": "*"}):
            assert "new" in await bench.text("grep", **arguments)
        assert "new" in await bench.text("glob", pattern="n*")
        await bench.text("list_dir", path=".")
        await bench.text("read_file", path="new")
        async with docker_provider(own_state) as provider:
            await provider.probe()
            async with await provider.connect(box.ref) as again:
                await every_request(again)
        assert b"ran" not in (await box.exec(["/bin/ls"])).stdout.split()
        assert of_the_agent(box) == []


async def every_request(box: Sandbox) -> None:
    """Each thing that the platform itself asks of a supervisor."""
    await box.write("d/file", b"x")
    await box.read("d/file")
    await box.stat(["d", "d/file"], claim=True)
    await box.list(".", depth=9)
    await box.snapshot()
    await box.make_dir("d/e")
    await box.rename("d/file", "d/f2", replace=True)
    await box.symlink("f2", "d/link")
    archived = [piece async for piece in box.archive("d")]
    assert archived

    async def stream() -> AsyncIterator[bytes]:
        for piece in archived:
            yield piece

    await box.extract(stream(), "copy")
    await box.remove("d", recursive=True)
    await box.usage()
    await box.pause()
    await box.resume()
    assert (await box.exec(["true"])).exit_code == 0
    assert (await box.exec("exit 0")).exit_code == 0
    assert (await box.exec(["sh", "-c", "exit 0"], cwd="copy")).exit_code == 0
    await box.end("run", grace=0)
