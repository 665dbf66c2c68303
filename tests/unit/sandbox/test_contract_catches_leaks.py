"""The contract is worth something: providers that break it in ways met in the field fail it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from kinfold.sandbox.base import ExecRequest, ExecResult, OwnerEnd, SandboxSpec
from kinfold.sandbox.local import LocalProvider
from kinfold.sandbox.sandbox import Sandbox
from kinfold.testing.contract import background, kills, limits
from kinfold.testing.contract.looking import alive

pytestmark = pytest.mark.anyio


class LeakySandbox(Sandbox):
    """Ends the leader at a timeout and calls that the end: whoever called `setsid` lives on."""

    async def exec(self, command: object, **words: object) -> ExecResult:
        return await self.run(ExecRequest(command=command, **words))  # type: ignore[arg-type]

    async def run(self, request: ExecRequest) -> ExecResult:
        if request.timeout is None or request.timeout > 10:
            return await super().run(request)
        process = await self.start(replace(request, timeout=None, stream=True))
        got = bytearray()
        async for piece in process.output():
            got += piece.data
            if got.count(b"\n") >= 5:
                break
        await process.signal(9)
        result = await process.wait()
        return replace(result, ended_by="timed_out", exit_code=None, stdout=bytes(got), killed=6, survivors=0)

    async def end(self, owner: str, *, grace: float = 2.0) -> list[OwnerEnd]:
        return [OwnerEnd(exec_id=info.id, killed=1, survivors=0) for info in await self.execs() if info.owner == owner]


@pytest.fixture
async def leaky(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LeakySandbox]:
    state = tmp_path_factory.mktemp("leaky")
    state.chmod(0o700)
    async with (
        LocalProvider(state) as provider,
        await provider.create(SandboxSpec(keep=0)) as honest,
        LeakySandbox(provider=provider, ref=honest.ref, spec=SandboxSpec(detached=True)) as sandbox,
    ):
        await sandbox.open()
        yield sandbox


async def test_a_child_that_outlives_a_timeout_by_setsid_fails_the_contract(leaky: LeakySandbox) -> None:
    with pytest.raises(AssertionError, match="the timeout left"):
        await kills.test_a_timeout_kills_what_left_its_session_and_ignores_signals(leaky, "leaked-by-timeout")
    assert len(await alive(leaky, "leaked-by-timeout")) == 5, "the leak that the contract saw is really there"


async def test_an_owners_end_that_only_says_so_fails_the_contract(leaky: LeakySandbox) -> None:
    with pytest.raises(AssertionError):
        await background.test_an_owners_end_kills_only_its_own(leaky, "leaked-by-owner")


async def test_a_tail_that_is_one_byte_short_fails_the_contract(leaky: LeakySandbox) -> None:
    class OneShort(LeakySandbox):
        async def run(self, request: ExecRequest) -> ExecResult:
            result = await Sandbox.run(self, request)
            return replace(result, stdout=result.stdout[:-1])

    leaky.__class__ = OneShort
    with pytest.raises(AssertionError):
        await limits.test_head_and_tail_are_exact(leaky, 1000)
