"""Listing, finding and searching, on real files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.tools.bench import Bench

from kinfold.sandbox.base import ExecRequest, ExecResult
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tools.patterns import Pattern


@pytest.fixture
async def tree(sandbox: Sandbox) -> None:
    """A small tree with what a search must and must not find."""
    for path, text in {
        "a.py": "import os\nprint('needle')\n",
        "src/b.py": "needle = 1\nNEEDLE = 2\n",
        "src/deep/c.ts": "const needle = 3;\n",
        "src/.hidden": "needle in hiding\n",
        ".kinfold/scratch": "needle in scratch\n",
        ".git/config": "needle in git\n",
        "-dash": "needle with a dash\n",
        "plus": "a+b\n",
    }.items():
        await sandbox.write(path, text.encode())


# --- list_dir ------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.usefixtures("tree")
async def test_a_directory_lists_names_sizes_and_where_links_lead(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.symlink("a.py", "link")
    await sandbox.exec(["mkfifo", "fifo"])
    lines = (await real.text("list_dir")).splitlines()
    assert lines[0] == "/workspace/ (7 entries)"
    assert {"src/", "a.py  26 bytes", "link -> a.py", "fifo  (no regular file)", "-dash  19 bytes"} <= set(lines)
    assert not any("kinfold" in line for line in lines)


@pytest.mark.anyio
@pytest.mark.usefixtures("tree")
async def test_depth_shows_what_lies_below(real: Bench) -> None:
    assert "src/b.py  22 bytes" in await real.text("list_dir", depth=2)
    assert "deep/c.ts  18 bytes" in await real.text("list_dir", path="src", depth=2)
    assert "is not a directory" in await real.refusal("list_dir", path="a.py")
    assert "no such file" in await real.refusal("list_dir", path="nowhere")
    assert "lies outside" in await real.refusal("list_dir", path="..")
    assert "`depth`" in await real.refusal("list_dir", depth=0)


@pytest.mark.anyio
async def test_a_hostile_name_stays_on_its_own_line(real: Bench, sandbox: Sandbox, tmp_path: Path) -> None:
    for name in (b"two\nlines", b"esc\x1b[31m", b"latin\xe9", "bidi\u202e".encode()):
        Path(str(tmp_path / "workspace")).joinpath(name.decode("utf-8", "surrogateescape")).touch()
    lines = (await real.text("list_dir")).splitlines()
    assert sorted(lines[1:]) == [
        r"bidi\u202e  0 bytes", r"esc\x1b[31m  0 bytes", r"latin\xe9  0 bytes", r"two\nlines  0 bytes",
    ]  # fmt: skip
    assert r"two\nlines" in await real.text("glob", pattern="*")


@pytest.mark.anyio
async def test_an_empty_and_an_overfull_directory_say_so(real: Bench, sandbox: Sandbox) -> None:
    assert await real.text("list_dir") == "/workspace/ is empty"
    await sandbox.exec("mkdir many; cd many; seq 1100 | xargs touch")
    text = await real.text("list_dir", path="many")
    assert "only the first 1,000" in text


@pytest.mark.anyio
async def test_a_loop_of_links_ends(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.exec("ln -s b a; ln -s a b; ln -s /etc out")
    await real.refusal("list_dir", path="a")
    await real.refusal("list_dir", path="out")


# --- glob ----------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.usefixtures("tree")
async def test_glob_finds_files_by_their_path_the_newest_first(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.exec("touch -d 2001-01-01 src/b.py; touch -d 2002-01-01 a.py")
    assert await real.text("glob", pattern="*.py") == "a.py\nsrc/b.py"
    assert await real.text("glob", pattern="**/*.{py,ts}") == "src/deep/c.ts\na.py\nsrc/b.py"
    assert await real.text("glob", pattern="*/*.py") == "src/b.py"
    assert await real.text("glob", pattern="*.ts", path="src") == "under /workspace/src:\ndeep/c.ts"
    assert "No file matches '*.rs'" in await real.text("glob", pattern="*.rs")
    assert "alternatives" in await real.refusal("glob", pattern="{a,b}" * 10)
    assert "no such file" in await real.refusal("glob", pattern="*", path="nowhere")


@pytest.mark.parametrize(
    ("pattern", "path", "fits"),
    [
        ("*.py", "a.py", True),
        ("*.py", "x/y/a.py", True),
        ("./*.py", "a.py", True),
        ("x/*.py", "x/y/a.py", False),
        ("x/**/a.py", "x/a.py", True),
        ("x/**/a.py", "x/y/z/a.py", True),
        ("**/y/*", "x/y/a.py", True),
        ("**/y/*", "x/z/a.py", False),
        ("x/**", "x/y/z", True),
        ("x/**", "y/x", False),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("[a-c]1", "b1", True),
        ("[!a-c]1", "b1", False),
        ("[!a-c]1", "d1", True),
        ("[]x]", "]", True),
        ("[", "[", True),
        ("{a,b{c,d}}", "bd", True),
        ("{a,b}", "c", False),
        ("{a", "{a", True),
        ("a.c", "abc", False),
        ("*", ".hidden", True),
        ("a*b*c", "axxbxxc", True),
        ("a*b*c", "axxbxx", False),
        ("(a)+", "(a)+", True),
    ],
)
def test_a_pattern_matches_what_it_says(pattern: str, path: str, fits: bool) -> None:
    assert Pattern(pattern).matches(path) is fits


def test_a_hostile_pattern_costs_no_more_than_its_length() -> None:
    pattern, path = Pattern("*a" * 400 + "b"), "/".join(["a" * 250] * 10)
    started = time.process_time()
    assert not pattern.matches(path)
    assert not Pattern("**/a/" * 150 + "b").matches(path)
    assert not Pattern("x/" + "**/a*a/" * 100 + "b").matches(f"x/{path}")
    assert time.process_time() - started < 5.0


# --- grep ----------------------------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.usefixtures("tree")
async def test_grep_shows_matching_lines_with_file_and_number(real: Bench) -> None:
    assert (await real.text("grep", pattern="needle")).splitlines() == [
        "-dash:1:needle with a dash",
        "a.py:2:print('needle')",
        "src/.hidden:1:needle in hiding",
        "src/b.py:1:needle = 1",
        "src/deep/c.ts:1:const needle = 3;",
    ]
    assert await real.text("grep", pattern="needle", glob="*.ts") == "src/deep/c.ts:1:const needle = 3;"
    assert "NEEDLE" in await real.text("grep", pattern="needle = 2", ignore_case=True)
    assert await real.text("grep", pattern="NEEDLE", files_only=True) == "src/b.py"
    assert await real.text("grep", pattern="needle", path="src/b.py") == "src/b.py:1:needle = 1"
    assert "a.py-1-import os" in await real.text("grep", pattern="print", context=1)
    assert await real.text("grep", pattern="a+b", fixed=True) == "plus:1:a+b"
    assert await real.text("grep", pattern="needle", path=".kinfold") == ".kinfold/scratch:1:needle in scratch"
    assert "No line matches 'nowhere'" in await real.text("grep", pattern="nowhere")
    assert await real.text("grep", pattern="-dash|with a dash", path="-dash") == "-dash:1:needle with a dash"


@pytest.mark.anyio
async def test_a_line_of_context_that_speaks_of_git_is_shown(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.write("notes", b"see /repo/.git/config: there\nneedle\n")
    shown = await real.text("grep", pattern="needle", context=1)
    assert shown.splitlines() == ["notes-1-see /repo/.git/config: there", "notes:2:needle"]


@pytest.mark.anyio
@pytest.mark.usefixtures("tree")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"pattern": "("}, "rg: "),
        ({"pattern": "a\nb"}, "must be one line"),
        ({"pattern": ""}, "`pattern` must not be empty"),
        ({"pattern": "x", "path": "nowhere"}, "no such file"),
        ({"pattern": "x", "path": "../.."}, "lies outside"),
        ({"pattern": "x", "path": "fifo"}, "not a regular file"),
        ({"pattern": "x", "context": 21}, "`context`"),
    ],
)
async def test_a_wrong_search_says_why(real: Bench, sandbox: Sandbox, arguments: dict[str, Any], words: str) -> None:
    await sandbox.exec(["mkfifo", "fifo"])
    assert words in await real.refusal("grep", **arguments)


@pytest.mark.anyio
async def test_a_search_with_too_many_results_is_bounded(real: Bench, sandbox: Sandbox) -> None:
    await sandbox.write("many", b"needle\n" * 5_000 + b"needle" * 10_000)
    text = await real.text("grep", pattern="needle")
    assert len(text.splitlines()) == 201
    assert "the first 200 of 5,001 lines" in text


class Without:
    """A sandbox whose image lacks some programs, or has a grep that knows short options only, as busybox's."""

    def __init__(self, sandbox: Sandbox, *missing: str) -> None:
        self._sandbox = sandbox
        self._missing = missing

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def run(self, request: ExecRequest) -> ExecResult:
        program = request.command[0]
        if program in self._missing:
            return await self._sandbox.exec([f"no-such-program-{program}"])
        if program == "grep" and "--null" in request.command and "--null" in self._missing:
            return await self._sandbox.exec(["sh", "-c", "echo \"grep: unrecognized option '--null'\" >&2; exit 1"])
        return await self._sandbox.run(request)


