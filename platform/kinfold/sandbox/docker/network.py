"""The network of the sandboxes that ask for an open one: they reach the world through it, and each other not.

On the engine's default bridge every container may connect to every other. This one is shared by all instances on an
engine and stays there, as the supervisor's volume does; whoever needs it first makes it.
"""

from __future__ import annotations

from typing import Any

from kinfold.errors import StartFailed
from kinfold.sandbox.docker import labels
from kinfold.sandbox.docker.client import Engine, EngineRefused

NAME = "kinfold-open"
_APART = "com.docker.network.bridge.enable_icc"
_CONFLICT = 409


async def open_network(engine: Engine) -> str:
    """Its id. Raises `StartFailed` where a network of this name would let its members reach each other."""
    found = await _find(engine)
    if found is None:
        try:
            await engine.call(
                "make the network for open sandboxes",
                lambda api: api.create_network(
                    NAME,
                    driver="bridge",
                    check_duplicate=True,
                    options={_APART: "false"},
                    labels={labels.ROLE: labels.ROLE_NETWORK},
                ),
                settle=True,
            )
        except EngineRefused as error:
            if error.status != _CONFLICT:
                raise StartFailed(
                    f"the engine makes no network for open sandboxes: {error.explanation}",
                    hint="`docker network prune` frees address ranges that nobody uses; or go without (network = none)",
                ) from error
        found = await _find(engine)
    if found is None or (found.get("Options") or {}).get(_APART) != "false" or found.get("Driver") != "bridge":
        raise StartFailed(
            f"the network {NAME} on this engine does not keep its members apart",
            hint=f"`docker network rm {NAME}`, and it is made anew",
        )
    return str(found["Id"])


async def _find(engine: Engine) -> dict[str, Any] | None:
    """The oldest of that name: where two were made at once, all use the same."""
    listed: list[dict[str, Any]] = await engine.call("look for the open network", lambda api: api.networks([NAME]))
    named = [network for network in listed if network["Name"] == NAME]
    return min(named, key=lambda network: (network.get("Created", ""), network["Id"]), default=None)
