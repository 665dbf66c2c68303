"""The allowlist in a real container: `pip install`, `git` and plain programs through the proxy, on both channels."""

from __future__ import annotations

import base64
import hashlib
import http.server
import io
import ssl
import threading
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme
from tests.docker.provider_support import docker_provider, engine_api, spec

from kinfold.sandbox import Allowlist, EgressAttempt, allowlist
from kinfold.sandbox.docker.provider import ChannelKind

pytestmark = pytest.mark.anyio
WHEEL = "hello_kinfold-1.0-py3-none-any.whl"


def wheel() -> bytes:
    """A package of one module, as an index would hand it out."""
    info = "hello_kinfold-1.0.dist-info"
    files = {
        "hello_kinfold.py": b"WORDS = 'installed through the proxy'\n",
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: hello-kinfold\nVersion: 1.0\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in files.items()
    )
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in (files | {f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode()}).items():
            archive.writestr(name, data)
    return buffer.getvalue()


class Index(http.server.BaseHTTPRequestHandler):
    """A package index of one package."""

    protocol_version = "HTTP/1.1"
    pages: dict[str, tuple[str, bytes]] = {}  # noqa: RUF012 - set once below

    def do_GET(self) -> None:
        """A page, or 404."""
        kind, body = self.pages.get(self.path, ("", b""))
        self.send_response(200 if kind else 404)
        self.send_header("Content-Type", kind or "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing on stderr."""


Index.pages = {
    "/simple/hello-kinfold/": ("text/html", f'<a href="/files/{WHEEL}">{WHEEL}</a>'.encode()),
    f"/files/{WHEEL}": ("application/octet-stream", wheel()),
}


@contextmanager
def index(context: ssl.SSLContext | None = None) -> Iterator[int]:
    """The index on loopback; its port."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    if context is not None:
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def reaching(port: int) -> Allowlist:
    """Only the index, by a name that no name server knows."""
    name = f"index.test:{port}"
    return allowlist([name], private=(f"127.0.0.1:{port}",), pins={"index.test": "127.0.0.1"})


@pytest.mark.parametrize("channel", ["engine", "socket"])
async def test_pip_installs_through_the_allowlist_and_nothing_else_is_reached(
    tmp_path: Path, channel: ChannelKind
) -> None:
    attempts: list[EgressAttempt] = []
    with index() as port:
        async with (
            docker_provider(tmp_path / "state", channel=channel) as provider,
            await provider.create(spec(network=reaching(port))) as sandbox,
        ):
            assert not [control for control in sandbox.not_enforced if "network" in control.name]
            with engine_api() as api:
                assert api.inspect_container(sandbox.ref.handle)["HostConfig"]["NetworkMode"] == "none"
            sandbox.on_egress(attempts.append)
            url = f"http://index.test:{port}/simple/"
            install = [
                "-m",
                "pip",
                "install",
                "-q",
                "--no-cache-dir",
                "--index-url",
                url,
                "--trusted-host",
                "index.test",
            ]
            made = await sandbox.exec(["python3", "-m", "venv", "/home/agent/v"], timeout=120)
            assert made.exit_code == 0, made.stdout_text + made.stderr_text
            result = await sandbox.exec(["/home/agent/v/bin/python", *install, "hello-kinfold"], timeout=120)
            assert result.exit_code == 0, result.stderr_text
            shown = await sandbox.exec(["/home/agent/v/bin/python", "-c", "import hello_kinfold as h; print(h.WORDS)"])
            assert shown.stdout == b"installed through the proxy\n"
            denied = await sandbox.exec(["git", "ls-remote", "https://elsewhere.test/x.git"], timeout=60)
            assert denied.exit_code == 128 and "403" in denied.stderr_text, denied.stderr_text
            straight = await sandbox.exec(
                "env -i python3 -c 'import socket; socket.create_connection((\"1.1.1.1\", 443))'"
            )
            assert "unreachable" in straight.stderr_text
    assert ("elsewhere.test", 443, False, "host_not_allowed") in [
        (a.host, a.port, a.allowed, a.reason) for a in attempts
    ]
    assert sum(a.received for a in attempts if a.allowed) > len(wheel())


async def test_tls_to_a_listed_host_goes_through_untouched_and_another_name_inside_does_not(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("index.test").configure_cert(context)
    get = (
        "import http.client, ssl, sys; c = http.client.HTTPSConnection('127.0.0.1', 3128,"
        " context=ssl.create_default_context(cafile='ca.pem')); c.set_tunnel('index.test', int(sys.argv[1]));"
        " c._context.check_hostname = False; c.connect() if len(sys.argv) == 2 else None;"
        " c.request('GET', '/simple/hello-kinfold/'); print(c.getresponse().status)"
    )
    with index(context) as port:
        async with (
            docker_provider(tmp_path / "state") as provider,
            await provider.create(spec(network=reaching(port))) as sandbox,
        ):
            attempts: list[EgressAttempt] = []
            sandbox.on_egress(attempts.append)
            await sandbox.write("ca.pem", authority.cert_pem.bytes())
            good = await sandbox.exec(["python3", "-c", get, str(port)], timeout=60)
            assert good.stdout == b"200\n", good.stderr_text
            other = get.replace("c.connect() if", "setattr(c, '_tunnel_host', 'index.test') if")
            lied = other.replace("import http.client", "import http.client, socket").replace(
                "c.request(", "c._context.wrap_socket = (lambda w: lambda s, **k: w(s, server_hostname='evil.test'))"
                "(c._context.wrap_socket); c.request(")  # fmt: skip
            bad = await sandbox.exec(["python3", "-c", lied, str(port)], timeout=60)
            assert bad.exit_code == 1 and "unrecognized name" in bad.stderr_text.lower().replace("_", " "), (
                bad.stderr_text
            )
    assert [a.reason for a in attempts] == ["", "sni_mismatch"]


async def test_a_sandbox_that_is_only_borrowed_leaves_the_connections_to_its_owner(tmp_path: Path) -> None:
    with index() as port:
        async with (
            docker_provider(tmp_path / "state") as provider,
            await provider.create(spec(network=reaching(port))) as sandbox,
            await provider.connect(sandbox.ref) as borrowed,
        ):
            told: list[EgressAttempt] = []
            sandbox.on_egress(told.append)
            fetch = (
                f"import urllib.request as u; print(u.urlopen('http://index.test:{port}/simple/hello-kinfold/').status)"
            )
            result = await borrowed.exec(["python3", "-c", fetch], timeout=60)
            assert result.stdout == b"200\n", result.stderr_text
            await sandbox.end_egress()
            cut = await sandbox.exec(["python3", "-c", fetch], timeout=60)
            assert cut.exit_code == 1 and ("reset" in cut.stderr_text or "Disconnected" in cut.stderr_text), (
                cut.stderr_text
            )
    assert [(a.host, a.allowed, a.reason) for a in told] == [("index.test", True, "")]
