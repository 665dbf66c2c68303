"""Whether a request is the one that was recorded, and in which lines it is not.

Requests are compared as texts, after what differs in every run is put out of the way. That is, in this order:

- ids that kinfold and the services make (`task_…`, `run_…`, `sbx_…`, `exec_…`, `msg_…`, `toolu_…`);
- dates and times of day: ISO 8601 and RFC 3339, as `date` and as `ls -l` write them; seconds since 1970 (ten digits);
- names that are made at random in a directory for temporary files: `tmpXXXXXXXX`, `tmp.XXXXXXXXXX`, `pytest-N`;
- durations: a number with a unit of time (`0.12s`, `3 ms`, `2 minutes`);
- addresses in memory (`0x…`), and process ids that say so (`pid 123`);
- of a `task` result the files that may be another run's doing: who was faster decides what stands there;
- how many bytes a result left out, for durations in it are of different lengths.

Ids of tool calls, who asks (label, type, step) and pictures' bytes beyond their digest are not compared. Everything
else is: the instructions, the tools and their words, the settings, each message. Further rules can be given.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

Rule = tuple[str, str]
"""A regular expression, and what stands in its place in both texts."""

_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)"
_CLOCK = r"\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?"
_REST = rf"(?:[ ,]+\d{{4}})?[ ,]+{_CLOCK}(?: +[A-Z]{{3,5}})?(?: +\d{{4}})?"
RULES: tuple[Rule, ...] = (
    (r"\b(task|run|sbx|exec|msg|toolu)_[0-9A-Za-z][0-9A-Za-z_]{5,}", r"\1_#"),
    (rf"\b\d{{4}}-\d\d-\d\d(?:[T ]{_CLOCK}(?: ?(?:Z|[+-]\d\d:?\d\d))?)?", "#date"),
    (rf"\b{_DAY},? +(?:{_MONTH} +\d{{1,2}}|\d{{1,2}} +{_MONTH}){_REST}", "#date"),
    (rf"\b{_MONTH} +\d{{1,2}} +(?:{_CLOCK}|\d{{4}})\b", "#date"),
    (r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b", "#time"),
    (r"\b1[6-9]\d{8}(?:\.\d+)?\b", "#date"),
    (r"\btmp[0-9a-z_]{8}\b|\btmp\.[0-9A-Za-z]{6,12}\b", "tmp#"),
    (r"\bpytest-\d+\b", "pytest-#"),
    (r"\b\d+(?:\.\d+)? ?(?:ns|us|µs|ms|s|secs?|seconds?|mins?|minutes?)\b", "#s"),
    (r"\b0x[0-9a-fA-F]{4,}\b", "0x#"),
    (r"(?i)\b(pid)([ =:]+)\d+\b", r"\1\2#"),
    (r"(?m)^files changed meanwhile by a program of one of .*\n(?:- .*\n?)*", ""),
    (r"\[… [\d,]+ (?:of [\d,]+ )?(bytes|characters)\b", r"[… # \1"),
)  # fmt: skip
MOST_LINES = 40
"""Of a diff that is shown."""
_WIDTH = 160
"""A longer line is compared and shown in pieces."""
_WHO = ("purpose", "run_kind", "label", "subagent_type", "step")


def lines_of(model: str, request: dict[str, Any], rules: Sequence[Rule]) -> list[str]:
    """A request (JSON data) as the lines that are compared."""
    text = "\n".join(_rendered(model, request))
    for pattern, instead in rules:
        text = re.sub(pattern, instead, text)
    return [piece for line in text.split("\n") for piece in _pieces(line)]


def diff(recorded: Sequence[str], asked: Sequence[str]) -> str:
    """What was recorded (`-`) and what this run asks (`+`), with two lines around; cut where it is long."""
    found = list(difflib.unified_diff(recorded, asked, "recorded", "this run", n=2, lineterm=""))
    more = [f"… and {len(found) - MOST_LINES} lines more"] if len(found) > MOST_LINES else []
    return "\n".join([*found[:MOST_LINES], *more])


def _rendered(model: str, request: dict[str, Any]) -> Iterator[str]:
    yield f"model: {model}"
    for name, value in request.items():
        if name not in (*_WHO, "system", "messages", "tools"):
            yield f"{name}: {json.dumps(value, sort_keys=True)}"
    for text in request["system"]:
        yield "system:"
        yield text
    for tool in sorted(request["tools"], key=lambda tool: str(tool["name"])):
        yield f"tool {tool['name']}: {json.dumps(tool['input_schema'], sort_keys=True, ensure_ascii=False)}"
        yield tool["description"]
    for number, message in enumerate(request["messages"], 1):
        for block in message["content"]:
            yield from _block(f"message {number}, {message['role']}", block)


def _block(where: str, block: dict[str, Any]) -> Iterator[str]:
    match block["type"]:
        case "text":
            yield f"{where}: text"
            yield block["text"]
        case "image":
            yield f"{where}: image {hashlib.sha256(block['data'].encode()).hexdigest()}"
        case "tool_use":
            wrong = f" ({block['input_error']})" if block.get("input_error") else ""
            yield f"{where}: call of {block['name']}{wrong}"
            yield json.dumps(block["input"], sort_keys=True, ensure_ascii=False)
        case "tool_result":
            yield f"{where}: result{' (an error)' if block['is_error'] else ''}"
            for inner in block["content"]:
                yield from _block(where, inner)
        case kind:
            yield f"{where}: {kind}"
            yield json.dumps({name: value for name, value in block.items() if name != "id"}, sort_keys=True)


def _pieces(line: str) -> Iterator[str]:
    yield line[:_WIDTH]
    for start in range(_WIDTH, len(line), _WIDTH):
        yield line[start : start + _WIDTH]
