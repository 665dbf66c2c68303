"""Definitions written for others: `.claude/agents/*.md`."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinfold.definitions import DEFAULT_TOOL_KEYS, load
from kinfold.errors import ConfigError


def agent(tmp_path: Path, front: str, body: str = "Do it well.\n", name: str = "agent.md") -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(f"---\n{front}\n---\n{body}".encode())
    return path


def test_an_agent_file_of_another_system_becomes_a_definition(tmp_path: Path) -> None:
    front = (
        "name: code-reviewer\n"
        "description: |\n  Use it after a change.\n  <example>x</example>\n"
        "tools: Read, Write, Edit, MultiEdit, Bash, Glob, Grep, LS, TodoWrite\n"
        "model: sonnet\nmaxTurns: 7\neffort: high\ncolor: purple\npermissionMode: plan\nhooks: []\nthinking: adaptive"
    )
    (definition,) = load(agent(tmp_path, front, "You review.\n\n---\nStill the body.\n"))
    assert definition.type == "code-reviewer"
    assert definition.description.startswith("Use it after a change.")
    assert definition.tool_keys == (
        "read_file", "write_file", "edit_file", "bash", "glob", "grep", "list_dir", "todo_write",
    )  # fmt: skip
    assert (definition.model, definition.max_steps, definition.effort) == ("sonnet", 7, "high")
    assert definition.thinking == "adaptive"
    assert [str(field) for field in definition.ignored_fields] == [
        "color (line 10)",
        "permissionMode (line 11)",
        "hooks (line 12)",
    ]
    assert definition.instructions == "You review.\n\n---\nStill the body."


def test_an_agent_file_may_list_its_tools_in_any_of_the_known_ways(tmp_path: Path) -> None:
    base = "name: a\ndescription: A.\n"
    assert load(agent(tmp_path, base + "tools: [Read, bash]"))[0].tool_keys == ("read_file", "bash")
    assert load(agent(tmp_path, base + "tools:\n  - Grep\n  - Glob"))[0].tool_keys == ("grep", "glob")
    assert load(agent(tmp_path, base.strip()))[0].tool_keys == DEFAULT_TOOL_KEYS


def test_disallowed_tools_are_taken_away_from_the_list_or_the_default_set(tmp_path: Path) -> None:
    base = "name: a\ndescription: A.\n"
    (fewer,) = load(agent(tmp_path, base + "disallowedTools: Write, Edit, WebSearch, Task"))
    assert set(DEFAULT_TOOL_KEYS) - set(fewer.tool_keys) == {"write_file", "edit_file"}
    (one,) = load(agent(tmp_path, base + "tools: Read, Bash\ndisallowedTools: [Bash]"))
    assert one.tool_keys == ("read_file",)


@pytest.mark.parametrize(
    ("field", "steps", "timeout"),
    [
        ("max_turns: 9", 9, None),
        ("max_iteration_per_run: 9", 9, None),
        ("steps: 9", 9, None),
        ("timeout_mins: 2", 30, 120.0),
    ],
)
def test_other_dialects_spell_the_limits_differently(
    tmp_path: Path, field: str, steps: int, timeout: float | None
) -> None:
    (definition,) = load(agent(tmp_path, f"name: a\ndescription: A.\n{field}"))
    assert (definition.max_steps, definition.timeout) == (steps, timeout)


def test_windows_line_ends_and_a_byte_order_mark_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.md"
    path.write_bytes(b"\xef\xbb\xbf---\r\nname: a\r\ndescription: A.\r\n---\r\nOne.\r\nTwo.\r\n")
    (definition,) = load(path)
    assert definition.instructions == "One.\nTwo."


GOOD = "name: a\ndescription: A.\n"


@pytest.mark.parametrize(
    ("front", "line", "reason"),
    [
        ("", 1, "empty front matter"),
        ("- a\n- b", 2, "must be fields"),
        ("name: a", 1, "needs 'description'"),
        ("description: A.", 1, "needs 'name'"),
        ("name: a\ndescription: Use this: now", 3, "front matter is not YAML"),
        ("name: a\nname: b", 3, "'name' stands twice"),
        ("name: My Agent\ndescription: A.", 2, "'name' must be a slug"),
        (GOOD + "tools: Raed", 4, "unknown tool 'Raed'; did you mean 'Read'?"),
        (GOOD + "tools: Read, Task", 4, "can neither start subagents nor ask the user"),
        (GOOD + "tools: AskUserQuestion", 4, "can neither start subagents nor ask the user"),
        (GOOD + "tools: Bash(git diff:*, git log:*), Read", 4, "limits a tool by a specifier"),
        (GOOD + "tools: mcp__github__search", 4, "which kinfold does not have"),
        (GOOD + "tools: WebFetch", 4, "which kinfold does not have"),
        (GOOD + "tools:", 4, "must be names"),
        (GOOD + "tools: []", 4, "names no tool"),
        (GOOD + "maxTurns: 3\ntools: {bash: 1}", 5, "must say true or false for 'bash'"),
        (GOOD + "tools: Read\ndisallowedTools: Read", 4, "leaves no tool"),
        (GOOD + "disallowedTools: Bush", 4, "unknown tool 'Bush'; did you mean 'bash'?"),
        (GOOD + "maxTurn: 5", 4, "did you mean 'maxTurns'?"),
        (GOOD + "maxTurns: 5\nsteps: 6", 5, "say the same thing twice"),
        (GOOD + "maxTurns: lots", 4, "'maxTurns' should be a valid integer"),
        (GOOD + "version: 2024-13-45", 4, "'version' is not a usable value"),
        (GOOD + "model: [a]", 4, "'model' should be a valid string"),
        (GOOD + "x: !!python/object/apply:os.system [id]", 4, "front matter is not YAML"),
    ],
)
def test_a_fault_in_an_agent_file_names_file_line_and_reason(
    tmp_path: Path, front: str, line: int, reason: str
) -> None:
    path = agent(tmp_path, front)
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert raised.value.message.startswith(f"{path}:{line}: ")
    assert reason in raised.value.message


@pytest.mark.parametrize(
    ("data", "line", "reason"),
    [
        (b"# Only prose\n", 1, "has no front matter"),
        (b"---\nname: a\n", 1, "no second '---' line"),
        (b"", 1, "has no front matter"),
        (b"---\nname: a\n\xff\n---\n", 3, "is not UTF-8"),
        (b"---\nx: " + b"[" * 2_000 + b"\n---\n", 2, "nested too deeply"),
        (b" " * (1024 * 1024 + 1), 1, "larger than"),
    ],
    ids=["prose", "unclosed", "empty", "latin", "deep", "large"],
)
def test_a_file_that_is_no_agent_file_is_never_skipped_in_silence(
    tmp_path: Path, data: bytes, line: int, reason: str
) -> None:
    path = tmp_path / "a.md"
    path.write_bytes(data)
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert raised.value.message.startswith(f"{path}:{line}: ")
    assert reason in raised.value.message


def test_a_directory_is_read_to_any_depth_in_name_order(tmp_path: Path) -> None:
    agent(tmp_path, "name: b\ndescription: B.", name="b.md")
    agent(tmp_path, "name: c\ndescription: C.", name="deep/er/c.md")
    (tmp_path / "a.toml").write_text('[[definition]]\ntype = "a"\ndescription = "A."\n')
    (tmp_path / "notes.txt").write_text("not a definition")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "x.md").write_text("no definition either")
    assert [definition.type for definition in load(tmp_path)] == ["a", "b", "c"]


def test_one_type_in_two_files_is_an_error_that_names_both(tmp_path: Path) -> None:
    first = agent(tmp_path, "name: a\ndescription: A.", name="one.md")
    second = agent(tmp_path, "name: a\ndescription: A.", name="two.md")
    with pytest.raises(ConfigError) as raised:
        load(tmp_path)
    assert raised.value.message.startswith(f"{first}:2: ")
    assert f"{second}:2 has it too" in raised.value.message


def test_a_path_without_definitions_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load(tmp_path / "missing")
    with pytest.raises(ConfigError, match="no definition in this directory"):
        load(tmp_path)
    with pytest.raises(ConfigError, match="File name too long"):
        load(tmp_path / ("x" * 300))
    other = tmp_path / "agents.json"
    other.write_text("{}")
    with pytest.raises(ConfigError, match=r"neither \.toml nor \.md"):
        load(other)
