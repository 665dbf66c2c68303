"""Makes a sandbox in a task of its own, so that no way of being cancelled loses sight of a container."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.abc

from kinfold.sandbox.base import Provider, SandboxSpec
from kinfold.sandbox.sandbox import Sandbox


async def create_apart(
    group: anyio.abc.TaskGroup, provider: Provider, spec: SandboxSpec, on_made: Callable[[Sandbox], object]
) -> Sandbox:
    """`provider.create(spec)`, as a task of `group`; `on_made` gets the sandbox also when the caller was cancelled.

    A provider shields what must not be torn apart (a container made, its id not yet known). Such a shield holds
    against anyio's cancellation, but not against asyncio's own, and Ctrl-C is the latter: it hits the caller's task.
    Here that is not the task in which the provider works.
    """
    made: list[Sandbox] = []
    failed: list[Exception] = []
    settled, scope = anyio.Event(), anyio.CancelScope()

    async def create() -> None:
        try:
            with scope:
                sandbox = await provider.create(spec)
                on_made(sandbox)
                made.append(sandbox)
        except Exception as error:  # noqa: BLE001 - raised below, in the caller's task
            failed.append(error)
        finally:
            settled.set()

    group.start_soon(create)
    try:
        await settled.wait()
    except anyio.get_cancelled_exc_class():
        scope.cancel()
        with anyio.CancelScope(shield=True):
            await settled.wait()
        raise
    if failed:
        raise failed[0]
    return made[0]
