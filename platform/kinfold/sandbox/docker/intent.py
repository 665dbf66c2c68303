"""What is written down about a sandbox before anything of it exists."""

from __future__ import annotations

import secrets
import time
from pathlib import Path

from kinfold.sandbox.base import SandboxSpec
from kinfold.sandbox.docker.admission import Admitted
from kinfold.sandbox.lifetime import Terms
from kinfold.sandbox.records import Owner, SandboxRecord

DETACHED_TTL = 86400.0
"""Lease of a detached sandbox whose spec names none, in seconds: nothing lives for ever by mistake."""


def fresh_id() -> str:
    """A sandbox id."""
    return f"sbx_{secrets.token_hex(8)}"


def intent(
    sandbox_id: str, admitted: Admitted, workspace: Path, whose: tuple[str, str, str], *, pooled: bool = False
) -> SandboxRecord:
    """The record of a sandbox to come; `whose` is the provider, the instance and the engine."""
    spec = admitted.spec
    now = time.time()
    provider, instance, engine = whose
    return SandboxRecord(
        id=sandbox_id,
        provider=provider,
        instance=instance,
        engine=engine,
        name=spec.name or "",
        spec_hash=admitted.hash,
        spec=spec.model_dump(mode="json", exclude={"secrets"}),
        image=spec.image,
        workspace=str(workspace),
        made=admitted.given is None,
        owner=Owner.current(),
        detached=spec.detached,
        pooled=pooled,
        labels=dict(spec.labels),
        created_at=now,
        expires_at=terms(spec, now).lease(now),
    )


def terms(spec: SandboxSpec, created: float) -> Terms:
    """How long a sandbox of this spec may live; a detached one never without end."""
    ttl = DETACHED_TTL if spec.ttl is None and spec.detached else spec.ttl
    return Terms(created_at=created, ttl=ttl, idle_ttl=spec.idle_ttl)
