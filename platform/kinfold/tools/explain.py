"""Says in short words what is wrong with a call's arguments or paths, so that the model can put it right at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from kinfold.definitions.aliases import did_you_mean
from kinfold.errors import PathError, PathReason
from kinfold.sandbox.base import WORKSPACE

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_ERRORS = 8
MAX_SHOWN = 60
"""Characters of a wrong value that are shown back."""


PATH_HINTS: dict[PathReason, str] = {
    "path_escape": f"only what lies in {WORKSPACE} can be used, links included",
    "not_found": "list_dir or glob shows what is there",
    "is_directory": "name a file in it; list_dir shows them",
    "not_a_directory": "name the directory that it lies in",
    "not_regular": "pipes, sockets and devices are no files; a program in bash may use them",
    "permission_denied": "its mode forbids it; bash can chmod what is your own",
    "too_large": "look at a part of it by a program in bash",
    "conflict": "somebody else changed it: read it again and decide anew",
    "invalid": "use a relative path of ordinary names",
    "no_space": "remove what is no longer needed",
}
"""What to do where whoever raised the error had nothing better to say."""


def path_hint(error: PathError) -> str:
    """One line on what to do instead."""
    return error.hint or PATH_HINTS[error.reason]


def invalid_arguments(tool: str, arguments: type[BaseModel], error: ValidationError) -> str:
    """One line per fault, naming the field and what is allowed."""
    errors = error.errors(include_url=False, include_context=True)
    lines = [f"Invalid arguments for {tool}:"]
    lines += [f"- {_line(detail, arguments)}" for detail in errors[:MAX_ERRORS]]
    if len(errors) > MAX_ERRORS:
        lines.append(f"- and {len(errors) - MAX_ERRORS} more")
    return "\n".join(lines)


def _line(detail: ErrorDetails, arguments: type[BaseModel]) -> str:
    where = ".".join(str(part) for part in detail["loc"])
    context = detail.get("ctx", {})
    match detail["type"]:
        case "missing":
            return f"`{where}` is missing"
        case "extra_forbidden":
            return _unknown(where, detail["loc"], arguments)
        case "literal_error" | "enum":
            near = did_you_mean(str(detail["input"]), _quoted(str(context["expected"])))
            return f"`{where}` must be one of {context['expected']} (got {_shown(detail['input'])}){near}"
        case "string_too_long":
            length = len(detail["input"])
            return f"`{where}` may have at most {context['max_length']} characters (has {length})"
        case "string_too_short":
            return f"`{where}` must not be empty"
        case "too_long":
            return f"`{where}` may have at most {context['max_length']} items (has {context['actual_length']})"
        case "value_error":
            reason = str(context["error"])
            return f"`{where}` {reason}" if where else reason
        case _:
            message = detail["msg"].removeprefix("Input ")
            message = message[:1].lower() + message[1:]
            return f"`{where}` {message} (got {_shown(detail['input'])})" if where else message


def _unknown(where: str, loc: tuple[int | str, ...], arguments: type[BaseModel]) -> str:
    if len(loc) > 1:
        return f"`{where}` is not known"
    names = list(arguments.model_fields)
    there_are = ", ".join(f"`{name}`" for name in names) or "none"
    return f"`{where}` is not an argument; there are: {there_are}{did_you_mean(where, names)}"


def _quoted(expected: str) -> list[str]:
    return expected.split("'")[1::2]


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}…"
