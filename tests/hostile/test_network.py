"""A sandbox without a network reaches nobody: no world, no host, no other sandbox, by no family or spelling."""

from __future__ import annotations

import json
import os
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from tests.docker.provider_support import docker_provider, engine_api, spec
from tests.hostile.hostile_support import sandbox_with

from kinfold.sandbox.base import ExecRequest

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

REACH = r"""
import json, socket, sys
wanted, port, name = json.loads(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
reached = []
def its_own(address):
    return address.startswith(("127.", "0.0.0.0", "::1", "::ffff:127")) or address == "::"
for host in wanted:
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            found = socket.getaddrinfo(host, port, type=kind)
        except OSError:
            continue
        for family, kind, proto, _, address in found:
            with socket.socket(family, kind, proto) as s:
                s.settimeout(2)
                try:
                    s.connect(address)
                    s.send(b"hello from a sandbox")
                    if kind == socket.SOCK_STREAM or not its_own(address[0]):
                        reached.append([host, str(kind)])
                except OSError:
                    pass
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    with socket.socket(socket.AF_UNIX, kind) as s:
        try:
            s.connect("\0" + name)
            reached.append("abstract")
        except OSError:
            pass
print(json.dumps(reached))
"""
SPELLINGS = (
    "127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "0", "0.0.0.0", "::1", "::ffff:127.0.0.1", "::",
    "169.254.169.254", "0xa9fea9fe", "2852039166", "::ffff:169.254.169.254", "fd00:ec2::254", "fe80::1%lo",
    "169.254.170.2", "100.100.100.200", "127.0.0.11", "10.0.0.1", "192.168.0.1", "172.16.0.1", "8.8.8.8", "1.1.1.1",
    "2606:4700:4700::1111", "224.0.0.1", "255.255.255.255", "localhost", "host.docker.internal",
    "gateway.docker.internal", "metadata.google.internal", "example.com",
)  # fmt: skip


class Listening:
    """TCP, UDP and abstract sockets on every address of the host; counts who comes."""

    def __init__(self, sockets: list[socket.socket], port: int, name: str) -> None:
        self.port = port
        self.name = name
        self.heard: list[str] = []
        self._sockets = sockets
        self._threads = [threading.Thread(target=self._serve, args=(one,), daemon=True) for one in sockets]
        for thread in self._threads:
            thread.start()

    def _serve(self, one: socket.socket) -> None:
        while True:
            try:
                if one.type == socket.SOCK_STREAM:
                    accepted, who = one.accept()
                    accepted.close()
                else:
                    _, who = one.recvfrom(100)
            except OSError:
                return
            self.heard.append(f"{one.family.name} {who}")

    def stop(self) -> None:
        for one in self._sockets:
            one.shutdown(socket.SHUT_RDWR) if one.type == socket.SOCK_STREAM else one.close()
        for thread in self._threads:
            thread.join(timeout=5)


@contextmanager
def listening() -> Iterator[Listening]:
    """Listeners, proved to hear: one call of the host's own is counted and forgotten."""
    name = f"kinfold-test-{secrets.token_hex(8)}"
    with ExitStack() as stack:
        port = 0
        sockets = []
        for family, kind in (
            (socket.AF_INET6, socket.SOCK_STREAM),
            (socket.AF_INET6, socket.SOCK_DGRAM),
        ):
            one = stack.enter_context(socket.socket(family, kind))
            one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            one.bind(("::", port))
            port = one.getsockname()[1]
            sockets.append(one)
        sockets.append(stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)))
        sockets[-1].bind("\0" + name)
        for one in sockets:
            if one.type == socket.SOCK_STREAM:
                one.listen(64)
        found = Listening(sockets, port, name)
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as caller:
            caller.connect("\0" + name)
        while len(found.heard) < 2:
            threading.Event().wait(0.01)
        found.heard.clear()
        try:
            yield found
        finally:
            found.stop()


