"""The seam between kinfold and whatever runs containers: what is asked of a sandbox and what comes back.

Requests are one object each, so that a new field breaks nobody. `Provider` is the seam;
`kinfold.sandbox.sandbox.Sandbox` is the one class behind which every provider's container looks the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from kinfold.sandbox.allowlist import Allowlist

if TYPE_CHECKING:
    from kinfold.sandbox.sandbox import Sandbox

WORKSPACE = "/workspace"
"""Where the workspace is mounted in every container; fixed."""
HOME = "/home/agent"
"""Where the agent's home (caches, temporary directories) is mounted in every container; fixed."""
SCRATCH = ".kinfold"
"""The directory in the workspace for scratch and spilled outputs; outside listings, snapshots and artifacts."""

EndedBy = Literal[
    "exited", "signalled", "timed_out", "idle_timed_out", "output_limited", "pids_limited",
    "cancelled", "oom_killed", "kill_failed", "disk_limited",
]  # fmt: skip
FileType = Literal["file", "directory", "symlink", "other"]

MIB = 1024 * 1024
GIB = 1024 * MIB


class Limits(BaseModel):
    """What one sandbox may use. Memory is memory + swap."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    cpus: float = Field(default=2.0, gt=0)
    memory_bytes: int = Field(default=2 * GIB, ge=64 * MIB)
    pids: int = Field(default=512, ge=32)
    open_files: int = Field(default=4096, ge=64)
    file_bytes: int = Field(default=2 * GIB, ge=MIB)
    """The largest single file (RLIMIT_FSIZE)."""
    disk_bytes: int = Field(default=5 * GIB, ge=MIB)
    """Of the workspace and the home together, as `disk_inodes`."""
    disk_inodes: int = Field(default=262_144, ge=64)
    """Files, directories and links; on a small disk the default is one for each 4 KiB."""
    tmp_bytes: int = Field(default=64 * MIB, ge=MIB)
    """Of the tmpfs at /tmp."""
    shm_bytes: int = Field(default=64 * MIB, ge=MIB)


class SandboxSpec(BaseModel):
    """What is asked of a provider: one container and one workspace."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str | None = None
    """`create` is idempotent by this name and the spec's hash; None makes a fresh id."""
    image: str = "kinfold/base"
    pull: Literal["missing", "never", "always"] = "missing"
    workspace: str | None = None
    """A given host directory, never chowned and never removed; None: kinfold makes one."""
    copy_from: str | None = None
    """A directory whose copy becomes a made workspace; not together with `workspace`."""
    env: dict[str, str] = Field(default_factory=dict)
    """Travels per exec over the channel, never in the engine's config."""
    secrets: dict[str, str] = Field(default_factory=dict)
    """As `env`, and redacted in events."""
    user: str | None = None
    """`UID` or `UID:GID` of the agent; None: the workspace owner's as seen inside the container."""
    network: Literal["none", "open"] | Allowlist = "none"
    """An `allowlist([...])`: no network in the container; a proxy on the host carries what is listed, nothing else."""
    limits: Limits = Limits()
    runtime: str | None = None
    """The OCI runtime (`runc`, `runsc`, `kata` …); None: the engine's default."""
    read_only_root: bool = True
    ttl: float | None = None
    """Seconds after its making at which it is ended: by who holds it, else by the reaper. None: a detached one has a
    day, an owned one lives as long as its owner."""
    idle_ttl: float | None = None
    """Seconds without any exec or file request after which it is ended."""
    idle_pause: float | None = Field(default=None, ge=0.1, le=1_000_000)
    """Seconds without any exec or file request, and with none unanswered, after which programs that were left running
    are stopped; anybody's next request lets them go on first. An explicit `Sandbox.pause` is ended by `resume` alone.
    """
    resume_ttl: float = Field(default=0.0, ge=0)
    """Seconds that it stays, from when its owner is found dead, for another process to take it over by its name;
    0: it is removed at once. No longer than `ttl`."""
    orphan_grace: float = Field(default=60.0, gt=0)
    """Seconds without a word on any channel after which the supervisor kills all execs."""
    keep: float = 7 * 86400.0
    """Seconds that a made workspace stays after the sandbox's end; 0: removed at once."""
    labels: dict[str, str] = Field(default_factory=dict)
    strict: bool = False
    """Refuse (`Unenforceable`) where a control is not enforced on this engine."""
    detached: bool = False
    """Owned by its lease alone: lives on when the creating process ends, until `ttl`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TerminalSize:
    """Of a terminal, in characters; each from 1 to 65,535."""

    rows: int = 24
    columns: int = 80

    def __post_init__(self) -> None:
        for name in ("rows", "columns"):
            if not 1 <= getattr(self, name) <= 65_535:
                raise ValueError(f"a terminal with {getattr(self, name)} {name}: there are from 1 to 65,535")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecRequest:
    """One program to run."""

    command: Sequence[str] | str
    """An argv list, or a string for `sh -c`."""
    cwd: str = "."
    """Relative to the workspace, or absolute beneath it."""
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: bytes | None = None
    """Bytes to feed, then EOF. None: no input, unless `stdin_open`."""
    stdin_open: bool = False
    """Leave standard input open for `Process.write`."""
    timeout: float | None = None
    idle_timeout: float | None = None
    """Seconds without output after which the exec is ended."""
    grace: float = 2.0
    """Seconds between TERM and KILL."""
    max_output_bytes: int = MIB
    """What is kept of each stream (head and tail); the rest is drained and counted, and kills nothing."""
    output_limit: int = 16 * GIB
    """Total output that ends the exec."""
    owner: str = ""
    """The run's id; `Sandbox.end(owner)` kills what that run left."""
    id: str = ""
    """Empty: a random one. Else `exec_` and 16 hex digits that no exec of this sandbox has had: whoever can tell it
    again finds the exec again, also after a crash (`Sandbox.take_up`)."""
    stream: bool = False
    """A reader of `Process.output()` follows: it sees every byte and its pace pauses the program."""
    tty: TerminalSize | None = None
    """A terminal of this size instead of pipes: all output is `stdout`, with CR LF line ends; what is written to
    standard input is typed. `Process.resize` changes the size. A `SandboxError` with the code `unsupported` where
    the sandbox has no terminals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskUse:
    """What the workspace and the home take together. A limit of None: not known here."""

    bytes: int
    bytes_peak: int
    """The highest that was seen: looked at by every exec's end and `usage`, and each second while a program runs."""
    bytes_limit: int | None
    inodes: int
    inodes_limit: int | None

    @classmethod
    def of(cls, numbers: Sequence[int | None]) -> DiskUse | None:
        """From what the supervisor says; None where it does not know."""
        used, peak, limit, inodes, inodes_limit = numbers
        if used is None or inodes is None:
            return None
        return cls(
            bytes=used,
            bytes_peak=used if peak is None else peak,
            bytes_limit=limit,
            inodes=inodes,
            inodes_limit=inodes_limit,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """How an exec ended. A non-zero exit is a result; a lost sandbox raises `SandboxLost`."""

    id: str
    """`exec_` and 16 hex digits."""
    ended_by: EndedBy
    exit_code: int | None
    """None unless the leader exited. 127 or 126 where the program could not start."""
    signal: int | None
    stdout: bytes
    """Head and tail joined."""
    stderr: bytes
    stdout_head_bytes: int
    """How many bytes of `stdout` are the head; the cut is there when `stdout_total` is larger than `len(stdout)`."""
    stderr_head_bytes: int
    stdout_total: int
    stderr_total: int
    duration: float
    killed: int = 0
    """Processes that were signalled with KILL."""
    survivors: int = 0
    """0, or `ended_by` is `kill_failed`."""
    background_pids: tuple[int, ...] = ()
    """Processes that the leader left running."""
    oom_kills: int = 0
    """How often the sandbox's OOM killer struck while this exec ran."""
    disk: DiskUse | None = None
    """At its end; None where nothing watches the disk (`LocalProvider`)."""

    @property
    def truncated(self) -> bool:
        """Whether bytes of either stream were dropped."""
        return self.stdout_total > len(self.stdout) or self.stderr_total > len(self.stderr)

    @property
    def stdout_text(self) -> str:
        """`stdout` as text, replacement characters for what is not UTF-8."""
        return self.stdout.decode("utf-8", "replace")

    @property
    def stderr_text(self) -> str:
        """`stderr` as text, replacement characters for what is not UTF-8."""
        return self.stderr.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A piece of a running exec's output."""

    stream: Literal["stdout", "stderr"]
    offset: int
    """Of the first byte in the stream; a jump means that what lies between was dropped."""
    data: bytes


class FileStat(NamedTuple):
    """What `lstat` says of a path, read inside the container by the agent's uid.

    A named tuple and no dataclass, for a snapshot makes a million of them.
    """

    path: str
    """Absolute in the container; names that are not UTF-8 use surrogateescape."""
    type: FileType
    size: int
    mode: int
    """Permission bits (07777)."""
    mtime_ns: int
    ctime_ns: int
    inode: int
    target: str | None = None
    """Of a symlink, verbatim."""
    target_type: FileType | None = None
    """Of a symlink, in a claim: what it resolves to."""
    sha256: str | None = None
    entries: int | None = None
    """Regular files beneath a directory, in a claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Metadata of the whole workspace at one moment, by path relative to the root."""

    entries: Mapping[str, FileStat]
    truncated: bool = False
    """More entries than the bound: comparisons say `unknown`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Entries below a directory, sorted by path."""

    entries: tuple[FileStat, ...]
    truncated: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerEnd:
    """What ending an owner's execs killed."""

    exec_id: str
    killed: int
    survivors: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxUsage:
    """What a sandbox uses now, read from its own cgroup. None: not readable here."""

    cpu_seconds: float | None
    memory_bytes: int | None
    memory_peak_bytes: int | None
    memory_limit_bytes: int | None
    pids: int | None
    pids_peak: int | None
    pids_limit: int | None
    oom_kills: int | None
    execs_running: int
    disk: DiskUse | None = None
    paused: bool = False
    """Whether all execs are stopped (`Sandbox.pause`), by whichever process."""
    paused_seconds: float = 0.0
    """For how long they were, in all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EgressAttempt:
    """One try of a program to reach the world through an allowlist, told when it has ended."""

    method: str
    """`connect`, `http`, or empty where the request could not be read."""
    host: str
    """Lower case; empty where the request named none that can be read."""
    port: int
    allowed: bool
    """By the list; what was allowed may still have failed."""
    reason: str
    """Empty where all went well; else one word, as `host_not_allowed`, `private_address`, `connect_failed`."""
    sent: int
    """Bytes of the program's that left."""
    received: int


OnEgress = Callable[[EgressAttempt], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxRef:
    """Which sandbox, as any process can name it."""

    id: str
    """`sbx_` and 16 hex digits."""
    provider: str
    handle: str = ""
    """The provider's own key (a container's id); opaque elsewhere."""
    name: str = ""
    image: str = ""
    workspace: str = ""
    """Where the files are, to show to a person; never opened outside the provider."""
    state: Literal["creating", "running", "paused", "exited", "missing"] = "running"
    created_at: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Control:
    """One control and whether this engine was measured to enforce it."""

    name: str
    enforced: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeReport:
    """What `Provider.probe()` measured."""

    engine: str
    """Name and version, for a person."""
    controls: tuple[Control, ...]

    @property
    def not_enforced(self) -> tuple[Control, ...]:
        """The controls that do not hold here."""
        return tuple(control for control in self.controls if not control.enforced)


class ByteStream(Protocol):
    """The channel's bytes, however they travel."""

    async def receive(self, max_bytes: int = 262144) -> bytes:
        """At least one byte; raises `anyio.EndOfStream` at the end, `anyio.BrokenResourceError` when cut."""
        ...

    async def send(self, data: bytes) -> None:
        """All of `data`; raises `anyio.BrokenResourceError` when cut."""
        ...

    async def aclose(self) -> None:
        """Shut both directions down and release the descriptor."""
        ...


class Provider(Protocol):
    """Whatever makes sandboxes. Six methods and a name; `kinfold.testing.contract` says what each must do."""

    name: str

    async def create(self, spec: SandboxSpec) -> Sandbox:
        """A ready sandbox.

        Raises `ConfigError`, `EngineUnavailable`, `ImageMissing`, `StartFailed`, `Unenforceable`.
        """
        ...

    async def connect(self, ref: SandboxRef) -> Sandbox:
        """The running sandbox that `ref` names. Raises `SandboxLost` (gone or replaced), `EngineUnavailable`."""
        ...

    async def list(self, labels: Mapping[str, str] | None = None) -> list[SandboxRef]:
        """The sandboxes of this kinfold instance that carry these labels."""
        ...

    async def destroy(self, ref: SandboxRef) -> None:
        """End the container and all it ran; no error when it is gone already."""
        ...

    async def probe(self) -> ProbeReport:
        """Measure what is enforced here."""
        ...

    async def open_stream(self, ref: SandboxRef) -> ByteStream:
        """A fresh channel's bytes. Raises `SandboxLost` when the container is gone."""
        ...
