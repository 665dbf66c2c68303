"""One system that delegates, in its own interpreter: a line in starts a run, a JSON line out says how it went.

`python delegation.py SYSTEM URL`, with PROMPT on the first line. Answers: {"seconds": S, "text": WORDS, "memory":
BYTES} or {"error": WORDS}. The tool `lookup` and what the subagent is told are the same for all, and what the main
agent is told where it can be told something; the rest is what each ships.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))
from model_server import page

MODEL = "claude-sonnet-5"
KEY = "sk-bench"
MAIN_WORDS = "You answer questions. You delegate every search."
SUB_WORDS = "You search an archive with the tool lookup, page by page, and report what you found."
SUB_ABOUT = "Searches the archive."
LOOKUP_ABOUT = "Gives a page of the archive."


class Kinfold:
    """Ours; `sandboxed` with the container that it is made for, else with its stand-in that is no sandbox."""

    def __init__(self, url: str, *, sandboxed: bool) -> None:
        self.url = url
        self.sandboxed = sandboxed
        self.stack = AsyncExitStack()

    async def open(self) -> None:
        from pydantic import BaseModel

        from kinfold.definitions import SubagentDefinition
        from kinfold.models.anthropic import AnthropicModel
        from kinfold.sandbox import DockerProvider, LocalProvider, SandboxSpec
        from kinfold.tools.base import Tool, ToolContext, ToolOutcome

        class Page(BaseModel):
            page: int

        async def look(context: ToolContext, arguments: Page) -> ToolOutcome:
            return ToolOutcome.of(page(arguments.page))

        self.state = self.stack.enter_context(tempfile.TemporaryDirectory())
        provider = DockerProvider if self.sandboxed else LocalProvider
        self.options: dict[str, Any] = {
            "provider": await self.stack.enter_async_context(provider(state_dir=Path(self.state))),
            "state_dir": self.state,
            "model": AnthropicModel(MODEL, api_key=KEY, base_url=self.url),
            "spec": SandboxSpec(keep=0),
            "tools": [Tool(key="lookup", words=LOOKUP_ABOUT, arguments=Page, call=look)],
            "definitions": [
                SubagentDefinition(
                    type="research", description=SUB_ABOUT, instructions=SUB_WORDS, tool_keys=("lookup",)
                )
            ],
        }

    async def run(self, prompt: str) -> str:
        from kinfold import ParentTask

        async with ParentTask(prompt, **self.options) as task:
            await task.start()
            await task.wait()
        if task.result.status != "completed":
            raise RuntimeError(f"{task.result.ended_by}: {task.result.error}")
        return task.result.summary

    async def close(self) -> None:
        await self.stack.aclose()


class DeepAgents:
    """deepagents, with its own default tools and its files kept in its state."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self) -> None:
        from deepagents import create_deep_agent
        from langchain_anthropic import ChatAnthropic

        def lookup(page: int) -> str:
            """Gives a page of the archive."""
            return look(page)

        look = page
        options: dict[str, Any] = {"model": MODEL, "api_key": KEY, "base_url": self.url, "max_tokens": 16_384}
        researcher: Any = {
            "name": "research", "description": SUB_ABOUT, "system_prompt": SUB_WORDS, "tools": [lookup],
        }  # fmt: skip
        self.agent: Any = create_deep_agent(
            model=ChatAnthropic(**options), tools=[], system_prompt=MAIN_WORDS, subagents=[researcher]
        )

    async def run(self, prompt: str) -> str:
        done = await self.agent.ainvoke({"messages": [{"role": "user", "content": prompt}]})
        content = done["messages"][-1].content
        return content if isinstance(content, str) else "".join(block.get("text", "") for block in content)

    async def close(self) -> None:
        pass


class OpenaiAgents:
    """openai-agents, with an agent as a tool; its tracing, which sends data away, is off."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def open(self) -> None:
        from agents import (
            Agent,
            OpenAIChatCompletionsModel,
            Runner,
            function_tool,
            set_tracing_disabled,
        )
        from openai import AsyncOpenAI

        set_tracing_disabled(True)
        self.client: Any = AsyncOpenAI(api_key=KEY, base_url=f"{self.url}/v1")
        model: Any = OpenAIChatCompletionsModel(model=MODEL, openai_client=self.client)
        look = page

        def lookup(page: int) -> str:
            return look(page)

        tools: Any = [function_tool(lookup, description_override=LOOKUP_ABOUT)]
        researcher: Any = Agent(name="research", instructions=SUB_WORDS, tools=tools, model=model)
        tool = researcher.as_tool(tool_name="research", tool_description=SUB_ABOUT, max_turns=30)
        self.agent: Any = Agent(name="main", instructions=MAIN_WORDS, tools=[tool], model=model)
        self.runner: Any = Runner

    async def run(self, prompt: str) -> str:
        done = await self.runner.run(self.agent, prompt)
        return str(done.final_output)

    async def close(self) -> None:
        await self.client.close()


def system(name: str, url: str) -> Any:
    """By its name."""
    match name:
        case "kinfold":
            return Kinfold(url, sandboxed=False)
        case "kinfold-in-container":
            return Kinfold(url, sandboxed=True)
        case "deepagents":
            return DeepAgents(url)
        case "openai-agents":
            return OpenaiAgents(url)
    raise ValueError(f"no such system: {name}")


async def one_run(made: Any, prompt: str) -> dict[str, object]:
    """How a run went."""
    before = time.perf_counter()
    try:
        text = await made.run(prompt)
    except Exception as error:  # noqa: BLE001 - whatever a system raises is the answer
        return {"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}
    seconds = time.perf_counter() - before
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    return {"seconds": seconds, "text": text, "memory": resident}


async def main(name: str, url: str) -> None:
    """Run once for each line."""
    # What a system prints must not be taken for an answer.
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    prompt = sys.stdin.readline().strip()
    made = system(name, url)
    try:
        await made.open()
    except Exception as error:  # noqa: BLE001 - the reason why it cannot be compared
        out.write(json.dumps({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}) + "\n")
        return
    try:
        while await asyncio.to_thread(sys.stdin.readline):
            out.write(json.dumps(await one_run(made, prompt)) + "\n")
    finally:
        await made.close()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