def hosts_addresses() -> set[str]:
    """The host's own addresses and the engine's gateways."""
    found = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
    with engine_api() as api:
        for network in api.networks():
            found |= {config["Gateway"] for config in network["IPAM"]["Config"] or () if "Gateway" in config}
    return {str(address) for address in found}


@pytest.mark.threat("N01", "N03")
async def test_no_spelling_of_no_address_reaches_the_host_or_the_world(own_state: Path) -> None:
    with listening() as host:
        async with sandbox_with(own_state) as box:
            asked = json.dumps([*SPELLINGS, *sorted(hosts_addresses())])
            probe = await box.exec(["python3", "-c", REACH, asked, str(host.port), host.name], timeout=60)
            assert (probe.exit_code, json.loads(probe.stdout)) == (0, []), probe.stderr_text
        assert host.heard == []


PROGRAMS = """
for word in "curl -sS -m 3 http://example.com" "wget -q -T 3 -t 1 http://example.com" "ping -c 1 -W 2 1.1.1.1" \
    "nc -w 2 1.1.1.1 80" "ssh -o ConnectTimeout=2 1.1.1.1" "getent hosts example.com" "git ls-remote http://1.1.1.1/x" \
    "pip download --retries 0 --timeout 2 six" "bash -c :</dev/tcp/1.1.1.1/80"; do
    timeout 20 sh -c "$word" >/dev/null 2>&1 </dev/null && echo "WORKED: $word"
done
echo over; cut -d: -f1 -s /proc/net/dev | tr -d ' '; tail -n +2 /proc/net/route
grep -v ' lo$' /proc/net/ipv6_route
"""