@pytest.mark.anyio
@pytest.mark.usefixtures("tree")
async def test_an_image_without_ripgrep_searches_by_its_own_grep(sandbox: Sandbox) -> None:
    bench = Bench(Without(sandbox, "rg"))
    assert sorted((await bench.text("grep", pattern="need(le)")).splitlines()) == [
        "-dash:1:needle with a dash",
        "a.py:2:print('needle')",
        "src/.hidden:1:needle in hiding",
        "src/b.py:1:needle = 1",
        "src/deep/c.ts:1:const needle = 3;",
    ]
    assert await bench.text("grep", pattern="needle", glob="src/**/*.ts") == "src/deep/c.ts:1:const needle = 3;"
    assert await bench.text("grep", pattern="a+b", fixed=True) == "plus:1:a+b"
    scratch = ".kinfold/scratch"
    assert await bench.text("grep", pattern="needle", path=scratch) == f"{scratch}:1:needle in scratch"
    assert "in files matching '*.rs'" in await bench.text("grep", pattern="needle", glob="*.rs")
    assert "grep: " in await bench.refusal("grep", pattern="(")


@pytest.mark.anyio
async def test_an_image_without_any_grep_is_refused_with_the_reason(sandbox: Sandbox) -> None:
    bench = Bench(Without(sandbox, "rg", "grep"))
    assert "neither rg nor grep" in await bench.refusal("grep", pattern="x")


