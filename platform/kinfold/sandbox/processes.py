"""The processes of each exec: what the supervisor tells of them, and how it is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct

from kinfold.sandbox.protocol import PayloadReader, ProtocolViolation

_ROW = Struct("<QIIBIQQ")
_MAX_NAME = 15
"""The kernel's own bound for what a process calls itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessInfo:
    """One process in the sandbox."""

    exec_id: str
    pid: int
    """As seen inside."""
    parent: int
    state: str
    """The kernel's letter: R running, S sleeping, D waiting for a device, T stopped, Z ended and not yet reaped …"""
    threads: int
    memory_bytes: int
    """Resident; memory shared with other processes counts for each."""
    cpu_seconds: float
    name: str
    """As it calls itself: any characters, escape them to show them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTable:
    """The processes of all execs at one moment."""

    processes: tuple[ProcessInfo, ...]
    complete: bool
    """False: there were more than could be looked at in 20 ms."""


def process_table(payload: bytes | memoryview) -> ProcessTable:
    """OK of PROCESSES."""
    from kinfold.sandbox.execution import exec_name

    reader = PayloadReader(payload)
    complete = reader.boolean()
    found = []
    for _ in range(reader.count(_ROW.size + 4)):
        number, pid, parent, state, threads, memory, cpu_us = reader.take(_ROW)
        name = reader.bytes_(_MAX_NAME)
        if not 0x41 <= state <= 0x7A:
            raise ProtocolViolation(f"a process in state {state}")
        found.append(
            ProcessInfo(
                exec_id=exec_name(number),
                pid=pid,
                parent=parent,
                state=chr(state),
                threads=threads,
                memory_bytes=memory,
                cpu_seconds=cpu_us / 1_000_000,
                name=name.decode("utf-8", "replace"),
            )
        )
    reader.done()
    return ProcessTable(processes=tuple(found), complete=complete)
