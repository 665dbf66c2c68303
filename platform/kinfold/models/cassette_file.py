"""The file of a cassette: what models were asked and how they answered, one JSON object a line, in ASCII.

    {"format": "kinfold-cassette", "version": 1}
    {"part": 1, "value": "You are…"}                                  a system text, a message, or a list of tools
    {"exchange": 1, "model": "claude-…", "request": {…}, "stream": […]}
    {"end": {"exchanges": 1, "sha256": "…"}}                          the digest of every byte before this line

Parts are numbered from 1 and stand before who names them: a conversation that grows by two messages a step is kept
once, not once a step. A `request` has the fields of `ModelRequest`, with part numbers in `system` and `messages`, and
one number (or null) for `tools`. A `stream` has, in the order in which they came: `{"text": …}`, `{"thinking": …}`,
`{"retry": {…}}`, and at its end `{"reply": {…}}`, `{"error": {…}}` or `{"left": true}` (whoever asked went away).
Fields are those of the classes of `models/base.py` and of `ModelError`. A change that this page does not describe is
a new version; who reads refuses what is newer. The file appears under its name only whole: it is written beside it as
`NAME.partial`, mode 0600.

Hidden are, as `[secret]`: what the caller's `hide` finds, the models' own keys, and texts that look like keys.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kinfold.errors import ConfigError, ModelError
from kinfold.messages import Usage
from kinfold.models.base import ModelEvent, ModelRequest, Reply, RetryNotice, TextChunk, ThinkingChunk

FORMAT = "kinfold-cassette"
VERSION = 1
HIDDEN = "[secret]"
_AGAIN = "record it again with `--record FILE`"
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC

Hide = Callable[[str], str]
"""A text, to the same text without secrets."""

KEY_SHAPES = re.compile(
    r"\bsk-(?:(?:ant|proj|svcacct|or)-[A-Za-z0-9_-]{20,}|[A-Za-z0-9]{32,})"
    r"|\b(?:gh[opsur]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|glpat-[A-Za-z0-9_-]{20,})"
    r"|\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"
    r"|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    r"|\bAIza[A-Za-z0-9_-]{35}"
    r"|(?<![\w-])eyJ[A-Za-z0-9_-]{10,2000}\.eyJ[A-Za-z0-9_-]{10,8000}\.[A-Za-z0-9_-]{10,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----(?:\s|\\n)+[A-Za-z0-9+/=]{10}"
    r"(?:[A-Za-z0-9+/=\s]|\\n)*(?:-----END [A-Z ]*PRIVATE KEY-----)?"
)
"""Keys of well-known services, tokens and private keys: they are hidden though nobody named them.

