"""What the proxy lets through and what it refuses, each attempt with its event; denied names are never resolved."""
# ruff: noqa: E501 - requests are read best in one line each

from __future__ import annotations

import ssl

import anyio
import anyio.abc
import pytest
import trustme
from tests.unit.sandbox.egress.proxy_support import Ask, host, open_to

from kinfold.errors import ConfigError
from kinfold.sandbox.allowlist import allowlist, parse_network

pytestmark = pytest.mark.anyio
SECRET = "Bearer sk-very-secret"


async def read_head(stream: anyio.abc.ByteStream) -> bytes:
    """A request up to its empty line, and what came with it."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += await stream.receive()
    return data


async def echo(stream: anyio.abc.ByteStream) -> None:
    """Answers a request with its own head."""
    try:
        head = await read_head(stream)
    except anyio.EndOfStream:
        return
    await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(head), head))


async def repeat(stream: anyio.abc.ByteStream) -> None:
    """Sends back what comes."""
    try:
        while True:
            await stream.send(await stream.receive())
    except anyio.EndOfStream:
        return


def client_hello(*names: str) -> bytes:
    """What a real TLS library sends first."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.create_default_context()
    context.check_hostname = bool(names)
    client = context.wrap_bio(incoming, outgoing, server_hostname=names[0] if names else None)
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


# --- N05, N06: what is refused before anything is resolved ----------------------------------------------------------

