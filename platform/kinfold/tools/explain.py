"""Says in short words what is wrong with a call's arguments, so that the model can put it right at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ValidationError

from kinfold.definitions.aliases import did_you_mean

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

MAX_ERRORS = 8
MAX_SHOWN = 60
"""Characters of a wrong value that are shown back."""


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
