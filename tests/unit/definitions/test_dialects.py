"""Agent files of five other systems: what each field becomes, and that none is lost without a word."""

from __future__ import annotations

from pathlib import Path

import pytest

from kinfold.definitions import DEFAULT_TOOL_KEYS, Candidate, SubagentDefinition, candidates, load
from kinfold.definitions.dialect import DIALECTS
from kinfold.errors import ConfigError


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def markdown(path: Path, front: str, body: str = "Do it well.") -> Path:
    return write(path, f"---\n{front}\n---\n{body}\n")


def one(path: Path) -> tuple[Candidate, SubagentDefinition]:
    (found,) = candidates(path)
    assert found.definition is not None, found.reason
    return found, found.definition


def test_a_gemini_agent_brings_its_tools_and_its_own_systems_defaults(tmp_path: Path) -> None:
    front = (
        "name: g\ndescription: G.\nkind: local\ntools: [run_shell_command, replace, search_file_content, read_file]\n"
        "mcpServers: {}\ntemperature: 0.2"
    )
    found, definition = one(markdown(tmp_path / ".gemini/agents/g.md", front))
    assert found.dialect == "gemini"
    assert definition.tool_keys == ("bash", "edit_file", "grep", "read_file")
    assert (definition.max_steps, definition.timeout) == (30, 600)
    assert [(field.name, field.line) for field in definition.ignored_fields] == [
        ("kind", 4), ("mcpServers", 6), ("temperature", 7),
    ]  # fmt: skip
    limits = "name: g\ndescription: G.\nmax_turns: 9\ntimeout_mins: 2\ntools: ['*']"
    _, limited = one(markdown(tmp_path / "anywhere/g.md", limits))
    assert (limited.max_steps, limited.timeout, limited.tool_keys) == (9, 120, DEFAULT_TOOL_KEYS)


def test_a_remote_gemini_agent_is_refused_by_its_line(tmp_path: Path) -> None:
    path = markdown(tmp_path / ".gemini/agents/g.md", "name: g\ndescription: G.\nkind: remote")
    with pytest.raises(ConfigError, match=r"g\.md:4: 'kind' is 'remote'"):
        load(path)


def test_an_openhands_agent_keeps_the_names_of_all_that_is_not_ours(tmp_path: Path) -> None:
    front = (
        "name: o\ndescription: |\n  O.\n  <example>Use it now</example>\ntools: [terminal, file_editor, task_tracker]\n"
        "max_iteration_per_run: 12\nmax_budget_per_run: 0.5\npermission_mode: confirm_risky\ncondenser: {}\n"
        "profile_store_dir: x\nmcp_config: {}\nwhatever: 1"
    )
    found, definition = one(markdown(tmp_path / "o.md", front))
    assert found.dialect == "openhands"
    assert definition.tool_keys == ("bash", "read_file", "write_file", "edit_file", "todo_write")
    assert (definition.max_steps, definition.budget) == (12, 0.5)
    assert "<example>Use it now</example>" in definition.description
    assert [(field.name, field.line) for field in definition.ignored_fields] == [
        ("permission_mode", 9), ("condenser", 10), ("profile_store_dir", 11), ("mcp_config", 12), ("whatever", 13),
    ]  # fmt: skip


def test_an_opencode_agent_is_named_by_its_file_and_loses_what_it_may_not_use(tmp_path: Path) -> None:
    front = (
        "description: P.\nmode: subagent\nmodel: anthropic/claude-sonnet-5\nsteps: 8\n"
        "tools: {write: false, grep: true, 'todo*': false}\npermission: {bash: {'git *': allow, '*': ask}, read: allow}"
    )
    found, definition = one(markdown(tmp_path / ".opencode/agent/planner.md", front))
    assert found.dialect == "opencode"
    assert (definition.type, definition.model, definition.max_steps) == ("planner", "claude-sonnet-5", 8)
    assert set(DEFAULT_TOOL_KEYS) - set(definition.tool_keys) == {"write_file", "todo_write", "bash"}


@pytest.mark.parametrize(
    ("permission", "lost"),
    [
        ("permission: {edit: deny}", {"edit_file", "write_file"}),
        ("permission: {'*': deny, read: allow, glob: allow}", set(DEFAULT_TOOL_KEYS) - {"read_file", "glob"}),
        ("permission: {webfetch: deny, external_directory: ask}", set()),
        ("permission: allow", set()),
    ],
)
def test_what_opencode_denies_or_asks_about_is_not_granted(tmp_path: Path, permission: str, lost: set[str]) -> None:
    _, definition = one(markdown(tmp_path / ".opencode/agents/p.md", f"description: P.\n{permission}"))
    assert set(DEFAULT_TOOL_KEYS) - set(definition.tool_keys) == lost


