"""What a path inside the workspace is."""

from __future__ import annotations

import posixpath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinfold.errors import PathError
from kinfold.sandbox.workspace import is_under_root, normalize, plain_bytes, to_bytes, to_text

SEGMENTS = st.lists(st.sampled_from(["a", "b", "..", ".", "", "workspace", "-rf", "...", " ", "ü"]), max_size=8)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (".", "/workspace"),
        ("a", "/workspace/a"),
        ("a/../b", "/workspace/b"),
        ("./a//b/", "/workspace/a/b"),
        ("/workspace", "/workspace"),
        ("/workspace/", "/workspace"),
        ("//workspace/a", "/workspace/a"),
        ("/workspace/a/..", "/workspace"),
        ("../workspace/a", "/workspace/a"),
        ("...", "/workspace/..."),
        ("-rf", "/workspace/-rf"),
        ("a\nb", "/workspace/a\nb"),
        ("\udcff", "/workspace/\udcff"),
        ("a" * 255, "/workspace/" + "a" * 255),
    ],
)
def test_a_path_inside_is_made_absolute(path: str, expected: str) -> None:
    assert normalize(path) == expected


@pytest.mark.threat("P01")
@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("..", "path_escape"),
        ("a/../..", "path_escape"),
        ("../../etc/passwd", "path_escape"),
        ("/etc/passwd", "path_escape"),
        ("/workspace-evil/a", "path_escape"),
        ("/workspace/../etc", "path_escape"),
        ("../workspace-evil", "path_escape"),
        ("/", "path_escape"),
        ("", "invalid"),
        ("a\0b", "invalid"),
        ("ü\0", "invalid"),
        ("\ud800", "invalid"),
        ("a" * 256, "invalid"),
        ("ü" * 128, "invalid"),
        ("a/" * 40_000, "invalid"),
    ],
)
def test_a_path_that_cannot_be_is_refused_with_its_reason(path: str, reason: str) -> None:
    with pytest.raises(PathError) as caught:
        normalize(path)
    assert caught.value.reason == reason


@pytest.mark.threat("P01")
@pytest.mark.parametrize(
    ("path", "root", "inside"),
    [
        ("/workspace", "/workspace", True),
        ("/workspace/a", "/workspace", True),
        ("/workspace-evil", "/workspace", False),
        ("/work", "/workspace", False),
        ("a/b", "/workspace", True),
        ("../x", "/workspace", False),
        ("/workspace/out/../../x", "/workspace", False),
        ("/workspace/out/x", "/workspace/out", True),
        ("/workspace/outer/x", "/workspace/out", False),
        ("/x", "/", True),
        ("", "/workspace", False),
        ("a\0", "/workspace", False),
    ],
)
def test_the_root_is_compared_component_by_component(path: str, root: str, inside: bool) -> None:
    assert is_under_root(path, root) is inside


@given(SEGMENTS, st.booleans())
def test_normalizing_agrees_with_walking_the_components(segments: list[str], absolute: bool) -> None:
    path = "/".join(segments)
    path = "/workspace/" + path if absolute else path
    stack = ["workspace"]
    escaped = False
    for segment in path.removeprefix("/workspace").split("/"):
        if segment == "..":
            if stack:
                stack.pop()
        elif segment not in ("", "."):
            stack.append(segment)
    escaped = stack[:1] != ["workspace"]
    if not path or (path.startswith("/") and not absolute):
        return
    if escaped:
        assert not is_under_root(path)
        with pytest.raises(PathError):
            normalize(path)
    else:
        assert normalize(path) == "/" + "/".join(stack)
        assert is_under_root(path)


@pytest.mark.threat("P01")
@given(st.text(max_size=300))
def test_any_text_gives_a_path_inside_or_a_path_error(path: str) -> None:
    try:
        found = normalize(path)
    except PathError:
        return
    assert found == posixpath.normpath(found)
    assert found == "/workspace" or found.startswith("/workspace/")
    assert normalize(found) == found


@given(st.binary(max_size=64))
def test_names_that_are_not_utf8_come_back_byte_for_byte(raw: bytes) -> None:
    assert to_bytes(to_text(raw)) == raw


@given(
    st.lists(
        st.text(alphabet="a./\0é", max_size=4) | st.sampled_from(["b", "c/d", "e.f", "x" * 256]), min_size=1, max_size=4
    )
)
def test_paths_that_are_taken_all_at_once_mean_what_each_of_them_means(paths: list[str]) -> None:
    plain = plain_bytes(paths)
    if plain is not None:
        assert [f"/workspace/{to_text(raw)}" for raw in plain] == [normalize(path) for path in paths]
    elif all(name.isalnum() and name.isascii() and len(name) < 256 for name in paths):
        pytest.fail(f"{paths} are plain")
