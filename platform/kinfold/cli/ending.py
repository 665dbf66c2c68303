"""How a command ends: exit codes, and an error as two lines on standard error."""

from __future__ import annotations

import codecs
import io
import os
import select
import sys
from typing import TYPE_CHECKING, NoReturn, TextIO

from kinfold.errors import ConfigError, KinfoldError, ModelError, NotFound, SandboxError, StoreError

if TYPE_CHECKING:  # pydantic would double the time that `--help` takes
    from kinfold.messages import EndedBy, Status

EXIT_OK, EXIT_OTHER, EXIT_CONFIG, EXIT_SANDBOX, EXIT_MODEL = 0, 1, 2, 3, 4


def exit_code_of(error: BaseException) -> int:
    """The exit code of an error: 2 the operator's, 3 the sandbox's, 4 the model's, else 1."""
    match error:
        case ConfigError() | NotFound() | StoreError():
            return EXIT_CONFIG
        case SandboxError():
            return EXIT_SANDBOX
        case ModelError():
            return EXIT_MODEL
        case _:
            return EXIT_OTHER


def exit_code_of_ending(status: Status, ended_by: EndedBy) -> int:
    """The exit code of a task that ended."""
    if status == "completed":
        return EXIT_OK
    return {"sandbox_lost": EXIT_SANDBOX, "model_error": EXIT_MODEL}.get(ended_by, EXIT_OTHER)


def printable(text: str) -> str:
    """Text of unknown origin for a terminal: control and bidirectional characters shown, not obeyed."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def one_line(text: str) -> str:
    """As `printable`, with line breaks shown too: a name that holds one must not look like a line of ours."""
    return printable(text).replace("\n", "\\n")


class Outlet:
    """Where a program's own bytes go: into a file or a pipe as they are, onto a terminal escaped."""

    def __init__(self, target: TextIO) -> None:
        self._target = target
        self._text: io.IncrementalNewlineDecoder | None = None
        if target.isatty():
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            self._text = io.IncrementalNewlineDecoder(decoder, translate=True)

    def write(self, data: bytes, *, final: bool = False) -> None:
        """Show `data` now; a character that is not whole yet waits for its rest, until `final`."""
        if self._text is None:
            self._target.buffer.write(data)
        else:
            self._target.write(printable(self._text.decode(data, final=final)))
        self._target.flush()


def say_error(message: str, hint: str = "") -> None:
    """`error: …` and on its own line `hint: …` on standard error; further lines of a message are indented."""
    print(f"error: {_indented(message)}", file=sys.stderr)
    if hint:
        print(f"hint: {_indented(hint)}", file=sys.stderr)


def _indented(text: str) -> str:
    return printable(text.strip()).replace("\n", "\n  ")


def expected_error(error: BaseException) -> KinfoldError | None:
    """The kinfold error in `error`, also when a task group wrapped it; None: a bug."""
    if isinstance(error, KinfoldError):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = [expected_error(inner) for inner in error.exceptions]
        return found[0] if found and all(found) else None
    return None


def exit_with(error: Exception) -> NoReturn:
    """End the process: an expected error with its two lines and code, a bug with its traceback."""
    if _reader_is_gone(error):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # else the interpreter's last flush complains
        sys.exit(EXIT_OTHER)
    known = expected_error(error)
    if known is None:
        raise error
    say_error(known.message, known.hint)
    sys.exit(exit_code_of(known))


def _reader_is_gone(error: BaseException) -> bool:
    """Whether standard output leads nowhere any more (`kinfold … | head`), which is no fault worth a word."""
    if isinstance(error, BaseExceptionGroup):
        return all(_reader_is_gone(inner) for inner in error.exceptions)
    if not isinstance(error, BrokenPipeError):
        return False
    output = select.poll()  # the engine's socket breaks with the same error
    output.register(sys.stdout.fileno(), 0)
    return bool(output.poll(0))
