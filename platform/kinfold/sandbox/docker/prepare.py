"""What is known of a sandbox before anything of it exists: the engine's facts, its image, its limits, its controls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kinfold.errors import Unenforceable
from kinfold.sandbox.base import Limits, SandboxSpec
from kinfold.sandbox.docker import quota
from kinfold.sandbox.docker.admission import Admitted, fit_limits
from kinfold.sandbox.docker.client import EngineFacts
from kinfold.sandbox.docker.controls import Controls, Probing, Settled
from kinfold.sandbox.docker.create import Plan
from kinfold.sandbox.docker.network import open_network
from kinfold.sandbox.docker.pull import find_image
from kinfold.sandbox.docker.workspaces import Layout

if TYPE_CHECKING:
    from kinfold.sandbox.docker.provider import DockerProvider


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All that decides how the container will be made, but for its directories and labels."""

    spec: SandboxSpec
    facts: EngineFacts
    limits: Limits
    image_id: str
    settled: Settled
    network: str

    def plan(self, provider: DockerProvider, layout: Layout, labels: Mapping[str, str]) -> Plan:
        """For a container with these directories and labels."""
        volume = provider.containers.volume()
        return Plan(
            spec=self.spec,
            limits=self.limits,
            image_id=self.image_id,
            layout=layout,
            bounded=self.settled.bounded,
            volume=volume.name,
            volume_labels=volume.labels,
            labels=labels,
            network=self.network,
        )


async def prepare(
    provider: DockerProvider, controls: Controls, admitted: Admitted, *, probing: Probing | None = None
) -> Prepared:
    """Refuse what this engine cannot do, before anything is made.

    Raises `ConfigError`, `EngineUnavailable`, `ImageMissing`, `Unenforceable`.
    """
    spec = admitted.spec
    facts = await provider.engine.facts()
    _check_runtime(spec, facts)
    limits = fit_limits(spec.limits, facts.cpus)
    image_id = await find_image(provider.engine, spec)
    if probing is not None:
        settled = Settled(not_enforced=(), bounded=probing.bounded)
    else:
        settled = await controls.settle(spec, image_id)
    quota.check_reserve(provider.state_dir, provider.disk_reserve)
    network = await open_network(provider.engine) if spec.network == "open" else "none"
    return Prepared(spec=spec, facts=facts, limits=limits, image_id=image_id, settled=settled, network=network)


def _check_runtime(spec: SandboxSpec, facts: EngineFacts) -> None:
    if spec.runtime is not None and spec.runtime not in facts.runtimes:
        raise Unenforceable(
            f"the engine has no runtime {spec.runtime!r}; it has {', '.join(facts.runtimes) or 'none that it names'}",
            hint="install it in the engine's configuration, or leave `runtime` out",
        )
