"""All tools by key, which of them an agent gets, and the one place where a model's mistake becomes a failed result."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import anyio
from pydantic import ValidationError

from kinfold.definitions import SubagentDefinition
from kinfold.definitions.aliases import did_you_mean
from kinfold.errors import ConfigError, PathError, ToolError
from kinfold.events import ToolEnded, ToolStarted
from kinfold.messages import TextBlock, ToolCall, ToolSpec
from kinfold.tools import (
    apart,
    ask_user_question,
    bash,
    complete,
    confirm,
    edit_file,
    explain,
    glob,
    grep,
    list_dir,
    read_file,
    schema,
    spill,
    task,
    todo_write,
    words,
    write_file,
)
from kinfold.tools.base import Completion, Recover, Tool, ToolContext, ToolOutcome

SHIPPED: Mapping[str, Tool] = MappingProxyType(
    {
        tool.key: tool
        for tool in (
            bash.TOOL,
            read_file.TOOL,
            write_file.TOOL,
            edit_file.TOOL,
            list_dir.TOOL,
            glob.TOOL,
            grep.TOOL,
            todo_write.TOOL,
            complete.TOOL,
            ask_user_question.TOOL,
            confirm.TOOL,
        )
    }
)
"""Every tool that needs nothing to be built; `task` is built from a task's definitions."""
ASKING = frozenset({ask_user_question.TOOL.key, confirm.TOOL.key})
"""For a main agent that has somebody to ask."""
KEYS = frozenset(SHIPPED) | {task.KEY}
"""Every key that a definition may name and a user's own tool may not take."""

INTERRUPTED = ToolOutcome.of(words.read("outcome_unknown"), is_error=True)
"""Of a call whose process died, where nobody can find out what it did."""
PREVIEW = 500
"""Characters of a result that its event shows."""
_KEY = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def select(
    keys: Iterable[str],
    *,
    definitions: Iterable[SubagentDefinition] = (),
    extra: Iterable[Tool] = (),
    task_extras: bool = False,
) -> dict[str, Tool]:
    """The tools of one agent, by key. `complete` is always among them; `task` when it is listed and has definitions.

    `extra` are the user's own tools; a listed key selects one. Raises `ConfigError` for an unknown key and an own
    tool whose key is taken or not usable.
    """
    own = _own(extra)
    chosen: dict[str, Tool] = {}
    for key in keys:
        if key == task.KEY:
            built = task.build(tuple(definitions), extras=task_extras)
            if built is not None:
                chosen[key] = built
        elif key in own or key in SHIPPED:
            chosen[key] = own.get(key) or SHIPPED[key]
        else:
            near = did_you_mean(key, [*KEYS, *own])
            known = ", ".join(sorted({*KEYS, *own}))
            raise ConfigError(f"there is no tool {key!r}{near}", hint=f"tool keys are: {known}")
    chosen[complete.TOOL.key] = complete.TOOL
    return chosen


def specs(tools: Mapping[str, Tool]) -> tuple[ToolSpec, ...]:
    """What the model is told of these tools, sorted by name: the same bytes in every request of a run."""
    return tuple(
        ToolSpec(name=key, description=tools[key].words, input_schema=schema.of(tools[key].arguments))
        for key in sorted(tools)
    )


async def dispatch(
    tools: Mapping[str, Tool], call: ToolCall, context: ToolContext, *, recover: bool = False
) -> ToolOutcome | Completion:
    """Run one call and answer it, with its `tool_started` and `tool_ended` events.

    `recover`: the process died that ran it; see `Tool.recover`. The outcome that says so is `INTERRUPTED`.

    An unknown tool, arguments that do not fit, `ToolError` and `PathError` become a failed outcome. Everything else,
    a `SandboxError` first of all, is not the model's to mend and passes through.
    """
    fields = dict(context.event_fields)
    if fields.get("tool_call_id") is None:
        fields["tool_call_id"] = call.id
    started = time.monotonic()
    clean = _clean(call.input)
    await context.emit(
        ToolStarted(tool=call.name, call_id=call.id, input=call.input if clean is None else clean, **fields)
    )
    try:
        result = await _answer(tools, call, context, recover) if clean is None else _unsayable(call)
    except BaseException as error:
        with anyio.CancelScope(shield=True):
            await context.emit(_ended(call, True, started, _cut_short(error, context), fields))
        raise
    failed = isinstance(result, ToolOutcome) and result.is_error
    text = _text(result)
    if failed:
        context.state.last_tool_error = f"{call.name}: {text[:PREVIEW]}"
    await context.emit(_ended(call, failed, started, text, fields))
    return result


