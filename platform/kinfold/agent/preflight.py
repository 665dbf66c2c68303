"""Whether a subagent's first request fits its model's window: known before it starts, for its brief stays as it is.

Where the estimate is far below the window nobody is asked; near it the model's service counts, where it can.
"""

from __future__ import annotations

from collections.abc import Sequence

from kinfold.agent.context import kickoff
from kinfold.agent.instructions import INSTRUCTIONS
from kinfold.definitions.definition import SubagentDefinition
from kinfold.errors import ModelError, ToolError
from kinfold.models import estimate
from kinfold.models.base import CountsTokens, Model, ModelRequest
from kinfold.models.windows import UNKNOWN_WINDOW, window_of
from kinfold.tools import registry
from kinfold.tools.base import Tool

NEAR = 0.5
"""Of the window: a first request that is estimated below this is not counted."""
NAMED = 4
"""How many of the biggest parts a refusal names."""


def first_request(
    definition: SubagentDefinition, prompt: str, timezone: str, extra_tools: Sequence[Tool]
) -> ModelRequest:
    """What a subagent of this definition asks first."""
    tools = registry.select(definition.tool_keys, extra=extra_tools)
    system = (INSTRUCTIONS["subagent"], definition.instructions.strip())
    return ModelRequest(
        system=tuple(text for text in system if text),
        messages=(kickoff(prompt, timezone),),
        tools=registry.specs(tools),
        effort=definition.effort,
        thinking=definition.thinking,
        run_kind="subagent",
        subagent_type=definition.type,
    )


async def check_fits(model: Model, request: ModelRequest) -> str | None:
    """Raise `ToolError` for a first request that leaves no room for a reply; returns why it could not be counted."""
    known = window_of(model.name)
    window = known or UNKNOWN_WINDOW
    tokens, failure = estimate.request_tokens(request), None
    if tokens < NEAR * window:
        return None
    if isinstance(model, CountsTokens):
        try:
            tokens = await model.count_tokens(request)
        except ModelError as error:
            failure = f"the start of {request.subagent_type!r} could not be counted, only estimated: {error.message}"
    if tokens + request.reply_tokens > window:
        taken = "" if known else ", which is not known and taken for so many"
        raise ToolError(
            f"{request.subagent_type!r} cannot start: its first request has {tokens:,} tokens, and its reply may have "
            f"{request.reply_tokens:,}; the window of {model.name} holds {window:,}{taken}. "
            f"The biggest parts, estimated: {_biggest(request)}",
            hint="put long content into files of the workspace and name their paths in a short prompt",
        )
    return failure


def _biggest(request: ModelRequest) -> str:
    own, *instructions = request.system
    prompt, *_ = request.messages
    parts = [
        (estimate.message_tokens(prompt), "the prompt"),
        (estimate.text_tokens(own), "what every subagent is told"),
        *((estimate.text_tokens(text), "the instructions of its definition") for text in instructions),
        *((estimate.tool_tokens(tool), f"the tool {tool.name}") for tool in request.tools),
    ]
    return ", ".join(f"{name} {tokens:,}" for tokens, name in sorted(parts, reverse=True)[:NAMED])
