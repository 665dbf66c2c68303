"""One peer in its own interpreter: a JSON line in says what to do, a JSON line out how many seconds it took.

`python child.py PEER IMAGE`. Requests: {"do": "open" | "exec" | "files" | "flood" | "timeout" | "eight" | "close",
"marker": N}. Answers: {"seconds": S} or {"error": WORDS}. Nothing here imports kinfold, but for the peer of that name.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from typing import Any

TIMEOUT = 2.0
FLOOD = 64 * 1024 * 1024
CONTENT = b"x" * 4096


class Unsupported(Exception):
    """The peer has no such thing."""


def check(condition: bool, words: object) -> None:
    """What a peer claims to have done was done."""
    if not condition:
        raise RuntimeError(f"wrong outcome: {str(words)[:200]}")


class Kinfold:
    """Ours."""

    async def open(self, image: str) -> None:
        from kinfold.sandbox import DockerProvider, SandboxSpec

        self.provider = DockerProvider()
        self.sandbox = await self.provider.create(SandboxSpec(image=image, keep=0))

    async def exec(self, command: list[str], timeout: float | None = None) -> int:
        result = await self.sandbox.exec(command, timeout=timeout, max_output_bytes=FLOOD)
        return result.stdout_total

    async def files(self) -> None:
        await self.sandbox.write("f", CONTENT)
        check(await self.sandbox.read("f") == CONTENT, "other bytes")

    async def close(self) -> None:
        await self.sandbox.aclose()
        await self.provider.aclose()


class Docker:
    """The engine's own exec through its SDK."""

    async def open(self, image: str) -> None:
        import docker

        self.client = docker.from_env()
        self.container = self.client.containers.run(
            image, ["sleep", "3600"], detach=True, network_mode="none", init=True
        )

    async def exec(self, command: list[str], timeout: float | None = None) -> int:
        if timeout is not None:
            raise Unsupported("exec_run has no timeout")
        done = await asyncio.to_thread(self.container.exec_run, command)
        return len(b"".join([done.output] if isinstance(done.output, bytes) else done.output))

    async def files(self) -> None:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            member = tarfile.TarInfo("f")
            member.size = len(CONTENT)
            archive.addfile(member, io.BytesIO(CONTENT))
        self.container.put_archive("/tmp", out.getvalue())
        pieces, _ = self.container.get_archive("/tmp/f")
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
            found = archive.extractfile("f")
            check(found is not None and found.read() == CONTENT, "other bytes")

    async def close(self) -> None:
        self.container.remove(force=True)
        self.client.close()


class LlmSandbox:
    """llm-sandbox, without the set-up of a language."""

    async def open(self, image: str) -> None:
        from llm_sandbox.docker import SandboxDockerSession

        # It copies files to and from paths of this machine.
        self.place = Path(tempfile.mkdtemp())
        runtime = {"network_mode": "none"}
        self.session: Any = SandboxDockerSession(
            image=image, keep_template=True, skip_environment_setup=True, runtime_configs=runtime, workdir="/tmp"
        )
        self.session.open()

    async def exec(self, command: list[str], timeout: float | None = None) -> int:
        if timeout is not None:
            code = f"import subprocess; subprocess.run({command!r})"
            await asyncio.to_thread(self.session.run, code, timeout=timeout)
            return 0
        import shlex

        done = await asyncio.to_thread(self.session.execute_command, shlex.join(command))
        return len(done.stdout)

    async def files(self) -> None:
        (self.place / "f").write_bytes(CONTENT)
        self.session.copy_to_runtime(str(self.place / "f"), "/tmp/f")
        self.session.copy_from_runtime("/tmp/f", str(self.place / "g"))
        check((self.place / "g").read_bytes() == CONTENT, "other bytes")

    async def close(self) -> None:
        import shutil

        self.session.close()
        shutil.rmtree(self.place)


class SweRex:
    """swe-rex: a server in the container, installed there when it starts unless the image has it."""

    async def open(self, image: str) -> None:
        from swerex.deployment.docker import DockerDeployment

        self.deployment: Any = DockerDeployment(image=image, pull="never", startup_timeout=60.0)
        try:
            await self.deployment.start()
        except BaseException:
            await self.deployment.stop()
            raise

    async def exec(self, command: list[str], timeout: float | None = None) -> int:
        from swerex.runtime.abstract import Command

        done = await self.deployment.runtime.execute(Command(command=command, timeout=timeout))
        return len(done.stdout)

    async def files(self) -> None:
        from swerex.runtime.abstract import ReadFileRequest, WriteFileRequest

        text = CONTENT.decode()
        await self.deployment.runtime.write_file(WriteFileRequest(path="/tmp/f", content=text))
        found = await self.deployment.runtime.read_file(ReadFileRequest(path="/tmp/f"))
        check(found.content == text, "other bytes")

    async def close(self) -> None:
        await self.deployment.stop()