No form is looked for to the end of a text from each of its beginnings: a hostile text would take minutes.
"""

REQUEST = TypeAdapter(ModelRequest)
_ITEMS: dict[str, TypeAdapter[Any]] = {
    "text": TypeAdapter(str), "thinking": TypeAdapter(str), "retry": TypeAdapter(RetryNotice),
    "reply": TypeAdapter(Reply), "error": TypeAdapter(dict[str, Any]), "left": TypeAdapter(bool),
}  # fmt: skip
_KEPT_WORDS = frozenset({"type", "id", "tool_use_id", "media_type", "role"})
"""Fields of the format itself: a secret that looks like their value stays, for nothing could be read without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One recorded request and how it was answered."""

    number: int
    model: str
    request: dict[str, Any]
    """A `ModelRequest` as JSON data, secrets hidden."""
    stream: tuple[ModelEvent | ModelError | None, ...]
    """None, last: whoever asked went away before the reply was whole."""


class Writer:
    """A cassette being recorded. Raises `ConfigError` where the file is there already or cannot be made."""

    def __init__(self, path: Path, *, hide: Hide = str) -> None:
        self.path = path.expanduser().absolute()
        self.failure: str | None = None
        """Why recording stopped; what was asked goes on all the same, and no file appears."""
        self._hide = hide
        self._literal: set[str] = set()
        self._parts: dict[str, int] = {}
        self._exchanges = 0
        self._digest = hashlib.sha256()
        self._partial = self.path.with_name(self.path.name + ".partial")
        if os.path.lexists(self.path):
            raise ConfigError(f"{path} is there already", hint="record into a new file, or remove this one first")
        try:
            self._fd: int | None = os.open(self._partial, _NEW, 0o600)
        except FileExistsError:
            hint = f"another task records into it now, or one was killed: then remove {self._partial}"
            raise ConfigError(f"{self._partial} is there already", hint=hint) from None
        except OSError as error:
            hint = "name a file in a directory that can be written"
            raise ConfigError(f"{path} cannot be recorded into: {error.strerror}", hint=hint) from None
        self._write([{"format": FORMAT, "version": VERSION}])

    def also_hide(self, secrets: Sequence[str]) -> None:
        """Hide these, too."""
        self._literal.update(secret for secret in secrets if secret)

    def hidden(self, text: str) -> str:
        """The text as the file has it."""
        return hidden(text, self._hide, self._literal)

    def add(self, model: str, request: ModelRequest, heard: Sequence[ModelEvent | ModelError]) -> None:
        """Keep one exchange, whole; never raises: what fails is in `failure`."""
        try:
            self._add(model, request, heard)
        except Exception as error:  # noqa: BLE001 - a recording that fails must not end what it records
            self.failure = self.failure or f"{type(error).__name__}: {error}"

    def _add(self, model: str, request: ModelRequest, heard: Sequence[ModelEvent | ModelError]) -> None:
        data = hidden_request(request, self.hidden)
        lines: list[dict[str, Any]] = []
        for name in ("system", "messages"):
            data[name] = [self._part(value, lines) for value in data[name]]
        data["tools"] = self._part(data["tools"], lines) if data["tools"] else None
        self._exchanges += 1
        stream = _stream_data(heard, self.hidden)
        lines.append({"exchange": self._exchanges, "model": model, "request": data, "stream": stream})
        self._write(lines)

    def close(self) -> str | None:
        """End the file and give it its name. What went wrong in all, or None; safe to call twice."""
        if self._fd is None:
            return self.failure
        if not self._exchanges:
            self.failure = self.failure or "no model was asked"
        digest = self._digest.hexdigest()
        self._write([{"end": {"exchanges": self._exchanges, "sha256": digest}}])
        try:
            os.fsync(self._fd)
            if self.failure is None:
                os.link(self._partial, self.path)  # unlike a rename, it replaces nothing that came meanwhile
        except OSError as error:
            self.failure = self.failure or str(error.strerror)
        finally:
            os.close(self._fd)
            self._fd = None
            self._partial.unlink(missing_ok=True)
        return self.failure

    def _part(self, value: object, lines: list[dict[str, Any]]) -> int:
        text = json.dumps(value)
        number = self._parts.get(text)
        if number is None:
            number = self._parts[text] = len(self._parts) + 1
            lines.append({"part": number, "value": value})
        return number

    def _write(self, lines: Sequence[dict[str, Any]]) -> None:
        if self.failure is not None or self._fd is None:
            return
        data = b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)
        self._digest.update(data)
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError as error:
            self.failure = str(error.strerror)


def hidden(text: str, hide: Hide, literal: Sequence[str] | set[str] = ()) -> str:
    """The text without what `hide` finds, without these, and without what looks like a key.

    What is hidden already stays as it is: a replayed reply comes back in the next request, and a secret may be a word
    of `HIDDEN`.
    """
    return HIDDEN.join(_hidden(piece, hide, literal) for piece in text.split(HIDDEN))


def _hidden(text: str, hide: Hide, literal: Sequence[str] | set[str]) -> str:
    for secret in sorted(literal, key=len, reverse=True):
        text = text.replace(secret, HIDDEN)
    return KEY_SHAPES.sub(HIDDEN, hide(text))


def hidden_request(request: ModelRequest, hide: Hide) -> dict[str, Any]:
    """A request as JSON data, secrets hidden: what is recorded, and what a replay compares."""
    data: dict[str, Any] = REQUEST.dump_python(request, mode="json")
    for name in ("system", "messages", "tools", "label"):
        data[name] = _deep(data[name], hide)
    return data


def _deep(value: Any, hide: Hide, *, own: bool = True) -> Any:
    """JSON data with secrets hidden, also in numbers; where a model made it up (not `own`), in every name as well."""
    match value:
        case str():
            return hide(value)
        case bool() | None:
            return value
        case int() | float():
            return value if hide(str(value)) == str(value) else HIDDEN
        case list() | tuple():
            return [_deep(item, hide, own=own) for item in value]
        case dict() if own:
            return {name: _field(name, item, hide) for name, item in value.items()}
        case dict():
            return {hide(name): _deep(item, hide, own=False) for name, item in value.items()}
    raise TypeError(f"no JSON: {type(value).__name__}")


def _field(name: str, item: Any, hide: Hide) -> Any:
    if name in _KEPT_WORDS and isinstance(item, str):
        return item
    if name == "raw" and isinstance(
        item, dict
    ):  # a block of a kind not known here: nothing but its own type is a word of a format
        return {**_deep(item, hide, own=False), "type": item.get("type")}
    return _deep(item, hide, own=name not in ("input", "input_schema"))


def _stream_data(heard: Sequence[ModelEvent | ModelError], hide: Hide) -> list[dict[str, Any]]:
    """The stream as JSON data. A text whose secret lies over several chunks becomes one chunk."""
    found: list[dict[str, Any]] = []
    chunks: list[str] = []
    kind = ""

    def flush() -> None:
        whole = "".join(chunks)
        clean = hide(whole)
        found.extend({kind: text} for text in (chunks if clean == whole else [clean]))
        chunks.clear()

    for event in heard:
        if isinstance(event, TextChunk | ThinkingChunk):
            now = "text" if isinstance(event, TextChunk) else "thinking"
            if now != kind:
                flush()
            kind = now
            chunks.append(event.text)
            continue
        flush()
        found.append(_ending_data(event, hide))
    flush()
    if not heard or not isinstance(heard[-1], Reply | ModelError):
        found.append({"left": True})
    return found


def _ending_data(event: ModelEvent | ModelError, hide: Hide) -> dict[str, Any]:
    match event:
        case RetryNotice():
            data = _ITEMS["retry"].dump_python(event, mode="json")
            return {"retry": {**data, "reason": hide(event.reason)}}
        case Reply():
            data = _ITEMS["reply"].dump_python(event, mode="json")
            return {"reply": {**data, "message": _deep(data["message"], hide)}}
        case ModelError():
            usage = event.usage.model_dump(mode="json") if isinstance(event.usage, Usage) else None
            return {
                "error": {
                    "message": hide(event.message), "hint": hide(event.hint), "kind": event.kind,
                    "retryable": event.retryable, "attempts": event.attempts, "request_id": event.request_id,
                    "usage": usage, "message_id": event.message_id,
                }
            }  # fmt: skip
    raise TypeError(f"a model streamed a {type(event).__name__}")


# --- reading -------------------------------------------------------------------------------------------------------


def read(path: Path) -> tuple[Exchange, ...]:
    """The exchanges of a cassette. Raises `ConfigError` for one that is absent, damaged, cut off or newer."""
    try:
        data = path.read_bytes()
    except OSError as error:
        hint = "name a file that `--record FILE` has written"
        raise ConfigError(f"cassette {path}: {error.strerror}", hint=hint) from None
    _check_header(path, data)
    before, end = _end_of(path, data)
    try:
        lines = [json.loads(line) for line in before.decode("ascii").splitlines()[1:]]
        found = _exchanges(lines)
        wrong = None if len(found) == end["exchanges"] else "it does not hold as many exchanges as it says"
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError, RecursionError) as error:
        # The digest is right, so nothing was lost on the way: somebody wrote this by hand, or a kinfold wrongly.
        found, wrong = [], f"its content makes no sense ({' '.join(str(error).split())[:200]})"
    if wrong is None and not found:
        wrong = "no exchange was recorded"
    if wrong is not None:
        raise ConfigError(f"cassette {path}: {wrong}", hint=_AGAIN)
    return tuple(found)


def _check_header(path: Path, data: bytes) -> None:
    try:
        header = json.loads(data.partition(b"\n")[0])
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise ConfigError(f"{path} is no cassette", hint="name a file that `--record FILE` has written")
    version = header.get("version")
    if isinstance(version, int) and version > VERSION:
        raise ConfigError(
            f"cassette {path} is of version {version}, and this kinfold reads up to {VERSION}",
            hint="use a newer kinfold, or record it again with this one",
        )
    if version != VERSION:
        raise ConfigError(f"cassette {path} has no version that ever was: {version!r}", hint=_AGAIN)


def _end_of(path: Path, data: bytes) -> tuple[bytes, dict[str, Any]]:
    """All before the last line, and what the last line says; both checked against each other."""
    if not data.endswith(b"\n"):
        raise ConfigError(f"cassette {path} is cut off: its last line has no end", hint=_AGAIN)
    start = data.rfind(b"\n", 0, len(data) - 1) + 1
    try:
        end = json.loads(data[start:])["end"]
        digest = str(end["sha256"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ConfigError(f"cassette {path} is cut off: its end line is missing", hint=_AGAIN) from None
    if hashlib.sha256(data[:start]).hexdigest() != digest:
        hint = f"restore the file as it was recorded, or {_AGAIN}"
        raise ConfigError(f"cassette {path} is damaged: its bytes are not those that were recorded", hint=hint)
    return data[:start], end


def _exchanges(lines: Sequence[Any]) -> list[Exchange]:
    parts: dict[Any, Any] = {}
    found: list[Exchange] = []
    for line in lines:
        if "part" in line:
            parts[line["part"]] = line["value"]
            continue
        request = dict(line["request"])
        for name in ("system", "messages"):
            request[name] = [parts[number] for number in request[name]]
        request["tools"] = [] if request["tools"] is None else parts[request["tools"]]
        request = REQUEST.dump_python(REQUEST.validate_python(request), mode="json")
        stream = tuple(_item(item) for item in line["stream"])
        if not stream or not (stream[-1] is None or isinstance(stream[-1], Reply | ModelError)):
            raise ValueError(f"exchange {line['exchange']} has no ending")
        found.append(Exchange(number=len(found) + 1, model=str(line["model"]), request=request, stream=stream))
    return found


def _item(item: dict[str, Any]) -> ModelEvent | ModelError | None:
    ((kind, value),) = item.items()
    parsed = _ITEMS[kind].validate_python(value)
    match kind:
        case "text":
            return TextChunk(text=parsed)
        case "thinking":
            return ThinkingChunk(text=parsed)
        case "error":
            usage = Usage.model_validate(parsed.pop("usage")) if parsed.get("usage") else None
            return ModelError(**{**parsed, "usage": usage})
        case "left":
            return None
    event: ModelEvent = parsed
    return event