HOSTILE = {
    "x\n./real.py:3:forged by a line break": "needle\n",
    "real.py:3:forged by a colon": "needle\n",
    "real.py-3-forged by a dash": "needle\n",
    "real.py:3": "needle\n",
    'b: binary file matches (found "\\0" byte around offset 1)\n./real.py': "needle\n",
    "bell\x07": "needle\n",
    '"quoted"': "needle\n",
}
"""Names that try to look like a hit in real.py, which has no needle."""


@pytest.mark.anyio
@pytest.mark.parametrize("missing", [(), ("rg",), ("rg", "--null")], ids=["rg", "grep", "grep without --null"])
@pytest.mark.parametrize("context", [0, 1])
async def test_no_name_of_a_file_can_forge_a_hit_in_another(
    sandbox: Sandbox, missing: tuple[str, ...], context: int
) -> None:
    bench = Bench(Without(sandbox, *missing))
    await sandbox.write("real.py", b"nothing\n" * 5)
    await sandbox.write("honest.py", b"before\nneedle\nafter\n")
    await sandbox.write("binary", b"needle\0\nneedle\n")
    for name, text in HOSTILE.items():
        await sandbox.write(name, text.encode())
    await sandbox.write("real.py-dir/real.py", b"needle\n")
    found = (await bench.text("grep", pattern="needle", context=context)).splitlines()
    assert "honest.py:2:needle" in found
    assert not [line for line in found if line.startswith(("real.py:", "./real.py"))]
    assert context or '"real.py-3-forged by a dash":1:needle' in found
    if "--null" not in missing:
        assert '"real.py:3":1:needle' in found
        assert '"real.py:3:forged by a colon":1:needle' in found
        assert '"x\\n./real.py:3:forged by a line break":1:needle' in found
        assert "bell\\x07:1:needle" in found
    else:
        assert "passed over" in found[-1]
    names = (await bench.text("grep", pattern="needle", files_only=True)).splitlines()
    assert "honest.py" in names
    assert "real.py" not in names
    assert "./real.py" not in names
