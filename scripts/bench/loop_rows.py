"""The agent loop without its tools: one step with a scripted model, and 200 subagents in one process."""

from __future__ import annotations

import resource
import secrets
import tempfile
from pathlib import Path

import anyio
from measure import Row, paired
from pydantic import BaseModel

from kinfold.agent.context import RuntimeContext, kickoff
from kinfold.agent.loop import run_agent_loop
from kinfold.agent.run import LoopConfig, LoopInput
from kinfold.events import EventBase
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedCall, ScriptedModel, ScriptedReply
from kinfold.sandbox import LocalProvider, SandboxSpec
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tools.base import Tool, ToolContext, ToolOutcome

STEPS = 50
SUBAGENTS = 200


class Nothing(BaseModel):
    """No arguments."""


async def nothing(context: ToolContext, arguments: Nothing) -> ToolOutcome:
    """Do nothing, as a tool."""
    return ToolOutcome.of("ok")


NOTHING = Tool(key="nothing", words="Does nothing.", arguments=Nothing, call=nothing)


def reply(request: ModelRequest) -> ScriptedReply:
    """`STEPS` calls of the tool that does nothing, then a text."""
    return ScriptedReply(calls=(ScriptedCall(tool="nothing"),)) if request.step <= STEPS else ScriptedReply(text="done")


async def one_run(sandbox: Sandbox) -> None:
    """A whole run of `STEPS` + 1 steps."""
    seen: list[str] = []

    async def writer(event: EventBase) -> None:
        seen.append(event.model_dump_json())

    context = RuntimeContext(
        task_id=f"task_{secrets.token_hex(4)}",
        user_id="local",
        sandbox=sandbox,
        workspace="/workspace",
        timezone="UTC",
        writer=writer,
    )
    config = LoopConfig(model=ScriptedModel(reply), max_steps=STEPS + 5, tool_keys=("nothing",), extra_tools=(NOTHING,))
    asked = LoopInput(kind="main", messages=(kickoff("go", "UTC"),))
    result = await run_agent_loop(context, config, asked)
    if (result.status, result.steps) != ("completed", STEPS + 1):
        raise RuntimeError(f"the run ended as {result.ended_by} after {result.steps} steps: {result.error}")


async def many_runs(sandbox: Sandbox) -> None:
    """`SUBAGENTS` runs at once."""
    async with anyio.create_task_group() as group:
        for _ in range(SUBAGENTS):
            group.start_soon(one_run, sandbox)


def resident() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def loop_rows() -> list[Row]:
    """Seconds per step, alone and with 200 runs at once; the note says what the memory was."""
    with tempfile.TemporaryDirectory() as state:
        async with (
            LocalProvider(state_dir=Path(state)) as provider,
            await provider.create(SandboxSpec(keep=0)) as sandbox,
        ):
            alone = await paired({"one run": lambda: one_run(sandbox)}, rounds=10, warmup=2)
            before = resident()
            crowd = await paired({"200 runs at once": lambda: many_runs(sandbox)}, rounds=2, warmup=0)
            grown, whole = (resident() - before) / 2**20, resident() / 2**20
    steps = STEPS + 1
    return [
        Row(
            name="one loop step, the run's start and end included",
            bar="< 3 ms",
            seconds={"one run": [s / steps for s in alone["one run"]]},
            note=f"{steps} steps a run, each with one call of a tool that does nothing",
        ),
        Row(
            name=f"one loop step of {SUBAGENTS} concurrent runs",
            bar=f"{SUBAGENTS} concurrent subagents in < 150 MB",
            seconds={"200 runs at once": [s / steps / SUBAGENTS for s in crowd["200 runs at once"]]},
            note=f"the process grew by {grown:.0f} MB, to {whole:.0f} MB in all",
        ),
    ]
