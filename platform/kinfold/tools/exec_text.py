"""What a model reads of a command: how it ended, what it printed, what was cut, what still runs."""

from __future__ import annotations

from kinfold.sandbox.base import EndedBy, ExecResult

PIDS_NAMED = 10

_ENDINGS: dict[EndedBy, str] = {
    "exited": "exit code {code} ({took})",
    "signalled": "ended by signal {signal} ({took})",
    "timed_out": "timed out after {limit}: the command and every process that it started were ended ({killed})",
    "idle_timed_out": "ended for want of output after {took} ({killed})",
    "output_limited": "ended because it printed too much ({took}; {killed})",
    "pids_limited": "ended because the sandbox ran out of processes ({took}; {killed})",
    "cancelled": "cancelled after {took} ({killed})",
    "oom_killed": "killed because the sandbox ran out of memory ({took})",
    "disk_limited": "ended because the workspace grew past its disk limit ({took}; {killed}): remove files first",
    "kill_failed": "could not be ended: {survivors} processes survived ({took})",
}


def render(result: ExecResult, timeout: float | None = None) -> str:
    """The end first, then both streams; a cut stands where bytes are missing."""
    parts = [ending(result, timeout)]
    if result.background_pids:
        parts.append(_background(result))
    out = stream_text(result.stdout, result.stdout_head_bytes, result.stdout_total)
    err = stream_text(result.stderr, result.stderr_head_bytes, result.stderr_total)
    if out:
        parts.append(f"stdout:\n{out}")
    if err:
        parts.append(f"stderr:\n{err}")
    if not out and not err:
        parts.append("(no output)")
    return "\n".join(parts)


def ending(result: ExecResult, timeout: float | None = None) -> str:
    """One line: exit code, signal or who ended it, with the proof of what was killed."""
    took = f"{result.duration:.1f} s"
    line = _ENDINGS[result.ended_by].format(
        took=took,
        limit=took if timeout is None else f"{timeout:g} s",
        code=result.exit_code,
        signal=result.signal,
        killed=f"{result.killed} needed KILL, {result.survivors} left",
        survivors=result.survivors,
    )
    if result.oom_kills and result.ended_by != "oom_killed":
        line += f"\nnote: the sandbox ran out of memory meanwhile ({result.oom_kills} kills); a process may be gone"
    return line


def stream_text(data: bytes, head_bytes: int, total: int) -> str:
    """Head and tail as text, with a note where the middle is missing."""
    if total <= len(data):
        return text_of(data).rstrip("\n")
    note = f"\n[… {total - len(data):,} of {total:,} bytes were not kept …]\n"
    return (text_of(data[:head_bytes]) + note + text_of(data[head_bytes:])).rstrip("\n")


def text_of(data: bytes) -> str:
    """As text; a NUL as the sign for it, for not every service and store takes the character itself."""
    return data.decode("utf-8", "replace").replace("\0", "\u2400")


def _background(result: ExecResult) -> str:
    count = len(result.background_pids)
    named = ", ".join(str(pid) for pid in result.background_pids[:PIDS_NAMED])
    more = ", …" if count > PIDS_NAMED else ""
    runs = "1 process still runs" if count == 1 else f"{count} processes still run"
    return (
        f"{runs} in the background (pid {named}{more}); "
        f"bash(exec_id={result.id!r}) reads on, bash(kill={result.id!r}) ends it; your run's end ends it, too"
    )
