"""`kinfold sandbox top` and `logs`: what runs in a sandbox and what it printed, without being in its way."""

from __future__ import annotations

import sys

import anyio

from kinfold.cli.columns import show_rows, size, span
from kinfold.cli.ending import Outlet, one_line, say_error
from kinfold.cli.sandboxes import with_sandbox
from kinfold.errors import NotFound, SandboxLost
from kinfold.sandbox.base import MIB
from kinfold.sandbox.execs import ExecInfo
from kinfold.sandbox.sandbox import Sandbox

_TOP = ("exec", "owner", "exec is", ">age", ">pid", ">parent", "state", ">threads", ">memory", ">cpu s", "name")
_POLL = 0.3
_FORGOTTEN = "[{} has ended and is forgotten: its last output may be missing]"


def top_command(wanted: str) -> int:
    """One row per process; an exec that has none any more is left out."""

    async def top(sandbox: Sandbox) -> int:
        table, execs = await sandbox.processes(), {info.id: info for info in await sandbox.execs()}
        rows = []
        for one in sorted(table.processes, key=lambda one: (one.exec_id, one.pid)):
            info = execs.get(one.exec_id)
            about = (info.owner or "-", info.state, span(info.age)) if info is not None else ("-", "ended", "-")
            numbers = (str(one.pid), str(one.parent), one.state, str(one.threads), size(one.memory_bytes))
            rows.append((one.exec_id, *about, *numbers, f"{one.cpu_seconds:.2f}", one.name))
        show_rows(_TOP, rows)
        if not table.complete:
            say_error("there are more processes than were looked at", "try again, or end some")
            return 1
        return 0

    return with_sandbox(wanted, top)


def logs_command(wanted: str, exec_id: str | None, *, follow: bool) -> int:
    """What is kept of one exec's output, or of all; asked for piece by piece, so that no program waits for us."""

    async def logs(sandbox: Sandbox) -> int:
        logs = Logs(sandbox, exec_id)
        more = await logs.show()
        while follow and more:
            await anyio.sleep(_POLL)
            try:
                more = await logs.show()
            except SandboxLost as lost:  # what was waited for: the end of what there is to follow
                print(one_line(f"[{lost.message}]"), file=sys.stderr)
                more = False
        return 0

    return with_sandbox(wanted, logs)


class Logs:
    """How far each exec's output was shown."""

    def __init__(self, sandbox: Sandbox, exec_id: str | None) -> None:
        self._sandbox = sandbox
        self._only = exec_id
        self._shown: dict[str, list[int]] = {}
        self._outlets = (Outlet(sys.stdout), Outlet(sys.stderr))
        self._heading = ""

    async def show(self) -> bool:
        """Show what is new; whether more may come. Raises `NotFound` for an exec that was never there."""
        known = await self._sandbox.execs()
        chosen = [info for info in known if self._only in (None, info.id)]
        if not chosen and self._only is not None:
            if self._only not in self._shown:
                raise NotFound(f"no exec {self._only!r} is known", hint="without EXEC, `logs` shows those that are")
            self._say(_FORGOTTEN.format(self._only))
        for info in sorted(chosen, key=lambda info: -info.age):
            await self._show(info)
        return self._only is None or any(info.state != "ended" for info in chosen)

    async def _show(self, info: ExecInfo) -> None:
        shown = self._shown.setdefault(info.id, [0, 0])
        for number, total in enumerate((info.stdout_total, info.stderr_total)):
            if total > shown[number]:
                self._head(info)
            while total > shown[number]:
                try:
                    reached = await self._pieces(info, number, shown[number])
                except NotFound:
                    self._say(_FORGOTTEN.format(info.id))
                    return
                self._gap(total - shown[number] if reached == shown[number] else 0)
                shown[number] = total if reached == shown[number] else reached

    async def _pieces(self, info: ExecInfo, number: int, offset: int) -> int:
        """Show at most a MiB from `offset` on; how far that went."""
        kept = await self._sandbox.kept(info.id, "stderr" if number else "stdout", offset, MIB)
        for piece in kept.pieces:
            self._gap(piece.offset - offset)
            self._outlets[number].write(piece.data)
            offset = piece.offset + len(piece.data)
        return offset

    def _gap(self, dropped: int) -> None:
        if dropped > 0:
            self._say(f"[{dropped:,} bytes were not kept]")

    def _head(self, info: ExecInfo) -> None:
        """Whose output follows, where it is not known from the command line."""
        if self._only is None and self._heading != info.id:
            self._heading = info.id
            self._say(f"== {info.id}, {info.state}, of {info.owner or 'nobody'}, {span(info.age)} old")

    def _say(self, words: str) -> None:
        print(one_line(words), file=sys.stderr, flush=True)
