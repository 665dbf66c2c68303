"""Which controls hold on this engine: measured once by a short sandbox, then compared with what a spec asks for."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kinfold.errors import StartFailed, Unenforceable
from kinfold.sandbox.allowlist import Allowlist
from kinfold.sandbox.base import Control, Limits, ProbeReport, SandboxSpec
from kinfold.sandbox.docker import probe, quota
from kinfold.sandbox.docker.admission import admit, fit_limits
from kinfold.sandbox.docker.client import EngineFacts
from kinfold.sandbox.docker.pull import local_image

if TYPE_CHECKING:
    from kinfold.sandbox.docker.provider import DockerProvider


_NOBODY = Allowlist(hosts=("kinfold-probe.invalid:1",))
"""What the probing sandbox may reach: so that the proxy is there, and refuses."""
_PROBED = Limits(disk_bytes=probe.PROBED_DISK)
_GIVEN = (
    Control(name="disk", enforced=False, reason="a given directory has no quota; a watchdog looks every second"),
    Control(
        name="workspace_nosuid", enforced=False, reason="a given directory is mounted as its file system is on the host"
    ),
)
"""What holds for workspaces that kinfold makes, and not for a directory that the caller brought."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probing:
    """A sandbox that is made to be measured."""

    bounded: bool
    """With a bounded disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """How one sandbox is made on this engine."""

    not_enforced: tuple[Control, ...]
    bounded: bool
    """Its workspace and home get a file system of their own."""


class Controls:
    """The measurements of one provider's engine."""

    def __init__(self, provider: DockerProvider) -> None:
        self._provider = provider
        self._probes = probe.ProbeCache(provider.state_dir)
        self._without_shell: dict[str, ProbeReport] = {}
        """By image, where nothing could ask the questions: not kept, another image may tell more."""

    async def report(self, spec: SandboxSpec, image_id: str, *, fresh: bool = False) -> ProbeReport:
        """What was measured on this engine with the spec's runtime; measured now where nothing is known, or `fresh`."""
        facts = await self._provider.engine.facts()
        digest = self._provider.containers.volume().digest
        key = probe.cache_key(facts, spec.runtime, digest, self._provider.channel, self._host(facts))
        async with self._probes.lock:
            report = None if fresh else self._probes.get(key) or self._without_shell.get(image_id)
            if report is None:
                report, complete = await self._measure(facts, spec, image_id)
                if complete:
                    self._probes.put(key, report)
                else:
                    self._without_shell[image_id] = report
        return report

    async def _measure(self, facts: EngineFacts, spec: SandboxSpec, image_id: str) -> tuple[ProbeReport, bool]:
        """By the image at hand, or kinfold's own where that has no shell; and whether either had one."""
        limits = fit_limits(_PROBED, facts.cpus)
        missing = self.no_quota(facts)
        seen, channel = await self._bounded_look(spec, image_id, missing)
        if not seen.values.get("egress"):
            own = await local_image(self._provider.engine, SandboxSpec().image)
            if own is not None and own != image_id:
                seen, channel = await self._bounded_look(spec, own, seen.disk)
        controls = probe.judge(seen, limits, spec.runtime or facts.default_runtime, channel)
        return ProbeReport(engine=facts.describe(), controls=controls), bool(seen.values)

    async def _bounded_look(self, spec: SandboxSpec, image_id: str, missing: str) -> tuple[probe.Seen, str]:
        """With a bounded disk where that may work (nothing is `missing`), else without."""
        if not missing:
            try:
                return await self._look(spec, image_id, bounded=True)
            except StartFailed as error:
                missing = error.message
        seen, channel = await self._look(spec, image_id, bounded=False)
        return replace(seen, disk=missing), channel

    async def _look(self, spec: SandboxSpec, image_id: str, *, bounded: bool) -> tuple[probe.Seen, str]:
        """One short sandbox, looked at from inside; and how its supervisor was reached."""
        wanted = SandboxSpec(
            image=image_id, pull="never", runtime=spec.runtime, keep=0.0, limits=_PROBED, network=_NOBODY
        )
        admitted = admit(wanted, self._provider.state_dir)
        async with await self._provider.create_admitted(admitted, probing=Probing(bounded=bounded)) as sandbox:
            seen = await probe.look_inside(sandbox)
            disk = await probe.fill_disk(sandbox) if bounded else "not tried"
            log = await self._provider.containers.log_driver(sandbox.ref.handle)
            return replace(seen, disk=disk, log=log), self._provider.channel_of(sandbox.ref)

    def no_quota(self, facts: EngineFacts) -> str:
        """What is known to be in the way of a bounded disk, before it is tried; empty: nothing."""
        if not self._provider.engine.endpoint.startswith("unix://"):
            return f"the engine at {self._provider.engine.endpoint} is not this host's own"
        if facts.rootless:
            return "a rootless engine sees no file system that is mounted here"
        return quota.missing()

    def _host(self, facts: EngineFacts) -> str:
        """What this side brings to the answers: its tools, its privilege, and the mounts that it sees."""
        try:
            mounts = os.readlink("/proc/self/ns/mnt")
        except OSError:
            mounts = ""
        return f"{self.no_quota(facts)} {mounts} {self._provider.state_dir}"

    async def settle(self, spec: SandboxSpec, image_id: str) -> Settled:
        """What `spec` asks for and does not get here, and how. Raises `Unenforceable` where it is strict."""
        report = await self.report(spec, image_id)
        bounded = spec.workspace is None and all(control.name != "disk" for control in report.not_enforced)
        return Settled(not_enforced=self._not_enforced(spec, report), bounded=bounded)

    def _not_enforced(self, spec: SandboxSpec, report: ProbeReport) -> tuple[Control, ...]:
        found = {control.name: control for control in report.not_enforced}
        if spec.workspace is not None:
            found |= {control.name: control for control in _GIVEN}
        missing = tuple(control for control in found.values() if _demanded(control, spec))
        if missing and spec.strict:
            words = "; ".join(f"{control.name}: {control.reason}" for control in missing)
            raise Unenforceable(
                f"not enforced on this engine: {words}", hint="`kinfold doctor` lists them; strict=False goes without"
            )
        return missing


def _demanded(control: Control, spec: SandboxSpec) -> bool:
    if control.name == "network_none":
        return spec.network != "open"
    if control.name == "network_allowlist":
        return isinstance(spec.network, Allowlist)
    return control.name != "read_only_root" or spec.read_only_root
