"""Which controls hold on this engine: measured once by a short sandbox, then compared with what a spec asks for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinfold.errors import Unenforceable
from kinfold.sandbox.base import Control, Limits, ProbeReport, SandboxSpec
from kinfold.sandbox.docker import probe
from kinfold.sandbox.docker.admission import admit, fit_limits
from kinfold.sandbox.docker.client import EngineFacts
from kinfold.sandbox.docker.pull import local_image

if TYPE_CHECKING:
    from kinfold.sandbox.docker.provider import DockerProvider


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
        key = probe.cache_key(facts, spec.runtime, self._provider.containers.volume().digest, self._provider.channel)
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
        limits = fit_limits(Limits(), facts.cpus)
        seen, channel = await self._look(spec, image_id)
        if not seen.values:
            own = await local_image(self._provider.engine, SandboxSpec().image)
            if own is not None and own != image_id:
                seen, channel = await self._look(spec, own)
        controls = probe.judge(seen, limits, spec.runtime or facts.default_runtime, channel)
        return ProbeReport(engine=facts.describe(), controls=controls), bool(seen.values)

    async def _look(self, spec: SandboxSpec, image_id: str) -> tuple[probe.Seen, str]:
        """One short sandbox, looked at from inside; and how its supervisor was reached."""
        wanted = SandboxSpec(image=image_id, pull="never", runtime=spec.runtime, keep=0.0)
        admitted = admit(wanted, self._provider.state_dir)
        async with await self._provider.create_admitted(admitted, probing=True) as sandbox:
            return await probe.look_inside(sandbox), self._provider.channel_of(sandbox.ref)

    async def not_enforced(self, spec: SandboxSpec, image_id: str) -> tuple[Control, ...]:
        """What `spec` asks for and does not get here. Raises `Unenforceable` where it is strict."""
        report = await self.report(spec, image_id)
        missing = tuple(control for control in report.not_enforced if _demanded(control, spec))
        if missing and spec.strict:
            words = "; ".join(f"{control.name}: {control.reason}" for control in missing)
            raise Unenforceable(
                f"not enforced on this engine: {words}", hint="`kinfold doctor` lists them; strict=False goes without"
            )
        return missing


def _demanded(control: Control, spec: SandboxSpec) -> bool:
    if control.name == "network_none":
        return spec.network == "none"
    return control.name != "read_only_root" or spec.read_only_root
