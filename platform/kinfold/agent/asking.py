"""What every request of a run holds, whatever it is for, and the paying for its reply."""

from __future__ import annotations

from kinfold.agent.instructions import INSTRUCTIONS
from kinfold.agent.run import Run
from kinfold.messages import Message
from kinfold.models.base import ModelRequest, Purpose, Reply
from kinfold.models.pricing import cost_usd


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
        purpose=purpose,
        run_kind=run.input.kind,
        label=run.input.label,
        subagent_type=run.input.subagent_type,
        step=run.steps,
    )


async def pay(run: Run, reply: Reply) -> None:
    """Count a reply's tokens and its price, here and in every purse above."""
    run.usage = run.usage + reply.usage
    cost = cost_usd(reply.model, reply.usage)
    if cost is None and run.purse.limited and reply.model not in run.purse.unpriced:
        await run.warn("price_unknown", f"the price of {reply.model} is not known: the budget does not hold for it")
    run.purse.charge(cost, reply.model)