class InspectAi:
    """inspect-ai's docker sandbox, which runs everything through the engine's compose plug-in."""

    async def open(self, image: str) -> None:
        from inspect_ai.util._sandbox.docker.docker import DockerSandboxEnvironment
        from inspect_ai.util._sandbox.docker.prereqs import validate_prereqs

        await validate_prereqs()
        self.folder = tempfile.mkdtemp()
        compose = Path(self.folder) / "compose.yaml"
        compose.write_text(
            f"services:\n  default:\n    image: {image}\n    command: sleep 3600\n"
            "    init: true\n    network_mode: none\n"
        )
        self.kind: Any = DockerSandboxEnvironment
        await self.kind.task_init("bench", str(compose))
        self.sandboxes = await self.kind.sample_init("bench", str(compose), {})
        self.sandbox = self.sandboxes["default"]
        self.compose = str(compose)

    async def exec(self, command: list[str], timeout: float | None = None) -> int:
        done = await self.sandbox.exec(command, timeout=None if timeout is None else int(timeout), timeout_retry=False)
        return len(done.stdout)

    async def files(self) -> None:
        await self.sandbox.write_file("/tmp/f", CONTENT.decode())
        check(await self.sandbox.read_file("/tmp/f") == CONTENT.decode(), "other bytes")

    async def close(self) -> None:
        await self.kind.sample_cleanup("bench", self.compose, self.sandboxes, False)
        await self.kind.task_cleanup("bench", self.compose, True)


class OpenaiAgents:
    """openai-agents' docker sandbox."""

    async def open(self, image: str) -> None:
        import docker
        from agents.sandbox.sandboxes.docker import DockerSandboxClient, DockerSandboxClientOptions

        self.client: Any = DockerSandboxClient(docker.from_env())
        self.session = await self.client.create(options=DockerSandboxClientOptions(image=image, network_mode="none"))
        await self.session.start()

    async def exec(self, command: list[str], timeout: float | None = None) -> int:
        done = await self.session.exec(*command, shell=False, timeout=timeout)
        return len(done.stdout)

    async def files(self) -> None:
        await self.session.write(Path("f"), io.BytesIO(CONTENT))
        found = (await self.session.read(Path("f"))).read()
        check(found == CONTENT, "other bytes")

    async def close(self) -> None:
        await self.session.stop()
        await self.client.delete(self.session)


PEERS = {
    "kinfold": Kinfold,
    "docker": Docker,
    "swe-rex": SweRex,
    "llm-sandbox": LlmSandbox,
    "inspect-ai": InspectAi,
    "openai-agents": OpenaiAgents,
}


async def timed_out(peer: Any, marker: int) -> None:
    """A sleeping leader and a child in a session of its own; what the peer says at the timeout does not matter."""
    script = f"setsid sleep {marker} & sleep 60"
    before = time.perf_counter()
    try:
        await peer.exec(["sh", "-c", script], timeout=TIMEOUT)
    except Unsupported:
        raise
    except Exception as error:
        # A timeout is an exception to most of them; one that came too early is a failure of another kind.
        if time.perf_counter() - before < TIMEOUT * 0.9:
            raise
        del error


async def flood(peer: Any) -> None:
    """64 MiB of output, all of which must have arrived or been counted."""
    got = await peer.exec(["head", "-c", str(FLOOD), "/dev/zero"])
    check(got >= FLOOD, f"{got} bytes of {FLOOD}")


async def answer(peer: Any, request: dict[str, Any], image: str) -> None:
    """Do what the request says."""
    match request["do"]:
        case "open":
            await peer.open(image)
            await peer.exec(["true"])
        case "exec":
            await peer.exec(["true"])
        case "files":
            await peer.files()
        case "flood":
            await flood(peer)
        case "timeout":
            await timed_out(peer, request["marker"])
        case "eight":
            await asyncio.gather(*(peer.exec(["sleep", "0.2"]) for _ in range(8)))
        case "close":
            await peer.close()
        case other:
            raise ValueError(f"no such request: {other}")


async def main(name: str, image: str) -> None:
    """Answer until there are no more requests."""
    peer = PEERS[name]()
    # What a peer prints must not be taken for an answer.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    while line := await asyncio.to_thread(sys.stdin.readline):
        before = time.perf_counter()
        try:
            await answer(peer, json.loads(line), image)
            said: dict[str, object] = {"seconds": time.perf_counter() - before}
        except Exception as error:  # noqa: BLE001 - whatever a peer raises is the answer
            said = {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
        out.write(json.dumps(said) + "\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
