"""What every request of a run holds, whatever it is for."""

from __future__ import annotations

from kinfold.agent.instructions import INSTRUCTIONS
from kinfold.agent.run import Run
from kinfold.messages import Message
from kinfold.models.base import ModelRequest, Purpose


def request_of(
    run: Run, purpose: Purpose, *, tool_choice: str | None = None, more: tuple[Message, ...] = ()
) -> ModelRequest:
    """The run's next request; `more` follows the history, which keeps the cached prefix as it is."""
    system = (INSTRUCTIONS[run.input.kind], run.input.extra_instructions.strip())
    return ModelRequest(
        system=tuple(block for block in system if block),
        messages=(*run.history.messages, *more),
        tools=run.specs,
        tool_choice=tool_choice,
        effort=run.config.effort,
        thinking=run.config.thinking,
        purpose=purpose,
        run_kind=run.input.kind,
        label=run.input.label,
        subagent_type=run.input.subagent_type,
        step=run.steps,
    )
