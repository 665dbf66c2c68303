"""The agent loop without its tools: one step with a scripted model, and 200 subagents of one task in one process."""

from __future__ import annotations

import itertools
import resource
import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import anyio
from measure import Row, paired
from pydantic import BaseModel

from kinfold.agent.context import RuntimeContext, kickoff
from kinfold.agent.delegate import Delegation, DelegationConfig
from kinfold.agent.limits import Purse
from kinfold.agent.loop import run_agent_loop
from kinfold.agent.run import LoopConfig, LoopInput
from kinfold.definitions import SubagentDefinition
from kinfold.events import EventBase, StepStarted
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedCall, ScriptedModel, ScriptedReply
from kinfold.sandbox import LocalProvider, SandboxSpec
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tools.base import SpawnRequest, Tool, ToolContext, ToolOutcome

STEPS = 50
SUBAGENTS = 200
CROWD_STEPS = 20
PACED_STEPS = 10


class Nothing(BaseModel):
    """No arguments."""


async def nothing(context: ToolContext, arguments: Nothing) -> ToolOutcome:
    """Do nothing, as a tool."""
    return ToolOutcome.of("ok")


NOTHING = Tool(key="nothing", words="Does nothing.", arguments=Nothing, call=nothing)


def plays(steps: int, thinks: Callable[[ModelRequest], float] = lambda request: 0.0) -> ScriptedModel:
    """A model that calls the tool that does nothing `steps` times, then ends by a text; it thinks so many seconds."""

    def reply(request: ModelRequest) -> ScriptedReply:
        delay = thinks(request)
        if request.step <= steps:
            return ScriptedReply(calls=(ScriptedCall(tool="nothing"),), delay=delay)
        return ScriptedReply(text="done", delay=delay)

    return ScriptedModel(reply)


def thought(label: str) -> float:
    """Seconds between 1.5 and 2.5, another for each subagent, so that they do not all answer at once."""
    return 1.5 + int(label) % 100 / 100


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
    config = LoopConfig(model=plays(STEPS), max_steps=STEPS + 5, tool_keys=("nothing",), extra_tools=(NOTHING,))
    asked = LoopInput(kind="main", messages=(kickoff("go", "UTC"),))
    result = await run_agent_loop(context, config, asked)
    if (result.status, result.steps) != ("completed", STEPS + 1):
        raise RuntimeError(f"the run ended as {result.ended_by} after {result.steps} steps: {result.error}")


class Crowd:
    """`SUBAGENTS` subagents of one main agent at once, and when each of them began each of its steps."""

    def __init__(self, model: ScriptedModel, steps: int) -> None:
        self._model = model
        self._steps = steps
        self._began: dict[str, list[float]] = {}
        self.most = 0
        """Bytes of this process in memory, at the worst moment seen."""
        self.took = 0.0

    async def note(self, event: EventBase) -> None:
        """Take an event, as a watcher would."""
        event.model_dump_json()
        if isinstance(event, StepStarted):
            self._began.setdefault(str(event.label), []).append(time.perf_counter())
            self.most = max(self.most, resident())

    async def run(self, sandbox: Sandbox) -> None:
        """All at once, to the end of the last."""
        parent = RuntimeContext(
            task_id="task_bench", user_id="local", sandbox=sandbox, workspace="/workspace", timezone="UTC",
            writer=self.note,
        )  # fmt: skip
        definition = SubagentDefinition(
            type="general", description="anything", tool_keys=("nothing",), max_steps=self._steps + 5
        )
        config = DelegationConfig(
            definitions=(definition,), model=self._model, resolve=lambda name: self._model, extra_tools=(NOTHING,),
            slots=SUBAGENTS, total=SUBAGENTS,
        )  # fmt: skip
        delegation = Delegation(parent, config, purse=Purse(limit=None))

        async def one(number: int) -> None:
            request = SpawnRequest(
                subagent_type="general", description=str(number), prompt="go", tool_call_id=f"toolu_{number}"
            )
            output = await delegation.spawn(request)
            if (output.status, output.steps) != ("completed", self._steps + 1):
                raise RuntimeError(f"a subagent ended as {output.ended_by} after {output.steps} steps: {output.error}")

        began = time.perf_counter()
        async with anyio.create_task_group() as group:
            for number in range(SUBAGENTS):
                group.start_soon(one, number)
        self.took = time.perf_counter() - began

    def steps(self, less: Callable[[str], float] = lambda label: 0.0) -> list[float]:
        """Seconds from the beginning of a step to that of the same run's next, less what its model thought."""
        pairs = [(label, pair) for label, times in self._began.items() for pair in itertools.pairwise(times)]
        return [after - before - less(label) for label, (before, after) in pairs]


def resident() -> int:
    """Bytes of this process in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def loop_rows() -> list[Row]:
    """Seconds per step, alone and of 200 subagents at once, and the memory that these take."""
    with tempfile.TemporaryDirectory() as state:
        async with (
            LocalProvider(state_dir=Path(state)) as provider,
            await provider.create(SandboxSpec(keep=0)) as sandbox,
        ):
            alone = await paired({"one run": lambda: one_run(sandbox)}, rounds=10, warmup=2)
            before = resident()
            crowd = Crowd(plays(CROWD_STEPS), CROWD_STEPS)
            await crowd.run(sandbox)
            paced = Crowd(plays(PACED_STEPS, lambda request: thought(str(request.label))), PACED_STEPS)
            await paced.run(sandbox)
    steps = STEPS + 1
    return [
        Row(
            name="one loop step, the run's start and end included",
            bar="< 3 ms",
            seconds={"one run": [s / steps for s in alone["one run"]]},
            note=f"{steps} steps a run, each with one call of a tool that does nothing",
        ),
        Row(
            name=f"what kinfold adds to a step of each of {SUBAGENTS} subagents at once",
            bar="",
            seconds={"models that think 1.5 to 2.5 s": paced.steps(thought)},
            note=f"from a step's beginning to the same run's next, less the model's time; {PACED_STEPS + 1} steps "
            f"each, {paced.took:.1f} s in all, one process on one core",
        ),
        Row(
            name=f"one step of each of {SUBAGENTS} subagents at once, models that answer at once",
            bar="",
            seconds={"the same core for all": crowd.steps()},
            note=f"{SUBAGENTS * (CROWD_STEPS + 1)} steps in {crowd.took:.1f} s, "
            f"{crowd.took / SUBAGENTS / (CROWD_STEPS + 1) * 1000:.2f} ms of the core a step: a queue, and no latency",
        ),
        Row(
            name=f"memory of the process with {SUBAGENTS} subagents",
            bar="< 150 MB",
            seconds={
                "at most, in all": [max(crowd.most, paced.most) / 2**20],
                "of that before they began": [before / 2**20],
            },
            unit="MB",
        ),
    ]