@pytest.mark.parametrize(
    ("front", "line", "reason"),
    [
        ("description: P.\npermission: deny", 3, "leaves no tool"),
        ("description: P.\npermission: {bash: maybe}", 3, "must be allow, ask or deny for 'bash', not 'maybe'"),
        ("description: P.\npermission: {bsh: deny}", 3, "unknown tool 'bsh'; did you mean 'bash'?"),
        ("description: P.\npermission: [bash]", 3, "or a map from tools"),
        ("description: P.\ntools: {webfetch: true}", 3, "which kinfold does not have"),
    ],
)
def test_a_fault_in_an_opencode_file_names_its_line(tmp_path: Path, front: str, line: int, reason: str) -> None:
    (found,) = candidates(markdown(tmp_path / ".opencode/agent/p.md", front))
    assert (found.status, found.line) == ("error", line)
    assert reason in found.reason


def test_what_its_author_switched_off_is_listed_as_skipped_and_never_loaded(tmp_path: Path) -> None:
    root = tmp_path / ".opencode/agent"
    markdown(root / "a.md", "description: A.\ndisable: true")
    markdown(root / "b.md", "description: B.\nmode: primary")
    with pytest.raises(ConfigError, match=r"no definition is in use here: a\.md: switched off by 'disable' \(line 3\)"):
        load(root)
    markdown(root / "c.md", "description: C.\nmode: all")
    assert [definition.type for definition in load(root)] == ["c"]
    assert [found.status for found in candidates(root)] == ["skipped", "skipped", "ok"]


def test_a_deepagents_agent_is_named_by_its_directory(tmp_path: Path) -> None:
    found, definition = one(markdown(tmp_path / ".deepagents/agents/scout/AGENTS.md", "description: S."))
    assert (found.dialect, definition.type) == ("deepagents", "scout")


def test_a_codex_agent_is_read_from_its_toml_file(tmp_path: Path) -> None:
    text = (
        'name = "reviewer"\ndescription = "R."\nmodel = "opus"\nmodel_reasoning_effort = "high"\n'
        'sandbox_mode = "read-only"\nnickname_candidates = ["Rex"]\ndeveloper_instructions = """\nRead.\n"""\n'
        "[mcp_servers.x]\nurl = 'y'\n[[skills.config]]\npath = 'z'\n"
    )
    found, definition = one(write(tmp_path / "reviewer.toml", text))
    assert found.dialect == "codex"
    assert (definition.type, definition.model, definition.effort) == ("reviewer", "opus", "high")
    assert definition.instructions == "Read.\n"
    assert [(field.name, field.line) for field in definition.ignored_fields] == [
        ("sandbox_mode", 5), ("nickname_candidates", 6), ("mcp_servers", 10), ("skills", 12),
    ]  # fmt: skip


def test_codex_settings_beside_its_agents_are_no_agent_and_a_wrong_key_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / ".codex/agents"
    write(root / "a.toml", "[agents]\nmax_threads = 6\n")
    write(root / "b.toml", 'name = "b"\ndescription = "B."\ndeveloper_instruction = "x"\n')
    write(root / "c.toml", "name = 'c'\n")
    assert [(found.status, found.line) for found in candidates(root)] == [("skipped", 1), ("error", 3), ("error", 1)]


def test_a_named_dialect_outweighs_place_and_fields(tmp_path: Path) -> None:
    path = markdown(tmp_path / ".claude/agents/x.md", "description: X.")
    (found,) = candidates(path)
    assert "needs 'name'" in found.reason
    assert load(path, dialect="opencode")[0].type == "x"


def test_a_denied_specifier_takes_the_whole_tool(tmp_path: Path) -> None:
    front = "name: a\ndescription: A.\ntools: Read, Bash\ndisallowedTools: Bash(rm:*), mcp__x__*, Agent"
    assert load(markdown(tmp_path / "a.md", front))[0].tool_keys == ("read_file",)


@pytest.mark.parametrize("dialect", [d for d in DIALECTS if d not in ("codex", "openhands")])
def test_no_markdown_dialect_lets_an_unknown_field_pass(tmp_path: Path, dialect: str) -> None:
    path = markdown(tmp_path / "a.md", "name: a\ndescription: A.\nmodell: x")
    (found,) = candidates(path, dialect=next(d for d in DIALECTS if d == dialect))
    assert (found.status, found.line) == ("error", 4)
    assert "did you mean 'model'?" in found.reason


def test_every_candidate_of_a_broken_directory_is_listed_with_its_line(tmp_path: Path) -> None:
    markdown(tmp_path / "a.md", "name: a\ndescription: A.")
    markdown(tmp_path / "b.md", "name: b\ndescription: [")
    write(tmp_path / "c.toml", '[[definition]]\ntype = "c"\n\n[[definition]]\ntype = "d"\ndescription = "D."\nx = 1\n')
    markdown(tmp_path / "e.md", "name: a\ndescription: Also A.")
    write(tmp_path / "f.md", "# prose")
    lines = [(found.path.name, found.status, found.line) for found in candidates(tmp_path)]
    assert lines == [
        ("a.md", "error", 2), ("b.md", "error", 3), ("c.toml", "error", 1), ("c.toml", "error", 7),
        ("e.md", "error", 2), ("f.md", "error", 1),
    ]  # fmt: skip
