"""`complete`: every claim comes back as an artifact or as a skipped path with its reason."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.tools.bench import Bench, a_stat, text_of

from kinfold.errors import PathError, PathReason, SandboxLost
from kinfold.messages import ToolCall
from kinfold.sandbox.base import FileStat, Snapshot
from kinfold.tools import registry
from kinfold.tools.base import Completion, ToolOutcome

TOOLS = registry.select([])


def stat_of(path: str, **values: Any) -> FileStat:
    return a_stat(path, **{"sha256": "ab" * 32, **values})


async def completing(
    bench: Bench, paths: list[str], *, summary: str = "Done.", failed_siblings: int = 0
) -> ToolOutcome | Completion:
    call = ToolCall(id="call_1", name="complete", input={"summary": summary, "paths": paths})
    return await registry.dispatch(TOOLS, call, bench.make(failed_siblings=failed_siblings))


async def completed(bench: Bench, paths: list[str], **values: Any) -> Completion:
    result = await completing(bench, paths, **values)
    assert isinstance(result, Completion), result
    return result


def has(bench: Bench, *stats: FileStat) -> None:
    bench.sandbox.stats.update({stat.path: stat for stat in stats})


@pytest.mark.anyio
async def test_claims_may_be_relative_or_absolute_and_are_checked_in_one_round_trip(bench: Bench) -> None:
    bench.state.snapshot = Snapshot(entries={})
    has(bench, stat_of("/workspace/a.md"), stat_of("/workspace/out/b.md", size=9))
    done = await completed(bench, ["a.md", "/workspace/out/../out/b.md", "./nowhere"])
    assert bench.sandbox.stat_calls == [["/workspace/a.md", "/workspace/out/b.md", "/workspace/nowhere"]]
    assert [(a.path, a.size, a.fs_type, a.sha256, a.change) for a in done.artifacts] == [
        ("/workspace/a.md", 3, "file", "ab" * 32, "created"),
        ("/workspace/out/b.md", 9, "file", "ab" * 32, "created"),
    ]
    assert done.artifacts[0].modified_at == "2023-11-14T22:13:20.123Z"
    assert [(s.path, s.reason) for s in done.skipped] == [("./nowhere", "missing")]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ("path_escape", "symlink_escape"),
        ("not_found", "missing"),
        ("not_a_directory", "missing"),
        ("permission_denied", "unreadable"),
        ("not_regular", "not_regular"),
        ("too_large", "too_large"),
        ("invalid", "invalid"),
    ],
)
async def test_what_the_container_says_of_a_path_becomes_its_reason(
    bench: Bench, said: PathReason, reason: str
) -> None:
    has(bench, stat_of("/workspace/good"))
    bench.sandbox.stats["/workspace/bad"] = PathError(said, "bad")
    done = await completed(bench, ["bad", "good"])
    assert [(s.path, s.reason) for s in done.skipped] == [("bad", reason)]


@pytest.mark.anyio
async def test_what_the_words_alone_rule_out_never_reaches_the_container_and_is_kept_verbatim(bench: Bench) -> None:
    has(bench, stat_of("/workspace/good"))
    claims = ["../x", "/etc/passwd", "/workspace-evil/x", "", "a\0b", "n" * 256, "good", "./good", ".kinfold/x"]
    done = await completed(bench, claims)
    assert bench.sandbox.stat_calls == [["/workspace/good"]]
    assert [(s.path, s.reason) for s in done.skipped] == [
        ("../x", "outside_workspace"),
        ("/etc/passwd", "outside_workspace"),
        ("/workspace-evil/x", "outside_workspace"),
        ("", "invalid"),
        ("a\0b", "invalid"),
        ("n" * 256, "invalid"),
        ("./good", "duplicate"),
        (".kinfold/x", "invalid"),
    ]
    assert any("scratch space" in warning for warning in done.warnings)


@pytest.mark.anyio
async def test_a_socket_or_a_link_to_one_is_not_delivered(bench: Bench) -> None:
    has(
        bench,
        stat_of("/workspace/good"),
        stat_of("/workspace/pipe", type="other"),
        stat_of("/workspace/link", type="symlink", target="pipe", target_type="other"),
    )
    done = await completed(bench, ["good", "pipe", "link"])
    assert {s.path: s.reason for s in done.skipped} == {"pipe": "not_regular", "link": "not_regular"}


@pytest.mark.anyio
async def test_links_and_directories_carry_what_is_behind_them(bench: Bench) -> None:
    has(
        bench,
        stat_of("/workspace/link", type="symlink", target="a\udcff", target_type="file", size=44),
        stat_of("/workspace/out", type="directory", size=99, entries=4),
    )
    link, out = (await completed(bench, ["link", "out/"])).artifacts
    assert (link.fs_type, link.target, link.size) == ("symlink", "a\ufffd", 44)
    assert (out.fs_type, out.entries, out.size, out.path) == ("directory", 4, 99, "/workspace/out")
    assert link.model_dump_json()


# --- change --------------------------------------------------------------------------------------------------------

BEFORE = {
    "a": stat_of("a", sha256=None),
    "dir": stat_of("dir", type="directory", size=4096),
    "dir/x": stat_of("dir/x", size=10),
    "dir/y": stat_of("dir/y", size=5),
    "dirt/z": stat_of("dirt/z", size=77),
    "link": stat_of("link", type="symlink", size=1, target="a"),
}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("now", "change"),
    [
        (stat_of("/workspace/a"), "unchanged"),
        (stat_of("/workspace/a", size=4), "modified"),
        (stat_of("/workspace/a", inode=8), "modified"),
        (stat_of("/workspace/a", mtime_ns=1), "modified"),
        (stat_of("/workspace/a", ctime_ns=6), "modified"),
        (stat_of("/workspace/new"), "created"),
        (stat_of("/workspace/dir", type="directory", size=15, entries=2), "unknown"),
        (stat_of("/workspace/dir", type="directory", size=16, entries=2), "modified"),
        (stat_of("/workspace/dir", type="directory", size=15, entries=3), "modified"),
        (stat_of("/workspace/dir", type="directory", size=15, entries=2, ctime_ns=9), "modified"),
        (stat_of("/workspace", type="directory", size=1, entries=1), "modified"),
        (stat_of("/workspace/link", type="symlink", target="a", target_type="file", size=3), "unknown"),
        (stat_of("/workspace/link", type="symlink", target="b", target_type="file", ctime_ns=9), "modified"),
    ],
)
async def test_change_is_told_against_the_runs_start(bench: Bench, now: FileStat, change: str) -> None:
    bench.state.snapshot = Snapshot(entries=BEFORE)
    has(bench, now)
    done = await completed(bench, [now.path])
    assert done.artifacts[0].change == change
    assert any("did not change" in warning for warning in done.warnings) == (change == "unchanged")


@pytest.mark.anyio
async def test_a_directory_that_the_run_wrote_into_is_modified(bench: Bench) -> None:
    bench.state.snapshot = Snapshot(entries=BEFORE)
    bench.state.written.add("/workspace/dir/x")
    has(bench, stat_of("/workspace/dir", type="directory", size=15, entries=2))
    assert (await completed(bench, ["dir"])).artifacts[0].change == "modified"


@pytest.mark.anyio
@pytest.mark.parametrize("snapshot", [None, Snapshot(entries=BEFORE, truncated=True)])
async def test_without_a_whole_snapshot_change_is_unknown_with_a_warning(
    bench: Bench, snapshot: Snapshot | None
) -> None:
    bench.state.snapshot = snapshot
    has(bench, stat_of("/workspace/a"))
    done = await completed(bench, ["a"])
    assert done.artifacts[0].change == "unknown"
    assert any("whether a path changed is unknown" in warning for warning in done.warnings)


@pytest.mark.anyio
@pytest.mark.parametrize("mtime_ns", [2**63 - 1, -(2**63)])
async def test_a_time_that_no_calendar_holds_does_not_break_the_delivery(bench: Bench, mtime_ns: int) -> None:
    has(bench, stat_of("/workspace/a", mtime_ns=mtime_ns))
    (artifact,) = (await completed(bench, ["a"])).artifacts
    assert artifact.modified_at is None or artifact.modified_at.endswith("Z")


# --- refused once --------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_a_failed_neighbour_call_refuses_completion_once(bench: Bench) -> None:
    has(bench, stat_of("/workspace/a"))
    refused = await completing(bench, ["a"], failed_siblings=2)
    assert isinstance(refused, ToolOutcome)
    assert refused.is_error
    assert "2 other calls of this step failed" in text_of(refused)
    done = await completed(bench, ["a"], failed_siblings=1)
    assert len(done.artifacts) == 1
    assert any("although another call of this step failed" in warning for warning in done.warnings)


@pytest.mark.anyio
async def test_claims_that_are_all_invalid_refuse_completion_once_with_their_reasons(bench: Bench) -> None:
    refused = await completing(bench, ["nowhere", "/etc/passwd"])
    assert isinstance(refused, ToolOutcome)
    assert "nowhere: missing, /etc/passwd: outside_workspace" in text_of(refused)
    done = await completed(bench, ["nowhere", "/etc/passwd"])
    assert done.artifacts == ()
    assert [s.reason for s in done.skipped] == ["missing", "outside_workspace"]
    assert any("none of the 2 claimed paths" in warning for warning in done.warnings)


@pytest.mark.anyio
async def test_completing_without_any_path_needs_no_round_trip(bench: Bench) -> None:
    done = await completed(bench, [])
    assert (done.artifacts, done.skipped, done.warnings) == ((), (), ())
    assert bench.sandbox.stat_calls == []


@pytest.mark.anyio
async def test_a_long_summary_is_cut_with_a_pointer_to_the_whole(bench: Bench) -> None:
    done = await completed(bench, [], summary="ü" * 9_000)
    assert len(done.summary) == 8_000
    assert ".kinfold/summaries/run_1.md" in done.summary
    assert bench.sandbox.files["/workspace/.kinfold/summaries/run_1.md"].decode() == "ü" * 9_000
    assert len(done.warnings) == 1
    assert (await completed(bench, [], summary="ü" * 8_000)).summary == "ü" * 8_000


@pytest.mark.anyio
@pytest.mark.parametrize("summary", ["", " \n"])
async def test_an_empty_summary_is_no_completion(bench: Bench, summary: str) -> None:
    result = await completing(bench, [], summary=summary)
    assert isinstance(result, ToolOutcome)
    assert result.is_error


@pytest.mark.anyio
async def test_a_sandbox_that_is_lost_while_checking_is_not_a_skipped_path(bench: Bench) -> None:
    async def lost(*_: Any, **__: Any) -> None:
        raise SandboxLost("gone")

    bench.sandbox.stat = lost
    with pytest.raises(SandboxLost):
        await completing(bench, ["a"])


def test_complete_is_the_one_final_tool() -> None:
    finals = [tool.key for tool in registry.SHIPPED.values() if tool.final]
    assert finals == ["complete"]
