"""The main agent of a parent task: its context, its delegation, and its run."""

from __future__ import annotations

from kinfold.agent.context import RuntimeContext, kickoff, new_run_id
from kinfold.agent.delegate import SLOTS, Delegation, DelegationConfig
from kinfold.agent.kept import Journal
from kinfold.agent.limits import Purse
from kinfold.agent.loop import run_agent_loop
from kinfold.agent.past import Past
from kinfold.agent.run import LoopConfig, LoopInput, RunResult
from kinfold.errors import NotFound
from kinfold.messages import EndedBy, SubagentRecord, Usage
from kinfold.sandbox.base import WORKSPACE
from kinfold.sandbox.sandbox import Sandbox
from kinfold.tasks.log import EventLog
from kinfold.tasks.plan import Plan
from kinfold.tasks.result import RunLimits
from kinfold.tools.writers import Writers


class MainRun:
    """One main run in an open sandbox; it borrows the sandbox and writes to the task's log."""

    def __init__(
        self,
        plan: Plan,
        *,
        task_id: str,
        limits: RunLimits,
        sandbox: Sandbox,
        log: EventLog,
        journal: Journal,
        past: Past,
    ) -> None:
        self._plan = plan
        self._journal = journal
        self._limits = limits
        self._past = past.main
        self._purse = _purse(limits.budget, past)
        self._context = RuntimeContext(
            run_id=past.main.run_id if past.main is not None else new_run_id(),
            task_id=task_id,
            user_id=plan.user_id,
            sandbox=sandbox,
            workspace=WORKSPACE,
            timezone=plan.timezone,
            writer=log.emit,
        )
        self._writers = _writers(past)
        config = DelegationConfig(
            definitions=plan.definitions,
            model=plan.model,
            resolve=plan.model_named,
            extra_tools=plan.tools,
            slots=limits.concurrency or SLOTS,
            user_turns=(plan.prompt,),
            append_constraints=plan.append_constraints,
            writers=self._writers,
            journal=journal,
            past=past,
        )
        self._delegation = Delegation(self._context, config, purse=self._purse)

    async def run(self) -> RunResult:
        """Run the prompt to its end, from wherever another process left it."""
        if self._past is not None and self._past.ended is not None:
            return self._past.result
        plan = self._plan
        config = LoopConfig(
            model=plan.model,
            max_steps=self._limits.max_steps,
            tool_keys=plan.tool_keys,
            timeout=self._limits.timeout,
            budget=self._limits.budget,
            definitions=plan.definitions,
            extra_tools=plan.tools,
            writers=self._writers,
            task_extras=plan.task_extras,
            journal=self._journal,
            purse=self._purse,
        )
        asked = LoopInput(
            kind="main",
            messages=(kickoff(plan.prompt, plan.timezone),),
            spawn=self._delegation.spawn if plan.definitions else None,
            people=plan.people,
            past=self._past,
        )
        return await run_agent_loop(self._context, config, asked)

    def stop(self, reason: EndedBy) -> None:
        """End the main run and with it every subagent."""
        self._context.lifeline.stop(reason)

    def cancel(self, run_id: str) -> None:
        """End one run. Raises `NotFound` for one that does not run now."""
        if run_id == self._context.run_id:
            self.stop("cancelled")
        elif not self._delegation.cancel(run_id):
            raise NotFound(f"no run {run_id!r} runs now", hint="run ids are in the events; an ended run stays ended")

    @property
    def records(self) -> tuple[SubagentRecord, ...]:
        """One for each subagent so far."""
        return tuple(self._context.subagent_records)

    def usage(self, own: Usage) -> Usage:
        """The main run's tokens and all subagents'."""
        return sum((record.usage for record in self._context.subagent_records), own)


def _purse(budget: float | None, past: Past) -> Purse:
    """What is left of the budget."""
    unpriced = set[str]().union(*(run.unpriced for run in past.runs))
    return Purse(limit=budget, spent=sum(run.cost for run in past.runs), unpriced=unpriced)


def _writers(past: Past) -> Writers:
    """Who wrote what in the workspace so far, by what each run's newest step says."""
    writers = Writers()
    for run in past.runs:
        if run.last is not None:
            memory = run.last.memory
            writers.restore(run.run_id, run.started.label, memory.writes, ran_programs=memory.ran_programs)
            if run.ended is not None:
                writers.end(run.run_id)
    return writers
