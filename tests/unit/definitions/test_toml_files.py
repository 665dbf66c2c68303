"""kinfold's own definition format."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinfold.definitions import DEFAULT_TOOL_KEYS, has_tool_call, load, text_matches, tokens_over
from kinfold.errors import ConfigError

GOOD = '''\
# ours
[[definition]]
type = "reviewer"
description = "Reads a change."
tool_keys = ["bash", "Read", "read_file"]
model = "claude-x"
max_steps = 12
timeout = 60
budget = 0.5
effort = "high"
thinking = 8000
compaction_model = "claude-y"
version = 3
stop_conditions = [{tokens_over = 50000}, {has_tool_call = "bash"}, {text_matches = "^DONE"}]
instructions = """
Write nothing:
[[definition]]
type = "not a field"
"""

[[definition]]
type = "second"
description = "Another."
'''


def write(tmp_path: Path, text: str, name: str = "agents.toml") -> Path:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_every_field_of_a_toml_definition_is_read(tmp_path: Path) -> None:
    path = write(tmp_path, GOOD)
    reviewer, second = load(path)
    assert reviewer.tool_keys == ("bash", "read_file")
    assert (reviewer.model, reviewer.max_steps, reviewer.timeout, reviewer.budget) == ("claude-x", 12, 60.0, 0.5)
    assert (reviewer.effort, reviewer.thinking) == ("high", 8_000)
    assert (reviewer.compaction_model, reviewer.version) == ("claude-y", 3)
    assert reviewer.stop_conditions == (tokens_over(50000), has_tool_call("bash"), text_matches("^DONE"))
    assert reviewer.instructions.startswith("Write nothing")
    assert reviewer.source == f"{path}:2"
    assert second.tool_keys == DEFAULT_TOOL_KEYS
    assert second.source == f"{path}:21"


HEAD = '[[definition]]\ntype = "a"\ndescription = "A."\n'


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("", 1, "holds no [[definition]] table"),
        ('x = """', 1, "is not TOML"),
        (HEAD + "tool_keys = [\n", 4, "is not TOML"),
        ('[definition]\ntype = "a"', 1, "holds no [[definition]] table"),
        ('\n[[definitions]]\ntype = "a"', 2, "did you mean 'definition'?"),
        (HEAD + 'toolkeys = ["bash"]', 4, "'toolkeys' is not a field of a definition; did you mean 'tool_keys'?"),
        (HEAD + 'source = "me"', 4, "'source' is not a field"),
        ('[[definition]]\ndescription = "A."', 1, "needs 'type'"),
        ('[[definition]]\ntype = "a"', 1, "needs 'description'"),
        (HEAD + 'tool_keys = ["bash", "grp"]', 4, "unknown tool 'grp'; did you mean 'grep'?"),
        (HEAD + 'tool_keys = ["task"]', 4, "can neither start subagents nor ask the user"),
        (HEAD + 'tool_keys = ["confirm"]', 4, "can neither start subagents nor ask the user"),
        (HEAD + "tool_keys = []", 4, "leaves no tool"),
        (HEAD + 'tool_keys = "bash"', 4, "must be a list of tool names"),
        (HEAD + "\nmax_steps = 0", 5, "'max_steps' should be greater than or equal to 1"),
        (HEAD + "max_steps = true", 4, "'max_steps' should be a valid integer"),
        (HEAD + "timeout = -1", 4, "'timeout' should be greater than 0"),
        (HEAD + 'effort = "huge"', 4, "'effort' should be 'low'"),
        (HEAD + 'thinking = "hard"', 4, "'thinking' must be 'adaptive', 'off', or a budget of at least 1,024 tokens"),
        (HEAD + "stop_conditions = [{tokens_ovr = 5}]", 4, "did you mean 'tokens_over'?"),
        (HEAD + "stop_conditions = [{tokens_over = 5, has_tool_call = 'bash'}]", 4, "entries of one key each"),
        (HEAD + "stop_conditions = [{has_tool_call = 'task'}]", 4, "waits for the tool 'task'"),
        (HEAD + "stop_conditions = [{text_matches = '('}]", 4, "is not a regular expression"),
        ('[[definition]]\ntype = "A B"\ndescription = "A."', 2, "must be a slug"),
        (HEAD + "\n" + HEAD, 2, "agents.toml:6 has it too"),
    ],
)
def test_a_fault_in_a_toml_file_names_file_line_and_reason(tmp_path: Path, text: str, line: int, reason: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        load(path)
    assert raised.value.message.startswith(f"{path}:{line}: ")
    assert reason in raised.value.message
    assert raised.value.hint


def test_the_users_own_tools_can_be_named_when_they_are_announced(tmp_path: Path) -> None:
    path = write(tmp_path, HEAD + 'tool_keys = ["weather"]')
    (definition,) = load(path, extra_tool_keys=["weather"])
    assert definition.tool_keys == ("weather",)
    with pytest.raises(ConfigError, match="unknown tool 'weather'"):
        load(path)
