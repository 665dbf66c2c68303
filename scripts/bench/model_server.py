"""A service that plays one fixed delegation to whoever asks, and counts what it was sent.

It speaks the Messages API (plain and streamed) and Chat Completions (plain), on 127.0.0.1, with the same answers: the
main agent delegates with whatever tool it was given for that, the subagent looks at `PAGES` pages, one a step, and says
what it found; the main agent passes that on. Tokens are counted by one rule for all: a quarter of the characters of the
system texts, tools and messages of a request, as JSON.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

PROMPT = "Which year was the studio behind the original film founded? Delegate the search, then answer with the year."
BRIEF = "Search the archive, pages 1 to 8, for the founding year of the studio behind the original film. Report it."
FOUND = "The studio was founded in 1987, says page 8 of the archive."
ANSWER = "It was founded in 1987."
PAGES = 8
DELEGATE = ("task", "research")
"""What the tools are called by which these systems delegate."""


def page(number: int) -> str:
    """A page of the archive: about 2,000 characters that nobody needs, and the answer on the last one."""
    filler = f"Page {number} of the archive tells of films, of studios and of who sold what to whom in those years. "
    return filler * 20 + ("The studio was founded in 1987." if number == PAGES else "")


@dataclass
class Counts:
    """What one run sent."""

    main: list[int] = field(default_factory=list)
    """Tokens of each request of the main agent."""
    subagent: list[int] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    """Requests of which nobody knows whose they are: none, in a fair run."""


class ModelServer:
    """The server; `counts` is what was sent since it was last put anew."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._server = _Listener(self)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    @property
    def url(self) -> str:
        """Its address, without a path."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, body: dict[str, Any]) -> tuple[str, str, dict[str, Any] | None]:
        """The text of the reply, and perhaps a tool with its arguments, for a body of either API."""
        held = {name: body[name] for name in ("system", "tools", "messages") if name in body}
        tokens = len(json.dumps(held, ensure_ascii=False)) // 4
        users = [message for message in body["messages"] if message["role"] == "user"]
        first = json.dumps(users[0]["content"]) if users else ""
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        if PROMPT in first:
            self.counts.main.append(tokens)
            return self._main(body, turn)
        if BRIEF in first:
            self.counts.subagent.append(tokens)
            return ("", "lookup", {"page": turn + 1}) if turn < PAGES else (FOUND, "", None)
        self.counts.odd.append(first[:200])
        return "I do not know who you are.", "", None

    @staticmethod
    def _main(body: dict[str, Any], turn: int) -> tuple[str, str, dict[str, Any] | None]:
        if turn:
            return ANSWER, "", None
        tools = [tool.get("function", tool) for tool in body["tools"]]
        tool = next(tool for tool in tools if tool["name"] in DELEGATE)
        properties = (tool.get("input_schema") or tool.get("parameters"))["properties"]
        brief = next(name for name in ("prompt", "input", "description") if name in properties)
        named = {"subagent_type": "research", "description": "Search the archive"}
        return "", tool["name"], {**{k: v for k, v in named.items() if k in properties}, brief: BRIEF}


class _Listener(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, owner: ModelServer) -> None:
        self.owner = owner
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Listener

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        path = self.path.partition("?")[0]
        if path.endswith("/messages"):
            self._messages(body)
        elif path.endswith("/chat/completions") and not body.get("stream"):
            self._send(_completion(body, *self.server.owner.answer(body)))
        else:
            self._send({"error": {"message": f"no such thing: {path}", "type": "not_found_error"}}, 404)

    def _messages(self, body: dict[str, Any]) -> None:
        message = _message(body, *self.server.owner.answer(body))
        if body.get("stream"):
            self._send_bytes(b"".join(_sse(event) for event in _events(message)), "text/event-stream")
        else:
            self._send(message)

    def _send(self, data: dict[str, Any], status: int = 200) -> None:
        self._send_bytes(json.dumps(data).encode(), "application/json", status)

    def _send_bytes(self, data: bytes, kind: str, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on the terminal."""


def _usage(body: dict[str, Any], text: str) -> tuple[int, int]:
    return len(json.dumps(body["messages"])) // 4, len(text) // 4 + 1


def _message(body: dict[str, Any], text: str, tool: str, arguments: dict[str, Any] | None) -> dict[str, Any]:
    turn = len(body["messages"])
    blocks: list[dict[str, Any]] = [{"type": "text", "text": text}] if text else []
    if arguments is not None:
        blocks.append({"type": "tool_use", "id": f"toolu_{tool}_{turn}", "name": tool, "input": arguments})
    sent, said = _usage(body, text)
    return {
        "id": f"msg_{turn}", "type": "message", "role": "assistant", "model": body["model"], "content": blocks,
        "stop_reason": "end_turn" if arguments is None else "tool_use", "stop_sequence": None,
        "usage": {"input_tokens": sent, "output_tokens": said},
    }  # fmt: skip


def _events(message: dict[str, Any]) -> list[dict[str, Any]]:
    """The message as the Messages API streams it."""
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {**message, "content": [], "stop_reason": None}}
    ]
    for index, block in enumerate(message["content"]):
        if block["type"] == "text":
            start: dict[str, Any] = {"type": "text", "text": ""}
            delta = {"type": "text_delta", "text": block["text"]}
        else:
            start = {**block, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": json.dumps(block["input"])}
        events += [
            {"type": "content_block_start", "index": index, "content_block": start},
            {"type": "content_block_delta", "index": index, "delta": delta},
            {"type": "content_block_stop", "index": index},
        ]
    delta = {"stop_reason": message["stop_reason"], "stop_sequence": None}
    return [*events, {"type": "message_delta", "delta": delta, "usage": message["usage"]}, {"type": "message_stop"}]


def _sse(event: dict[str, Any]) -> bytes:
    return f"event: {event['type']}\ndata: {json.dumps(event)}\n\n".encode()


def _completion(body: dict[str, Any], text: str, tool: str, arguments: dict[str, Any] | None) -> dict[str, Any]:
    turn = len(body["messages"])
    message: dict[str, Any] = {"role": "assistant", "content": text or None}
    if arguments is not None:
        function = {"name": tool, "arguments": json.dumps(arguments)}
        message["tool_calls"] = [{"id": f"call_{tool}_{turn}", "type": "function", "function": function}]
    sent, said = _usage(body, text)
    return {
        "id": f"chatcmpl-{turn}", "object": "chat.completion", "created": 1, "model": body["model"],
        "choices": [
            {"index": 0, "message": message, "finish_reason": "stop" if arguments is None else "tool_calls"}
        ],
        "usage": {"prompt_tokens": sent, "completion_tokens": said, "total_tokens": sent + said},
    }  # fmt: skip
