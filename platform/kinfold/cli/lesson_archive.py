"""The lesson's world: a small film archive with a `search` tool, and a scripted reader that goes by what it reads."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from kinfold.messages import Message, TextBlock, ToolCall, ToolResult
from kinfold.models import estimate
from kinfold.models.base import ModelRequest
from kinfold.models.scripted import ScriptedCall, ScriptedReply
from kinfold.tools.base import Tool, ToolContext, ToolOutcome

FACTS = {
    "Aurora Run": 'Index entry. The primary title is "Aurora Run (2024)", the remake. See also: "Aurora Run (2011)".',
    "Aurora Run (2011)": 'Feature film. Directed by Mara Voss (born 1974). Produced by "Northlight".',
    "Aurora Run (2024)": 'Feature film, a remake. Directed by Ilse Hartog (born 1989). Produced by "Tidewater".',
    "Northlight": 'Ambiguous. There are: "Northlight Pictures", "Northlight Films".',
    "Northlight Pictures": 'Film studio. Founded in 1987. Produced "Aurora Run (2011)".',
}
LENGTHS = {
    "Aurora Run": 420, "Aurora Run (2011)": 558, "Aurora Run (2024)": 560, "Northlight": 378,
    "Northlight Pictures": 678,
}  # fmt: skip
"""Tokens of each page, about."""
NOTES = (
    "The reel was catalogued from the depot's card index and compared with the shelf list.",
    "Two prints are kept at nine degrees; one of them has a splice in its fourth act.",
    "A curator's remark says that the poster was drawn by hand and lent to a museum by the sea.",
    "Reviews of the time praise the winter light and are of two minds about the music.",
)


def archive(lengths: Mapping[str, int] = LENGTHS) -> dict[str, str]:
    """The pages by title: each one's facts, and notes of the archive until it has about so many tokens."""
    pages = {}
    for title, facts in FACTS.items():
        text = f"{title}\n{facts}"
        for note in itertools.cycle(NOTES):
            if estimate.text_tokens(text) + estimate.text_tokens(note) // 2 >= lengths[title]:
                break
            text += f"\n{note}"
        pages[title] = text
    return pages


class Query(BaseModel):
    """What `search` takes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    query: str = Field(min_length=1, description="A title or a name, as the archive writes it.")


def search_tool(pages: Mapping[str, str]) -> Tool:
    """The archive's one tool."""

    async def search(context: ToolContext, arguments: Any) -> ToolOutcome:
        found = pages.get(arguments.query)
        return ToolOutcome.of(found or f"The archive has nothing under {arguments.query!r}.", is_error=found is None)

    return Tool(key="search", words="Look up a page of the film archive.", arguments=Query, call=search)


def reply(request: ModelRequest) -> ScriptedReply:
    """The next turn of whoever asks: delegate where that is possible, else follow what the last page says."""
    asked = "\n".join(message.text for message in request.messages if message.role == "user")
    can_delegate = any(tool.name == "task" for tool in request.tools)
    results = [block for message in request.messages for block in message.content if isinstance(block, ToolResult)]
    if not can_delegate:
        return _read(asked, [result.text for result in results], main=request.run_kind == "main")
    if not results:
        return ScriptedReply(calls=(ScriptedCall(tool="task", input=_delegation(asked)),))
    return ScriptedReply(text=_sentence(results[0].text.rpartition("summary:\n")[2].strip()))


def _delegation(asked: str) -> dict[str, str]:
    """The second prompt leaves out what the user took care to say: that is the lesson."""
    if "studio" in asked:
        prompt = "Find the founding year of the studio that produced the original 2011 film Aurora Run."
    else:
        prompt = "Find the birth year of the director of the film Aurora Run."
    return {"subagent_type": "research", "description": "Search the film archive", "prompt": prompt}


def _read(asked: str, pages: list[str], *, main: bool) -> ScriptedReply:
    if not pages:
        return _search("Aurora Run")
    page = pages[-1]
    title, _, facts = page.partition("\n")
    quoted = re.findall(r'"([^"]+)"', facts)
    if (founded := re.search(r"Founded in (\d{4})", facts)) is not None:
        return _conclude(f"{title} — founded in {founded[1]}.", main=main)
    director = re.search(r"Directed by ([\w ]+) \(born (\d{4})\)", facts)
    if director is not None and "director" in asked:
        return _conclude(f"{director[1]} — born in {director[2]}.", main=main)
    if facts.startswith("Index entry"):
        original = "original" in asked or "2011" in asked
        return _search(quoted[1] if original else quoted[0])
    return _search(quoted[0])


def _search(query: str) -> ScriptedReply:
    return ScriptedReply(calls=(ScriptedCall(tool="search", input={"query": query}),))


def _conclude(found: str, *, main: bool) -> ScriptedReply:
    return ScriptedReply(text=_sentence(found) if main else found)


def _sentence(found: str) -> str:
    """The answer to the user, from a line such as `Northlight Pictures — founded in 1987.`"""
    name, _, fact = found.partition(" — ")
    kind = "studio" if fact.startswith("founded") else "director"
    return f"The {kind} was {name}, {fact}"


def card_text(message: Message) -> int:
    """The tokens of one turn's cards: what was said, asked of a tool, and answered; no framing, no date, no facts."""
    total = 0
    for block in message.content:
        match block:
            case TextBlock() if not block.text.startswith("Today's date:"):
                total += estimate.block_tokens(block)
            case ToolCall():
                shown = {key: value for key, value in block.input.items() if key in ("prompt", "query")}
                total += estimate.block_tokens(block.model_copy(update={"input": shown}))
            case ToolResult():
                total += estimate.BLOCK_OVERHEAD + estimate.text_tokens(block.text.rpartition("summary:\n")[2])
    return total
