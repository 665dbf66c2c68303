"""`complete` on real files: what the container says of links, pipes and trees, and what changed since the run began."""

from __future__ import annotations

import hashlib

import pytest
from tests.unit.tools.bench import Bench

from kinfold.messages import Artifact, ToolCall
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tools import registry
from kinfold.tools.base import Completion

pytestmark = pytest.mark.anyio


async def completed(bench: Bench, *paths: str) -> Completion:
    call = ToolCall(id="call_1", name="complete", input={"summary": "Done.", "paths": list(paths)})
    result = await registry.dispatch(registry.SHIPPED, call, bench.make())
    assert isinstance(result, Completion), result
    return result


def by_path(done: Completion) -> dict[str, Artifact]:
    return {artifact.path.removeprefix("/workspace/"): artifact for artifact in done.artifacts}


async def test_every_claim_is_checked_where_it_lies(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.write("old/kept", b"same")
    await sandbox.write("old/changed", b"before")
    real.state.snapshot = await sandbox.snapshot()
    await real.text(
        "bash",
        command=(
            "mkdir -p new/sub; printf abc > new/a; printf defg > new/sub/b; echo after > old/changed; "
            "ln -s new/a inside; ln -s /etc/passwd outside; ln -s nowhere dangling; ln -s new tree; ln -s loop loop; "
            "mkfifo pipe"
        ),
    )
    done = await completed(
        real, "new/a", "new", "old/kept", "old/changed", "inside", "tree", "outside", "dangling", "loop", "pipe",
        "new/a/below", "old/../new/a",
    )  # fmt: skip
    artifacts = by_path(done)
    digest = hashlib.sha256(b"abc").hexdigest()
    lines = f"a\0{digest}\n" + f"sub/b\0{hashlib.sha256(b'defg').hexdigest()}\n"
    assert {path: (a.fs_type, a.size, a.change) for path, a in artifacts.items()} == {
        "new/a": ("file", 3, "created"),
        "new": ("directory", 7, "created"),
        "old/kept": ("file", 4, "unchanged"),
        "old/changed": ("file", 6, "modified"),
        "inside": ("symlink", 3, "created"),
        "tree": ("symlink", 7, "created"),
    }
    assert artifacts["new/a"].sha256 == digest == artifacts["inside"].sha256
    assert artifacts["new"].entries == 2
    assert artifacts["new"].sha256 == hashlib.sha256(lines.encode()).hexdigest()
    assert artifacts["inside"].target == "new/a"
    skipped = {s.path: s.reason for s in done.skipped}
    assert skipped.pop("loop") in ("invalid", "symlink_escape", "missing")
    assert skipped == {
        "outside": "symlink_escape",
        "dangling": "missing",
        "pipe": "not_regular",
        "new/a/below": "missing",
        "old/../new/a": "duplicate",
    }
    assert done.warnings == ("/workspace/old/kept was claimed, but did not change in this run",)


async def test_the_whole_workspace_may_be_delivered_without_the_scratch_space(real: Bench, sandbox: Sandbox) -> None:
    real.state.snapshot = await sandbox.snapshot()
    await real.text("write_file", path="a", content="abc")
    await sandbox.write(".kinfold/results/x", b"spilled")
    (artifact,) = (await completed(real, ".")).artifacts
    assert (artifact.path, artifact.fs_type, artifact.change) == ("/workspace", "directory", "modified")
    assert (artifact.size, artifact.entries) == (3, 1)


async def test_a_thousand_claims_are_one_round_trip_and_one_more_is_refused(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.exec("seq 1000 | xargs touch")
    done = await completed(real, *(str(n) for n in range(1, 1001)))
    assert len(done.artifacts) == 1000
    refused = await real.refusal("complete", summary="Done.", paths=["x"] * 1001)
    assert "`paths` may have at most 1000 items (has 1001)" in refused


async def test_a_long_summary_is_kept_whole_in_the_workspace(real: Bench, sandbox: Sandbox) -> None:
    call = ToolCall(id="call_1", name="complete", input={"summary": "x" * 20_000})
    done = await registry.dispatch(registry.SHIPPED, call, real.make())
    assert isinstance(done, Completion)
    assert len(done.summary) == 8_000
    assert await sandbox.read(".kinfold/summaries/run_1.md") == b"x" * 20_000
