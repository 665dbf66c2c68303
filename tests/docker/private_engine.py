"""An engine of a test's own, for what hurts one: killed, stopped, frozen, started again. Never the machine's own.

It lives in a network namespace of its own (beside the first one's, it would delete the shared bridge), with its own
data root, exec root, containerd, socket and control group: all that it ever started can be found and ended, also
where it is dead itself. The namespace's holder dies with the test run, and so does the engine.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import anyio.to_thread
from tests.docker.provider_support import IMAGE

HOLDER_SECONDS = 20.0
START_SECONDS = 40.0
STOP_SECONDS = 30.0
CGROUPS = Path("/sys/fs/cgroup")
_DIE_WITH_US = ["setpriv", "--pdeathsig", "KILL"]


class PrivateEngine:
    """One dockerd; `with` it. Only root can; the image of the tests is in it once `load` was called."""

    def __init__(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="kf-engine-"))
        self.host = f"unix://{self.root}/docker.sock"
        self._group = self.root.name
        self._holder: subprocess.Popen[bytes] | None = None
        self._daemon: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        command = [*_DIE_WITH_US, "unshare", "--net", "sleep", "infinity"]
        self._holder = subprocess.Popen(command)
        _until(self._apart, HOLDER_SECONDS, lambda: "no network namespace of its own was made")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _apart(self) -> bool:
        """Whether the holder has left our network namespace: until then, what enters its namespace enters ours."""
        assert self._holder is not None
        return os.stat(f"/proc/{self._holder.pid}/ns/net").st_ino != os.stat("/proc/self/ns/net").st_ino

    # --- what is done to it -----------------------------------------------------------------------------------------

    async def start(self, *, live_restore: bool = False) -> None:
        """Start it and wait until it answers."""
        self.launch(live_restore=live_restore)
        await anyio.to_thread.run_sync(self.wait_for_answer)

    def launch(self, *, live_restore: bool = False) -> None:
        """Start it. From the main thread: it dies with the thread that started it."""
        assert self._holder is not None
        assert self._apart(), "a second engine in the first one's network namespace would delete its bridge"
        for name in ("docker.pid", "exec/containerd/containerd.pid", "exec/containerd/containerd.sock"):
            (self.root / name).unlink(missing_ok=True)  # of one that was killed; it would be waited for
        command = [*_DIE_WITH_US, "nsenter", f"--target={self._holder.pid}", "--net", "dockerd"]
        command += [f"--host={self.host}", f"--data-root={self.root}/data", f"--exec-root={self.root}/exec"]
        command += [f"--pidfile={self.root}/docker.pid", f"--config-file={self.root}/none.json"]
        command += ["--bridge=none", "--iptables=false", "--ip6tables=false", f"--cgroup-parent=/{self._group}"]
        command += ["--exec-opt=native.cgroupdriver=cgroupfs", f"--live-restore={str(live_restore).lower()}"]
        with (self.root / "log").open("ab") as log:
            (self.root / "none.json").write_text("{}")
            self._daemon = subprocess.Popen(command, stdout=log, stderr=log)

    def wait_for_answer(self) -> None:
        """Blocks until it answers."""
        _until(self._answers, START_SECONDS, lambda: f"the private engine did not start: {self.log()[-2000:]}")

    def kill(self) -> None:
        """As a crash: SIGKILL, its containerd with it; what it runs runs on."""
        self._end(signal.SIGKILL)

    async def stop(self) -> None:
        """As an operator does; without live-restore it takes its containers along."""
        await anyio.to_thread.run_sync(self._end, signal.SIGTERM)

    def freeze(self) -> None:
        """From now on it answers nothing."""
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on."""
        assert self._daemon is not None
        self._daemon.send_signal(signal.SIGCONT)

    # --- a look at it -----------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def api(self, timeout: int = 30) -> Iterator[Any]:
        """The SDK's own client."""
        import docker

        client = docker.DockerClient(base_url=self.host, timeout=timeout)
        try:
            yield client.api
        finally:
            client.close()

    def containers(self) -> list[dict[str, Any]]:
        """All of them, running or not."""
        with self.api() as api:
            found: list[dict[str, Any]] = api.containers(all=True)
        return found

    def log(self) -> str:
        """What it wrote so far."""
        return (self.root / "log").read_text(errors="replace")

    def load(self) -> None:
        """Bring the tests' image from the machine's engine."""
        with subprocess.Popen(["docker", "save", IMAGE], stdout=subprocess.PIPE) as saved:
            subprocess.run(["docker", f"--host={self.host}", "load", "--quiet"], stdin=saved.stdout, check=True,
                           stdout=subprocess.DEVNULL)  # fmt: skip

    def processes(self) -> list[int]:
        """All that ever came of it: engine, containerd, their shims, and what runs in the containers."""
        ours = {int(line) for group in self._groups() for line in _read(group / "cgroup.procs").split()}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and str(self.root).encode() in _read_bytes(entry / "cmdline"):
                ours.add(int(entry.name))
        return sorted(ours - {os.getpid()})

    def mounts(self) -> list[str]:
        """Below its directory, the newest first."""
        lines = _read(Path("/proc/self/mountinfo")).splitlines()
        points = [line.split()[4] for line in lines]
        return [point for point in reversed(points) if point.startswith(f"{self.root}/")]

    # --- the end ----------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End and remove all of it, in whatever state it is. Raises `AssertionError` where something stays."""
        if self._daemon is not None:
            self._daemon.send_signal(signal.SIGCONT)
            self.kill()
        _until(self._killed, STOP_SECONDS, lambda: f"still there: {self.processes()}")
        if self._holder is not None:
            self._holder.kill()
            self._holder.wait()
        for point in self.mounts():
            subprocess.run(["umount", "--lazy", point], check=True)
        for group in self._groups():
            _until(functools.partial(_removed, group), 5.0, functools.partial(str, group))
        shutil.rmtree(self.root)

    def _killed(self) -> bool:
        found = self.processes()
        for pid in found:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not found

    def _end(self, how: signal.Signals) -> None:
        assert self._daemon is not None
        self._daemon.send_signal(how)
        self._daemon.wait(STOP_SECONDS)

    def _answers(self) -> bool:
        import docker.errors
        import requests.exceptions

        assert self._daemon is not None
        assert self._daemon.poll() is None, f"the private engine ended: {self.log()[-2000:]}"
        try:
            with self.api(timeout=5) as api:
                return bool(api.ping())
        except (docker.errors.DockerException, requests.exceptions.RequestException):
            return False

    def _groups(self) -> list[Path]:
        """Our control groups in every hierarchy, children first."""
        tops = [CGROUPS / self._group, *CGROUPS.glob(f"*/{self._group}")]
        found = [Path(folder) for top in tops for folder, _, _ in os.walk(top, topdown=False)]
        return list(dict.fromkeys(path.resolve() for path in found))


def _removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _read(path: Path) -> str:
    return _read_bytes(path).decode(errors="replace")


def _read_bytes(path: Path) -> bytes:
    """Nothing of what is gone by now."""
    try:
        return path.read_bytes()
    except OSError:
        return b""


def _until(condition: Callable[[], bool], seconds: float, words: Callable[[], str]) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, words()
        time.sleep(0.05)


@contextlib.asynccontextmanager
async def thawed_after(engine: PrivateEngine, seconds: float) -> AsyncIterator[None]:
    """The engine is frozen on the way in, and goes on after this many seconds, or on the way out."""
    engine.freeze()

    async def thaw() -> None:
        await anyio.sleep(seconds)
        engine.thaw()

    try:
        async with anyio.create_task_group() as group:
            group.start_soon(thaw)
            yield
            group.cancel_scope.cancel()
    finally:
        engine.thaw()
