"""Definitions in the store: versions, removal, and what a task that started earlier still has."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.unit.tasks.house import MemoryProvider

from kinfold.cli.run import load_definitions
from kinfold.config import Settings
from kinfold.definitions import SubagentDefinition, tokens_over
from kinfold.errors import ConfigError, NotFound
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedCall, ScriptedModel, ScriptedReply
from kinfold.tasks.store.definitions import StoredDefinitions
from kinfold.tasks.store.door import Store
from kinfold.tasks.store.tasks import StoredTasks
from kinfold.tasks.task import ParentTask

pytestmark = pytest.mark.anyio


def definition(type: str = "scout", description: str = "Looks.", **fields: object) -> SubagentDefinition:
    return SubagentDefinition.model_validate({"type": type, "description": description, **fields})


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[StoredDefinitions]:
    async with Store(tmp_path) as store:
        yield StoredDefinitions(store)


async def test_what_is_added_comes_back_whole(kept: StoredDefinitions) -> None:
    full = definition(
        stop_conditions=(tokens_over(9),), tool_keys=("bash",), effort="high", thinking=2_000, budget=0.5, source="x:1"
    )
    assert await kept.add(full) == full
    assert await kept.current() == (full,)
    assert await kept.get("scout") == full


async def test_a_change_makes_a_version_and_the_same_again_makes_none(kept: StoredDefinitions) -> None:
    assert (await kept.add(definition())).version == 1
    assert (await kept.add(definition(source="elsewhere:3"))).version == 1
    assert (await kept.add(definition(description="Looks twice."))).version == 2
    assert [(found.type, found.version) for found in await kept.current()] == [("scout", 2)]
    assert (await kept.get("scout", 1)).description == "Looks."


async def test_a_removed_type_serves_no_more_but_its_versions_stay_readable(kept: StoredDefinitions) -> None:
    await kept.add(definition())
    await kept.remove("scout")
    assert await kept.current() == ()
    assert (await kept.get("scout", 1)).version == 1
    with pytest.raises(NotFound, match="no definition 'scout' is kept"):
        await kept.get("scout")
    with pytest.raises(NotFound):
        await kept.remove("scout")
    assert (await kept.add(definition())).version == 2


async def test_what_is_not_there_is_told_with_the_nearest_name(kept: StoredDefinitions) -> None:
    await kept.add(definition())
    with pytest.raises(NotFound, match="did you mean 'scout'"):
        await kept.get("scuot")
    with pytest.raises(NotFound, match="in version 7"):
        await kept.get("scout", 7)


async def test_the_settings_serve_what_is_kept_and_an_empty_store_is_the_operators_error(tmp_path: Path) -> None:
    settings = Settings(state_dir=tmp_path, agents="store")
    with pytest.raises(ConfigError, match="no definition is kept"):
        await load_definitions(settings)
    async with Store(tmp_path) as store:
        await StoredDefinitions(store).add(definition())
    assert [found.type for found in await load_definitions(settings)] == ["scout"]


async def test_a_task_keeps_what_it_started_with_and_its_records_name_the_version(tmp_path: Path) -> None:
    async with Store(tmp_path) as store:
        kept = StoredDefinitions(store)
        await kept.add(definition())
        await kept.add(definition(instructions="First."))
        systems: list[str] = []
        spawn = {"subagent_type": "scout", "description": "look around now", "prompt": "Look."}

        def reply(request: ModelRequest) -> ScriptedReply:
            if request.run_kind == "subagent":
                systems.append("\n".join(request.system))
                return ScriptedReply(text="seen")
            done = len(systems) == 1
            return (
                ScriptedReply(text="done") if done else ScriptedReply(calls=(ScriptedCall(tool="task", input=spawn),))
            )

        found = await kept.current()
        task = ParentTask(
            "Go.", model=ScriptedModel(reply), definitions=found, provider=MemoryProvider(), state_dir=tmp_path
        )
        async with task:
            await kept.add(definition(instructions="Second."))
            await task.start()
            result = await task.wait()
        assert "First." in systems[0] and "Second." not in systems[0]
        assert [(record.definition.type, record.definition.version) for record in result.records] == [("scout", 2)]
        runs = (await StoredTasks(store).export(task.id))["runs"]
        assert [(run["definition"], run["definition_version"]) for run in runs] == [(None, None), ("scout", 2)]
        assert [found.version for found in await kept.current()] == [3]
