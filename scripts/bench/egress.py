"""How fast a program reads 128 MB through the allowlist's proxy, by each channel: `python scripts/bench/egress.py`."""

from __future__ import annotations

import sys
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import anyio

from kinfold.sandbox import DockerProvider, SandboxSpec, allowlist

SIZE = 128 * 1024 * 1024
PROGRAM = """
import sys, time, urllib.request
start, size = time.monotonic(), 0
with urllib.request.urlopen(sys.argv[1]) as answer:
    while data := answer.read(1 << 20):
        size += len(data)
print(size / (time.monotonic() - start) / 1e6)
"""


class Zeros(BaseHTTPRequestHandler):
    """Answers with SIZE bytes."""

    def do_GET(self) -> None:
        """The body in pieces of 1 MiB."""
        self.send_response(200)
        self.send_header("Content-Length", str(SIZE))
        self.end_headers()
        for _ in range(SIZE // 1_048_576):
            self.wfile.write(bytes(1_048_576))

    def log_message(self, format: str, *args: object) -> None:
        """Nothing on stderr."""


async def measure(port: int) -> None:
    """One line a channel."""
    network = allowlist([f"data.test:{port}"], private=(f"127.0.0.1:{port}",), pins={"data.test": "127.0.0.1"})
    for channel in ("socket", "engine"):
        with tempfile.TemporaryDirectory() as state:
            async with (
                DockerProvider(channel=channel, state_dir=Path(state)) as provider,
                await provider.create(SandboxSpec(network=network, keep=0.0)) as sandbox,
            ):
                result = await sandbox.exec(["python3", "-c", PROGRAM, f"http://data.test:{port}/"], timeout=300)
                if result.exit_code != 0:
                    sys.exit(result.stderr_text)
                print(f"{channel}: {float(result.stdout_text):.0f} MB/s")


if __name__ == "__main__":
    server = ThreadingHTTPServer(("127.0.0.1", 0), Zeros)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    anyio.run(measure, server.server_port)
