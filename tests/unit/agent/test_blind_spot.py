"""The blind spot's rule, measured on pairs that were written before it and on pairs that were written after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.agent.stage import Stage

from kinfold.agent.blind_spot import missing_constraints
from kinfold.agent.delegate import Delegation, DelegationConfig
from kinfold.agent.limits import Purse
from kinfold.definitions import SubagentDefinition
from kinfold.events import Warned
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedModel, ScriptedReply
from kinfold.tools.base import SpawnRequest

PAIRS = Path(__file__).parent / "blind_spot"


def figures(name: str) -> tuple[float, float]:
    """Precision and recall on one file of pairs; a finding is right that overlaps a phrase marked as lost."""
    right = found = named = lost = 0
    for pair in json.loads((PAIRS / name).read_text()):
        findings = [text.lower() for text in missing_constraints(pair["turns"], pair["prompt"])]
        expected = [text.lower() for text in pair["lost"]]
        right += sum(any(one in text or text in one for one in expected) for text in findings)
        named += sum(any(one in text or text in one for text in findings) for one in expected)
        found, lost = found + len(findings), lost + len(expected)
    print(f"{name}: precision {right}/{found}, recall {named}/{lost}")
    return right / found, named / lost


@pytest.mark.parametrize(("name", "precision", "recall"), [("before.json", 0.94, 1.0), ("after.json", 0.86, 0.92)])
def test_the_rule_is_as_good_as_it_was_measured(name: str, precision: float, recall: float) -> None:
    measured = figures(name)
    assert measured[0] >= precision
    assert measured[1] >= recall


@pytest.mark.anyio
@pytest.mark.parametrize("append", [False, True])
async def test_a_lost_demand_is_in_the_event_and_the_result_and_in_the_prompt_only_where_asked(append: bool) -> None:
    prompts: list[str] = []

    def reply(request: ModelRequest) -> ScriptedReply:
        prompts.append(request.messages[0].text)
        return ScriptedReply(text="1989")

    stage = Stage()
    model = ScriptedModel(reply)
    config = DelegationConfig(
        definitions=(SubagentDefinition(type="general", description="anything", tool_keys=("read_file",)),),
        model=model,
        resolve=lambda name: model,
        user_turns=("When was the director born? Careful: I mean the 2011 original, not the 2024 remake.",),
        append_constraints=append,
    )
    delegation = Delegation(stage.context(), config, purse=Purse())
    output = await delegation.spawn(
        SpawnRequest(
            subagent_type="general", description="x", prompt="Find the director's year of birth.", tool_call_id="c1"
        )
    )
    (warned,) = [event for event in stage.of(Warned) if event.code == "blind_spot"]
    assert '"2011 original"' in warned.message and warned.message in output.warnings
    assert ("2011 original" in prompts[0]) is append
