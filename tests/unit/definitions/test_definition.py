"""What a definition may be."""

from __future__ import annotations

import typing

import pytest
from pydantic import ValidationError

from kinfold.definitions import (
    DEFAULT,
    DEFAULT_TOOL_KEYS,
    FORBIDDEN_IN_SUBAGENTS,
    KNOWN_TOOL_KEYS,
    Effort,
    SubagentDefinition,
    Thinking,
    has_tool_call,
    text_matches,
    tokens_over,
)
from kinfold.models.base import Effort as ModelEffort
from kinfold.models.base import Thinking as ModelThinking


def a_definition(**values: object) -> SubagentDefinition:
    return SubagentDefinition.model_validate({"type": "helper", "description": "Helps.", **values})


def test_three_definitions_ship_and_none_of_them_can_delegate_or_ask() -> None:
    assert [definition.type for definition in DEFAULT] == ["general", "research", "coding"]
    for definition in DEFAULT:
        assert set(definition.tool_keys) <= KNOWN_TOOL_KEYS - FORBIDDEN_IN_SUBAGENTS
        assert len(definition.instructions) > 500
        assert definition.ignored_fields == ()


@pytest.mark.parametrize("key", sorted(FORBIDDEN_IN_SUBAGENTS))
def test_a_definition_that_names_a_forbidden_tool_is_refused(key: str) -> None:
    with pytest.raises(ValidationError, match=f"names '{key}', which a subagent never has"):
        a_definition(tool_keys=("bash", key))


def test_a_definition_without_tools_gets_the_default_set() -> None:
    assert a_definition().tool_keys == DEFAULT_TOOL_KEYS


@pytest.mark.parametrize(
    "values",
    [
        {"type": "Has Blanks"},
        {"type": "-x"},
        {"type": "plugin:x"},
        {"description": "  "},
        {"max_steps": 0},
        {"max_steps": True},
        {"timeout": float("inf")},
        {"timeout": 0},
        {"budget": -1},
        {"effort": "huge"},
        {"thinking": "hard"},
        {"thinking": True},
        {"thinking": 1_023},
        {"thinking": 2_000.5},
        {"model": ""},
        {"tools": ["bash"]},
    ],
    ids=str,
)
def test_what_cannot_be_a_definition_is_refused(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        a_definition(**values)


def test_stop_conditions_are_values_that_survive_a_round_trip_through_json() -> None:
    conditions = (has_tool_call("bash"), tokens_over(5), text_matches("^DONE"))
    definition = a_definition(stop_conditions=conditions)
    again = SubagentDefinition.model_validate_json(definition.model_dump_json())
    assert again.stop_conditions == conditions


@pytest.mark.parametrize("bad", ["(", "*", ""])
def test_a_stop_condition_that_is_no_regular_expression_is_refused(bad: str) -> None:
    with pytest.raises(ValidationError):
        text_matches(bad)


def test_definitions_and_models_speak_of_the_same_efforts() -> None:
    assert typing.get_args(Effort) == typing.get_args(ModelEffort)
    assert typing.get_args(ModelThinking) == typing.get_args(typing.get_args(Thinking)[0])
