"""The package's build hook: compiles the supervisor and puts it, with the Dockerfiles, into the wheel.

Needs a C compiler that links statically (`$CC`, default `cc`; a cross compiler makes a wheel for its own target) and
nothing else, not even make. An editable install gets the binary where the supervisor's own Makefile puts it, so that a
source tree never holds two.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any, NoReturn

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCES = "sandbox_images/supervisor"
BUILD = f"{SOURCES}/build"
BINARY = "kinfold-supervisor"
IMAGES = ("base", "python", "node")
FLAGS = ("-std=c11", "-O2", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-ffile-prefix-map=.=", "-static", "-s")
APT_LINE = "apt-get install -y gcc libc6-dev"
KEPT_OUTPUT = 2000


class SupervisorBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs before each wheel, editable or not."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, and tell hatchling what the wheel carries and which machine it is for."""
        compiler = shlex.split(os.environ.get("CC") or "cc")
        machine = self._machine(compiler)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{machine}"
        if version == "editable":
            self._compile(compiler, Path(self.root, BUILD, BINARY))
            return
        binary = Path(self.root, BUILD, f"wheel-{machine}", BINARY)
        self._compile(compiler, binary)
        build_data["force_include"][str(binary)] = f"kinfold/_bin/{BINARY}"
        for name in IMAGES:
            build_data["force_include"][f"sandbox_images/{name}"] = f"kinfold/_images/{name}"

    def _machine(self, compiler: list[str]) -> str:
        """The machine that the compiler makes code for, as wheel tags name it."""
        said = self._run([*compiler, "-dumpmachine"]).strip()
        machine, _, system = said.partition("-")
        if "linux" not in system:
            self._fail(f"the supervisor needs Linux, but {shlex.join(compiler)} makes code for {said!r}; set $CC")
        return machine

    def _compile(self, compiler: list[str], binary: Path) -> None:
        folder = Path(self.root, SOURCES)
        sources = sorted(str(path.relative_to(folder)) for path in folder.glob("*.c"))
        if not sources:
            self._fail(f"{SOURCES} holds no C source; this source tree is not complete")
        digest = hashlib.sha256()
        for path in [*(folder / name for name in sources), *sorted(folder.glob("*.h"))]:
            digest.update(path.read_bytes())
        binary.parent.mkdir(parents=True, exist_ok=True)
        # Renamed into place: a process may be running the old one.
        with tempfile.TemporaryDirectory(dir=binary.parent) as scratch:
            fresh = Path(scratch, binary.name)
            build = f'-DKF_BUILD="{digest.hexdigest()}"'
            self._run([*compiler, *FLAGS, build, "-o", str(fresh), *sources], cwd=folder)
            fresh.chmod(0o755)
            fresh.replace(binary)

    def _run(self, command: list[str], cwd: Path | None = None) -> str:
        try:
            done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
        except OSError as error:
            self._fail(f"no C compiler ({command[0]}: {error.strerror}); {APT_LINE}, or set $CC")
        if done.returncode != 0:
            self._fail(
                f"{command[0]} cannot build the supervisor (exit {done.returncode}; it must link with -static: "
                f"{APT_LINE}):\n{done.stderr[-KEPT_OUTPUT:].strip()}"
            )
        return done.stdout

    def _fail(self, reason: str) -> NoReturn:
        self.app.abort(f"error: {reason}")
        raise SystemExit(1)