@pytest.mark.threat("N01")
async def test_no_program_gets_out_and_each_fails_soon(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        tried = await box.exec(PROGRAMS, timeout=60)
        assert tried.stdout_text.split() == ["over", "lo"], tried.stdout_text
        assert tried.duration < 20


FAMILIES = r"""
import errno, json, socket, struct
opened = set()
for family in range(0, 64):
    for kind in (1, 2, 3, 5, 10):
        for proto in (0, 1, 6, 9, 12, 15, 16, 21, 255):
            try:
                socket.socket(family, kind, proto).close()
                opened.add((family, kind == 3))
            except OSError:
                pass
refused = []
for kind, body in ((16, struct.pack("BxHiII", 0, 0, 1, 0, 1)), (20, struct.pack("BBBBI", 2, 8, 0, 0, 1)),
                   (24, struct.pack("BBBBBBBBI", 2, 0, 0, 0, 254, 3, 0, 1, 0))):
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as s:
        s.settimeout(3)
        s.send(struct.pack("IHHII", 16 + len(body), kind, 0x0605, 1, 0) + body)
        answer = s.recv(4096)
        refused.append(errno.errorcode.get(-struct.unpack_from("i", answer, 16)[0], "?"))
print(json.dumps([sorted(opened), refused]))
"""


@pytest.mark.threat("N02")
async def test_only_plain_families_open_and_netlink_changes_nothing(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        seen = await box.exec(["python3", "-c", FAMILIES], timeout=60)
        assert seen.exit_code == 0, seen.stderr_text
        opened, refused = json.loads(seen.stdout)
        raw_allowed = {int(socket.AF_NETLINK), int(socket.AF_UNIX)}
        assert {family for family, _ in opened} <= {
            int(one) for one in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK)
        }
        assert {family for family, raw in opened if raw} <= raw_allowed
        assert refused == ["EPERM"] * 3


SERVE = """
import socket, sys
kept = []
for family, address in ((socket.AF_INET, ("0.0.0.0", 4444)), (socket.AF_UNIX, "\\0peer")):
    s = socket.socket(family, socket.SOCK_STREAM); s.bind(address); s.listen(); kept.append(s)
print("up", flush=True)
sys.stdin.read()
"""
CALL = """
import socket
for family, address in ((socket.AF_INET, ("127.0.0.1", 4444)), (socket.AF_UNIX, "\\0peer")):
    s = socket.socket(family, socket.SOCK_STREAM); s.settimeout(2)
    print(s.connect_ex(address) == 0)
"""


@pytest.mark.threat("N04")
async def test_what_listens_in_one_sandbox_is_heard_by_its_own_alone(own_state: Path) -> None:
    async with sandbox_with(own_state) as box, sandbox_with(own_state / "other") as other:
        serving = ExecRequest(command=["python3", "-c", SERVE], stream=True, stdin_open=True)
        server = await box.start(serving)
        assert (await anext(server.output())).data == b"up\n"
        assert (await box.exec(["python3", "-c", CALL])).stdout_text.split() == ["True"] * 2
        assert (await other.exec(["python3", "-c", CALL])).stdout_text.split() == ["False"] * 2
        assert b"@" not in (await other.exec(["cat", "/proc/net/unix"])).stdout
        await server.kill(grace=0)


REACHED = """
import socket, sys
s = socket.socket(); s.settimeout(3)
print(s.connect_ex((sys.argv[1], int(sys.argv[2]))) == 0)
"""


@pytest.mark.threat("N04")
async def test_sandboxes_with_an_open_network_reach_the_gateway_and_each_other_not(own_state: Path) -> None:
    opened = spec(network="open")
    async with (
        docker_provider(own_state) as provider,
        await provider.create(opened) as box,
        await provider.create(opened) as other,
    ):
        server = await box.start(ExecRequest(command=["python3", "-c", SERVE], stream=True, stdin_open=True))
        assert (await anext(server.output())).data == b"up\n"
        with engine_api() as api:
            [network] = api.inspect_container(box.ref.handle)["NetworkSettings"]["Networks"].values()
        with listening() as host:
            for address, port, reached in (
                (network["IPAddress"], 4444, False),
                (network["Gateway"], host.port, True),
            ):
                asked = await other.exec(["python3", "-c", REACHED, address, str(port)], timeout=20)
                assert asked.stdout_text.strip() == str(reached), address
        own = await box.exec(["python3", "-c", REACHED, network["IPAddress"], "4444"], timeout=20)
        assert own.stdout == b"True\n"
        await server.kill(grace=0)


@pytest.mark.threat("N07")
async def test_nothing_of_a_sandbox_is_published_on_the_host(own_state: Path) -> None:
    before = _listening_on_the_host()
    async with sandbox_with(own_state) as box:
        server = await box.start(ExecRequest(command=["python3", "-c", SERVE], stream=True, stdin_open=True))
        assert (await anext(server.output())).data == b"up\n"
        with engine_api() as api:
            found = api.inspect_container(box.ref.handle)
        assert not found["HostConfig"]["PortBindings"]
        assert not found["NetworkSettings"]["Ports"]
        assert list(found["NetworkSettings"]["Networks"]) == ["none"]
        assert not {4444} & (_listening_on_the_host() - before)
        await server.kill(grace=0)


@pytest.mark.threat("C05")
async def test_kinfold_itself_listens_on_no_address_while_a_sandbox_is_open(own_state: Path) -> None:
    async with sandbox_with(own_state) as box:
        assert (await box.exec(["true"])).exit_code == 0
        ours = {
            os.readlink(f"/proc/self/fd/{fd}")
            for fd in os.listdir("/proc/self/fd")
            if os.path.lexists(f"/proc/self/fd/{fd}")
        }
        listening = {line.split()[9] for line in _table() if line.split()[3] == "0A"}
        assert {f"socket:[{inode}]" for inode in listening} & ours == set()


def _table() -> list[str]:
    return [line for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]


def _listening_on_the_host() -> set[int]:
    return {int(line.split()[1].rpartition(":")[2], 16) for line in _table() if line.split()[3] == "0A"}