HIDDEN = [
    (b"CONNECT evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n", "host_not_allowed"),
    (b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", "host_not_allowed"),
    (b"CONNECT evilexample.com:443 HTTP/1.1\r\nHost: evilexample.com:443\r\n\r\n", "host_not_allowed"),
    (b"CONNECT wide.example.com.evil.test:443 HTTP/1.1\r\nHost: wide.example.com.evil.test:443\r\n\r\n", "host_not_allowed"),
    (b"CONNECT wide.example.com:443 HTTP/1.1\r\nHost: wide.example.com:443\r\n\r\n", "host_not_allowed"),
    (b"CONNECT ok.test:22 HTTP/1.1\r\nHost: ok.test:22\r\n\r\n", "port_not_allowed"),
    (b"GET http://ok.test:8080/ HTTP/1.1\r\nHost: ok.test:8080\r\n\r\n", "port_not_allowed"),
    (b"GET http://ok.test@evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", "bad_request"),
    (b"CONNECT ok.test@evil.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n", "bad_request"),
    (b"GET http://ok.test\\@evil.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n", "bad_request"),
    (b"GET http://ok.test%00.evil.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n", "bad_request"),
    (b"GET http://ok.test\0.evil.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n", "bad_request"),
    (b"GET http://ok.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n", "host_mismatch"),
    (b"CONNECT ok.test:443 HTTP/1.1\r\nHost: evil.test:443\r\n\r\n", "host_mismatch"),
    (b"GET / HTTP/1.1\r\nHost: ok.test\r\n\r\n", "bad_request"),
    (b"GET https://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n", "bad_request"),
    (b"GET ftp://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n", "bad_request"),
    (b"CONNECT ok.test HTTP/1.1\r\nHost: ok.test\r\n\r\n", "bad_request"),
    (b"CONNECT ok..test:443 HTTP/1.1\r\nHost: ok..test:443\r\n\r\n", "bad_request"),
    (b"CONNECT ok.test:443:443 HTTP/1.1\r\nHost: ok.test\r\n\r\n", "bad_request"),
    (b"CONNECT 0x7f000001:80 HTTP/1.1\r\nHost: 0x7f000001:80\r\n\r\n", "bad_request"),
    (b"CONNECT 2130706433:80 HTTP/1.1\r\nHost: 2130706433:80\r\n\r\n", "bad_request"),
    (b"CONNECT 0177.0.0.1:80 HTTP/1.1\r\nHost: 0177.0.0.1:80\r\n\r\n", "bad_request"),
    (b"CONNECT 127.1:80 HTTP/1.1\r\nHost: 127.1:80\r\n\r\n", "bad_request"),
    (b"CONNECT 127.0.0.1:80 HTTP/1.1\r\nHost: 127.0.0.1:80\r\n\r\n", "host_not_allowed"),
    (b"CONNECT [::1]:80 HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", "host_not_allowed"),
    (b"CONNECT [::ffff:127.0.0.1]:80 HTTP/1.1\r\nHost: [::ffff:127.0.0.1]:80\r\n\r\n", "host_not_allowed"),
    (b"CONNECT [fe80::1%25eth0]:80 HTTP/1.1\r\nHost: [fe80::1%25eth0]:80\r\n\r\n", "bad_request"),
    (b"POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
     "bad_request"),
    (b"POST http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc", "bad_request"),
    (b"GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\nHost: evil.test\r\n\r\n", "bad_request"),
    (b"CONNECT api.test:443 HTTP/1.1\r\nHost: api.test:443\r\n\r\n", "inject_host"),
    (b"\x05\x01\x00", "bad_request"),
    (b"GET http://ok.test/ HTTP/1.1\r\nA: " + b"x" * 100_000 + b"\r\n\r\n", "bad_request"),
]  # fmt: skip


@pytest.mark.threat("N05", "N06")
@pytest.mark.parametrize(
    ("data", "reason"), HIDDEN, ids=lambda value: value[:48] if isinstance(value, bytes) else value
)
async def test_what_is_not_listed_is_refused_in_words_and_never_resolved(data: bytes, reason: str) -> None:
    network = allowlist(
        ["ok.test", "*.wide.example.com", "example.com", "api.test"], inject={"api.test": {"A": SECRET}}
    )
    ask = Ask(network)
    answer = await ask(data)
    assert answer.startswith(b"HTTP/1.1 4") and b"kinfold: " in answer.split(b"\r\n")[0]
    assert [(attempt.allowed, attempt.reason) for attempt in ask.attempts] == [(False, reason)]
    assert ask.asked == []


ADDRESSES = [
    "127.0.0.1", "127.8.9.10", "0.0.0.0", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1",
    "100.100.100.200", "168.63.129.16", "192.0.0.192", "224.0.0.1", "255.255.255.255", "240.0.0.1", "198.18.0.1",
    "::1", "::", "fe80::1", "fc00::1", "fd00:ec2::254", "ff02::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1",
    "64:ff9b::7f00:1", "64:ff9b:1::1", "2002:7f00:1::", "2001:0:7f00:1::", "2001:db8::1", "fec0::1", "fe80::1%eth0",
    "nonsense",
]  # fmt: skip


@pytest.mark.threat("N03")
@pytest.mark.parametrize("address", ADDRESSES)
@pytest.mark.parametrize("method", ["http", "connect"])
async def test_a_listed_name_with_an_address_that_is_not_public_is_refused_after_resolution(
    address: str, method: str
) -> None:
    ask = Ask(allowlist(["ok.test"]), {"ok.test": [address]})
    data = {"http": b"GET http://ok.test/ HTTP/1.1\r\nHost: ok.test\r\n\r\n",
            "connect": b"CONNECT ok.test:443 HTTP/1.1\r\nHost: ok.test:443\r\n\r\n"}[method]  # fmt: skip
    assert (await ask(data)).startswith(b"HTTP/1.1 403 kinfold: ok.test has no public address")
    assert ask.attempts[0].reason == "private_address" and ask.asked == ["ok.test"]


@pytest.mark.parametrize(
    "hosts",
    [
        [],
        ["*"],
        ["*.com"],
        ["a b"],
        ["ok.test:0"],
        ["ok.test:70000"],
        ["2130706433"],
        ["0x7f.1"],
        ["bücher.test"],
        ["a..b"],
    ],
    ids=str,
)
def test_an_entry_that_cannot_be_meant_is_refused(hosts: list[str]) -> None:
    with pytest.raises(ConfigError):
        allowlist(hosts)


def test_network_is_none_open_or_a_list_of_hosts() -> None:
    assert parse_network("none") == "none" and parse_network("open") == "open"
    assert parse_network("allow:a.test,b.test:8443") == allowlist(["a.test", "b.test:8443"])
    for text in ("wifi", "allow", "allow:", "allow:a.test,,b.test"):
        with pytest.raises(ConfigError):
            parse_network(text)


def test_a_dumped_allowlist_has_the_names_of_its_secret_headers_and_not_their_values() -> None:
    network = allowlist(["api.test"], inject={"api.test": {"Authorization": SECRET}})
    assert "sk-very" not in network.model_dump_json() + repr(network) + str(network.model_dump())
    assert (
        type(network).model_validate(network.model_dump()).inject["api.test"]["Authorization"].get_secret_value() == ""
    )


# --- what goes through ----------------------------------------------------------------------------------------------


async def test_each_request_of_a_connection_is_asked_anew_and_judged_by_itself() -> None:
    async with host(echo) as port:
        ask = Ask(open_to(port, "ok.test"), {"ok.test": ["127.0.0.1"]})
        url = b"ok.test:%d" % port
        answer = await ask(
            b"POST http://OK.test.:%d/a?b HTTP/1.1\r\nHost: %s\r\nProxy-Authorization: x\r\nConnection: x-hop, keep-alive\r\n"
            b"X-Hop: 1\r\nX-Kept: 1\r\nContent-Length: 0\r\n\r\n" % (port, url),
            b"GET http://evil.test/ HTTP/1.1\r\nHost: evil.test\r\n\r\n",
        )
    first, _, second = answer.partition(b"HTTP/1.1 403")
    assert b"POST /a?b HTTP/1.1\r\n" in first and b"host: " + url in first.lower() and b"x-kept: 1" in first.lower()
    assert b"x-hop:" not in first.lower() and b"proxy-" not in first.lower()
    assert b"evil.test:80 is not in" in second
    assert [(a.host, a.allowed) for a in ask.attempts] == [("ok.test", True), ("evil.test", False)]
    assert ask.asked == ["ok.test"] and ask.attempts[0].sent > 20 and ask.attempts[0].received > 20


async def test_a_handshake_must_name_the_host_of_its_connect() -> None:
    async with host(repeat) as port:
        network = open_to(port, "ok.test")
        connect = b"CONNECT ok.test:%d HTTP/1.1\r\nHost: ok.test:%d\r\n\r\n" % (port, port)
        for names, good in ((["ok.test"], True), (["evil.test"], False), ([], False)):
            ask = Ask(network, {"ok.test": ["127.0.0.1"]})
            hello = client_hello(*names)
            answer = await ask(connect, hello[:3], hello[3:50], hello[50:])
            assert answer.startswith(b"HTTP/1.1 200 ") and (hello in answer) == good
            assert ask.attempts[0].reason == ("" if good else "sni_mismatch")
            assert ask.attempts[0].sent == (len(hello) if good else 0)
        plain = await Ask(network, {"ok.test": ["127.0.0.1"]})(connect, b"SSH-2.0-x")
        assert plain.endswith(b"SSH-2.0-x")  # on a port of its own an entry may be anything


async def test_caps_end_what_goes_over_them() -> None:
    async with host(repeat) as port:
        connect = b"CONNECT ok.test:%d HTTP/1.1\r\nHost: ok.test:%d\r\n\r\n" % (port, port)
        ask = Ask(open_to(port, "ok.test", upload_bytes=1000, attempts=2), {"ok.test": ["127.0.0.1"]})
        await ask(connect, b"x" * 600)
        await ask(connect, b"x" * 600)
        third = await ask(connect)
    assert [(a.reason, a.sent) for a in ask.attempts] == [("", 600), ("byte_limit", 0), ("attempt_limit", 0)]
    assert third.startswith(b"HTTP/1.1 429")


@pytest.mark.parametrize("chunk", [1, 7, 10_000])
async def test_a_credential_is_added_on_the_host_side_over_verified_tls_and_masked_in_the_answer(chunk: int) -> None:
    authority = trustme.CA()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("api.test").configure_cert(server)
    client = ssl.create_default_context()
    authority.configure_trust(client)
    seen: list[bytes] = []

    async def tell(stream: anyio.abc.ByteStream) -> None:
        seen.append(await read_head(stream))
        body = b"you said " + SECRET.encode() + b" and sk-very-secre"
        await stream.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\nX-Echo: %s\r\n\r\n" % (len(body), SECRET.encode()))
        for at in range(0, len(body), chunk):
            await stream.send(body[at : at + chunk])

    async with host(tell, server) as port:
        network = open_to(port, "api.test", inject={"api.test": {"Authorization": SECRET}})
        request = b"GET http://api.test:%d/x HTTP/1.1\r\nHost: api.test:%d\r\nAuthorization: mine\r\n\r\n" % (
            port,
            port,
        )
        ask = Ask(network, {"api.test": ["127.0.0.1"]}, client)
        answer = await ask(request)
        stranger = Ask(network, {"api.test": ["127.0.0.1"]}, ssl.create_default_context())
        refused = await stranger(request)
    assert b"authorization: " + SECRET.encode() in seen[0] and b"mine" not in seen[0] and len(seen) == 1
    assert b"sk-very-secret" not in answer and answer.endswith(b"you said " + b"*" * 21 + b" and sk-very-secre")
    assert refused.startswith(b"HTTP/1.1 502") and stranger.attempts[0].reason == "tls_failed"
