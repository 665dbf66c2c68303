"""From create to destroy: once, found again, gone for good."""

from __future__ import annotations

import secrets
from collections.abc import Callable

import anyio
import pytest

from kinfold.errors import ConfigError, SandboxLost, Unenforceable
from kinfold.sandbox.base import ExecRequest, Limits, Provider, SandboxSpec
from kinfold.sandbox.sandbox import Sandbox

MakeSpec = Callable[..., SandboxSpec]


async def test_a_name_makes_create_idempotent(provider: Provider, make_spec: MakeSpec) -> None:
    name = f"n-{secrets.token_hex(4)}"
    async with await provider.create(make_spec(keep=0, name=name)) as first:
        async with await provider.create(make_spec(keep=0, name=name)) as second:
            assert (second.id, second.generation) == (first.id, first.generation)
        with pytest.raises(ConfigError):
            await provider.create(make_spec(keep=0, name=name, limits=Limits(pids=100)))
        assert (await first.exec(["true"])).exit_code == 0


async def test_a_sandbox_is_listed_by_its_labels_and_found_again(provider: Provider, make_spec: MakeSpec) -> None:
    mark = secrets.token_hex(4)
    async with await provider.create(make_spec(keep=0, labels={"mark": mark})) as made:
        [ref] = await provider.list({"mark": mark})
        assert (ref.id, ref.state) == (made.id, "running")
        await made.write("f", b"x")
        async with await provider.connect(ref) as again:
            assert await again.read("f") == b"x"
            assert again.generation == made.generation
        assert await made.read("f") == b"x", "closing a connected one destroyed it"
    assert await provider.list({"mark": mark}) == []
    with pytest.raises(SandboxLost):
        await provider.connect(ref)


async def test_destroying_ends_all_and_twice_is_no_error(provider: Provider, make_spec: MakeSpec) -> None:
    sandbox = await provider.create(make_spec(keep=0))
    process = await sandbox.start(ExecRequest(command=["sleep", "300"]))
    await provider.destroy(sandbox.ref)
    with anyio.fail_after(60):
        try:
            assert (await process.wait()).ended_by == "cancelled", "its last word, where it got through"
        except SandboxLost:
            assert process.ended
    with anyio.fail_after(60), pytest.raises(SandboxLost):
        await sandbox.exec(["true"])
    await provider.destroy(sandbox.ref)
    await sandbox.aclose()
    await sandbox.aclose()


async def test_environment_and_secrets_reach_every_exec(provider: Provider, make_spec: MakeSpec) -> None:
    spec = make_spec(keep=0, env={"A": "1", "B": "2"}, secrets={"S": "hush"})
    async with await provider.create(spec) as sandbox:
        result = await sandbox.exec("echo $A $B $S", env={"B": "3"})
        assert result.stdout == b"1 3 hush\n"


async def test_what_is_not_enforced_is_said_and_strict_refuses_it(provider: Provider, make_spec: MakeSpec) -> None:
    report = await provider.probe()
    assert report.controls
    assert all(control.enforced or control.reason for control in report.controls)
    if report.not_enforced:
        async with await provider.create(make_spec(keep=0)) as sandbox:
            assert all(control.reason for control in sandbox.not_enforced)
    if all(not control.enforced for control in report.controls):
        with pytest.raises(Unenforceable):
            await provider.create(make_spec(keep=0, strict=True))


async def test_a_given_workspace_is_used_and_left(
    provider: Provider, make_spec: MakeSpec, tmp_path_factory: pytest.TempPathFactory
) -> None:
    workspace = tmp_path_factory.mktemp("given")
    workspace.chmod(0o777)
    (workspace / "f").write_text("host")
    async with await provider.create(make_spec(keep=0, workspace=str(workspace))) as sandbox:
        assert await sandbox.read("f") == b"host"
        await sandbox.write("g", b"inside")
    assert (workspace / "g").read_bytes() == b"inside"


async def test_two_sandboxes_do_not_see_each_other(sandbox: Sandbox, own_sandbox: Sandbox) -> None:
    await sandbox.write("mine", b"1")
    assert "mine" not in {entry.path.rpartition("/")[2] for entry in (await own_sandbox.list()).entries}
