"""Makes a Debian or Ubuntu root file system with `mmdebstrap`, for machines that reach no image registry.

The machine's own package sources and proxy settings are used, so that what `apt-get` can do here, this can do too.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import anyio
from anyio.abc import Process
from anyio.streams.text import TextReceiveStream

from kinfold.errors import ConfigError, SandboxError

DEFAULT_SUITE = "bookworm"
OWN_SOURCES = ("sources.list", "sources.list.d/debian.sources", "sources.list.d/ubuntu.sources")
"""Where a Debian or Ubuntu machine names its own archive; other files there name third parties."""
KEYRINGS = {
    "debian": "/usr/share/keyrings/debian-archive-keyring.gpg",
    "ubuntu": "/usr/share/keyrings/ubuntu-archive-keyring.gpg",
}
NEEDED_OF_APT = re.compile(r"^Acquire::(https?(::.*)?|Check-.*|Retries|ForceIPv[46]|Max-FutureTime) ", re.IGNORECASE)
"""The apt settings that decide whether a mirror can be reached; the rest must not travel into an image."""
UNWANTED = ("/usr/share/man/*", "/usr/share/info/*", "/usr/share/doc/*", "/usr/share/locale/*", "/usr/share/lintian/*")
WANTED_ALL_THE_SAME = ("/usr/share/doc/*/copyright",)
PROXY_SETTINGS = ("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
KEPT_LINES = 12

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Which distribution is made, and from where."""

    suite: str
    mirrors: tuple[str, ...]
    """Files in apt's own formats; empty: mmdebstrap's default archive."""
    keyring: str | None


def own_origin(etc: Path = Path("/etc")) -> Origin:
    """The machine's own suite and sources where it is a Debian or an Ubuntu, else Debian's bookworm."""
    release = _os_release(etc / "os-release")
    distribution, suite = release.get("ID", ""), release.get("VERSION_CODENAME", "")
    if distribution not in KEYRINGS or not suite:
        return Origin(suite=DEFAULT_SUITE, mirrors=(), keyring=_existing(KEYRINGS["debian"]))
    files = [etc / "apt" / name for name in OWN_SOURCES]
    mirrors = tuple(str(file) for file in files if file.is_file() and _names_an_archive(file))
    return Origin(suite=suite, mirrors=mirrors, keyring=_existing(KEYRINGS[distribution]))


async def make(target: Path, *, packages: Iterable[str], origin: Origin, progress: Progress) -> None:
    """Write a tar of a minimal system with `packages` to `target`; takes a minute or two.

    Raises `ConfigError` where mmdebstrap is not installed and `SandboxError` with its last lines where it fails.
    """
    program = shutil.which("mmdebstrap")
    if program is None:
        raise ConfigError(
            "no image registry answers, and mmdebstrap, which makes the base image without one, is not installed",
            hint="apt-get install -y mmdebstrap",
        )
    as_root = await _as_root()
    options = arguments(packages, origin, await _apt_settings())
    command = [*as_root, program, *options, origin.suite, str(target), *origin.mirrors]
    last: deque[str] = deque(maxlen=KEPT_LINES)
    # In a session of its own: sudo passes no signal on that comes from its own process group.
    async with await anyio.open_process(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            async for line in _lines(process):
                last.append(line)
                if line.startswith("I: "):
                    progress(f"mmdebstrap: {line.removeprefix('I: ')}")
            code = await process.wait()
        except BaseException:
            # Its TERM handler unmounts what it mounted; a plain kill would leave that behind.
            with anyio.CancelScope(shield=True):
                await anyio.run_process([*as_root, "kill", "-TERM", str(process.pid)], check=False)
            raise
    if code != 0:
        raise SandboxError(
            f"mmdebstrap {origin.suite} failed with exit code {code}:\n  " + "\n  ".join(last),
            hint="check that `apt-get update` works on this machine; without root or passwordless sudo, "
            "`apt-get install -y uidmap` lets mmdebstrap work; then run `kinfold images build` again",
        )


def arguments(packages: Iterable[str], origin: Origin, apt_settings: Iterable[str]) -> list[str]:
    """mmdebstrap's options: no recommended packages, no manuals, and nothing of this machine's apt left inside."""
    options = ["--variant=minbase", "--format=tar", f"--include={','.join(packages)}"]
    if origin.keyring:
        options.append(f"--keyring={origin.keyring}")
    options += [f"--aptopt={setting}" for setting in apt_settings]
    options.append("--aptopt=Acquire::Languages none")
    options += [f"--dpkgopt=path-exclude={pattern}" for pattern in UNWANTED]
    options += [f"--dpkgopt=path-include={pattern}" for pattern in WANTED_ALL_THE_SAME]
    options.append('--customize-hook=rm -f "$1"/etc/apt/apt.conf.d/99mmdebstrap')
    return options


async def _as_root() -> list[str]:
    """How to run something as root; empty where we are root, or may not be without being asked for a password.

    Without it mmdebstrap needs user namespaces and their tools, which a fresh machine lacks or forbids.
    """
    if os.geteuid() == 0 or shutil.which("sudo") is None:
        return []
    allowed = await anyio.run_process(["sudo", "-n", "true"], check=False)
    return ["sudo", "-n", f"--preserve-env={','.join(PROXY_SETTINGS)}"] if allowed.returncode == 0 else []


async def _apt_settings() -> tuple[str, ...]:
    if shutil.which("apt-config") is None:
        return ()
    dump = await anyio.run_process(["apt-config", "dump", "--no-empty", "--format", '%f "%v";%n', "Acquire"])
    return tuple(line for line in dump.stdout.decode().splitlines() if NEEDED_OF_APT.match(line))


async def _lines(process: Process) -> AsyncIterator[str]:
    """What the process writes to stderr, a line at a time."""
    assert process.stderr is not None
    rest = ""
    async for text in TextReceiveStream(process.stderr, errors="replace"):
        *lines, rest = (rest + text).replace("\r", "\n").split("\n")
        for line in lines:
            if line.strip():
                yield line.rstrip()
    if rest.strip():
        yield rest.rstrip()


def _os_release(file: Path) -> Mapping[str, str]:
    if not file.is_file():
        return {}
    pairs = (line.split("=", 1) for line in file.read_text().splitlines() if "=" in line)
    return {key.strip(): value.strip().strip('"') for key, value in pairs}


def _names_an_archive(file: Path) -> bool:
    return any(re.match(r"\s*(deb\s|URIs:)", line) for line in file.read_text(errors="replace").splitlines())


def _existing(path: str) -> str | None:
    return path if Path(path).exists() else None