async def _answer(
    tools: Mapping[str, Tool], call: ToolCall, context: ToolContext, recover: bool
) -> ToolOutcome | Completion:
    tool = tools.get(call.name)
    if tool is None:
        near = did_you_mean(call.name, tools)
        return _failed(f"There is no tool {call.name[:64]!r} here{near}", f"your tools are: {', '.join(sorted(tools))}")
    if call.input_error is not None:
        return _failed(f"The input of this {tool.key} call was not run: {call.input_error}", "send the call again")
    try:
        arguments = tool.arguments.model_validate(call.input)
    except ValidationError as error:
        return _failed(explain.invalid_arguments(tool.key, tool.arguments, error))
    try:
        result = await _call(tool, context, arguments, tool.recover if recover else tool.call) or INTERRUPTED
    except ToolError as error:
        result = _failed(error.message, error.hint)
    except PathError as error:
        result = _failed(error.message, explain.path_hint(error))
    if isinstance(result, Completion) or result is INTERRUPTED:
        return result
    return await spill.fit(result, tool=tool.key, budget=tool.result_budget, context=context)


async def _call(
    tool: Tool, context: ToolContext, arguments: Any, how: Recover | None
) -> ToolOutcome | Completion | None:
    if how is None:
        return None
    if (tool.key in SHIPPED and tool.key != bash.TOOL.key) or tool.key == task.KEY:
        return await how(context, arguments)
    with context.writers.program(context.run_id) as goes_on:
        if tool.key in SHIPPED:
            result = await how(context, arguments)
        else:
            result = await apart.run(how(context, arguments), f"the tool {tool.key!r}")
        goes_on[0] = bool(context.state.exec_offsets)
    return result


def _clean(arguments: dict[str, Any]) -> dict[str, Any] | None:
    """None when every string is valid text; else the input with `?` for the halves of surrogate pairs in it.

    JSON can spell such a half, and nothing after us can: no file, no event, no request.
    """
    text = json.dumps(arguments, ensure_ascii=False, default=str)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        clean: dict[str, Any] = json.loads(text.encode("utf-8", "replace"))
        return clean
    return None


def _cut_short(error: BaseException, context: ToolContext) -> str:
    """What the event of a call says that never answered."""
    if isinstance(error, anyio.get_cancelled_exc_class()):
        return f"ended before it answered: {context.why_cut()}"
    return f"{type(error).__name__}: {error}"


def _unsayable(call: ToolCall) -> ToolOutcome:
    return _failed(
        f"The input of this {call.name[:64]} call was not run: it holds half of a surrogate pair, which is not text",
        "write the character itself",
    )


def _failed(message: str, hint: str = "") -> ToolOutcome:
    return ToolOutcome.of(f"{message}\nhint: {hint}" if hint else message, is_error=True)


def _text(result: ToolOutcome | Completion) -> str:
    if isinstance(result, Completion):
        return result.summary
    return "\n".join(
        block.text if isinstance(block, TextBlock) else f"[{block.media_type}]" for block in result.content
    )


def _ended(call: ToolCall, is_error: bool, started: float, text: str, fields: dict[str, Any]) -> ToolEnded:
    return ToolEnded(
        tool=call.name,
        call_id=call.id,
        is_error=is_error,
        duration=time.monotonic() - started,
        preview=text[:PREVIEW],
        **fields,
    )


def _own(extra: Iterable[Tool]) -> dict[str, Tool]:
    own: dict[str, Tool] = {}
    for tool in extra:
        if not _KEY.fullmatch(tool.key):
            raise ConfigError(f"a tool's key cannot be {tool.key!r}", hint="use 1 to 64 letters, digits, '_' and '-'")
        if tool.key in KEYS or tool.key in own:
            raise ConfigError(f"the tool key {tool.key!r} is taken", hint="give your own tool another key")
        own[tool.key] = tool
    return own
