"""The loop against the real SDK and a strict Messages API: nothing that it sends is refused."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.agent.stage import ROOT, Stage

from kinfold.models.anthropic import AnthropicModel
from kinfold.testing.messages_api import Answer, Interruption, MessagesApi

pytestmark = pytest.mark.anyio


def call(number: int, name: str, **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{number}", "name": name, "input": arguments}


async def test_a_troubled_run_stays_valid_for_the_service_and_delivers() -> None:
    cut_call = {"type": "tool_use", "id": "toolu_9", "name": "write_file", "raw_input": '{"path": "half'}
    script = [
        Answer(blocks=(call(1, "write_file", path="a.txt", content="A"), call(2, "read_file", path="a.txt"))),
        Answer(blocks=(call(3, "read_file", path="../etc/passwd"), call(4, "nonsense"))),
        Answer(blocks=({"type": "text", "text": "now"}, cut_call), stop_reason="max_tokens"),
        Answer(blocks=()),
        Answer.text("to be continued", stop_reason="max_tokens"),
        Answer(
            blocks=(call(5, "write_file", path="b.txt", content="B"), {"type": "text", "text": "lost"}),
            interruption=Interruption(where="inside_block"),
        ),
        Answer(blocks=(call(6, "complete", summary="made", paths=["a.txt", "b.txt"]),)),
    ]
    stage = Stage()
    async with MessagesApi(script) as api:
        model = AnthropicModel("claude-sonnet-5", api_key=api.api_key, base_url=api.base_url)
        result = await stage.run(model=model)
        assert len(api.requests) == len(script)
    assert (result.ended_by, result.summary, result.steps) == ("complete", "made", 7)
    assert [artifact.path for artifact in result.artifacts] == [f"{ROOT}/a.txt", f"{ROOT}/b.txt"]
    assert result.cost is not None


@pytest.mark.parametrize("refuses_forced_tools", [False, True])
async def test_the_finalisation_step_asks_for_complete_with_the_same_tools(refuses_forced_tools: bool) -> None:
    script = [
        Answer(blocks=(call(1, "write_file", path="a.txt", content="A"),)),
        Answer(blocks=(call(2, "complete", summary="so far", paths=["a.txt"]),)),
    ]
    stage = Stage()
    async with MessagesApi(script, refuses_forced_tools=refuses_forced_tools) as api:
        model = AnthropicModel("claude-sonnet-5", api_key=api.api_key, base_url=api.base_url)
        result = await stage.run(model=model, max_steps=1)
        assert all(body["tools"] == api.requests[0]["tools"] for body in api.requests)
        assert all(body["system"] == api.requests[0]["system"] for body in api.requests)
    assert (result.ended_by, result.summary, len(result.artifacts)) == ("step_limit", "so far", 1)
