"""After a broken channel: what may be repeated is, what may not is found out about, and a loss has its reason."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest
from tests.unit.sandbox.fake_supervisor import FakeProvider, Frame, Peer, end, error, items, record

from kinfold.errors import EngineUnavailable, PathError, SandboxLost, StartFailed
from kinfold.sandbox import channel as channel_module
from kinfold.sandbox import execution
from kinfold.sandbox import link as link_module
from kinfold.sandbox.base import ByteStream, ExecRequest, SandboxRef
from kinfold.sandbox.protocol import Reply, Request
from kinfold.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.anyio
STARTED = (42).to_bytes(4, "little")
CONFLICT, UNKNOWN_EXEC = 8, 33


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link_module, "_DELAYS", (0.0, 0.01, 0.01))
    monkeypatch.setattr(channel_module, "TICK", 0.05)


@pytest.fixture
async def provider() -> AsyncIterator[FakeProvider]:
    made = FakeProvider(lambda peer, frame: None)
    yield made
    await made.close()


@pytest.fixture
async def sandbox(provider: FakeProvider) -> AsyncIterator[Sandbox]:
    async with await provider.sandbox() as made:
        yield made


def once(provider: FakeProvider, first: Callable[[Peer, Frame], None], then: Callable[[Peer, Frame], None]) -> None:
    """Answer by `first` on the first stream and by `then` on all others."""
    provider.answer = lambda peer, frame: (first if peer is provider.peers[0] else then)(peer, frame)


def hang_up(peer: Peer, frame: Frame) -> None:
    peer.hang_up()


async def test_a_read_is_repeated_on_a_new_channel(provider: FakeProvider, sandbox: Sandbox) -> None:
    def answer(peer: Peer, frame: Frame) -> None:
        peer.say(Reply.ITEMS, frame.id, items((b"f", record(4))))
        peer.say(Reply.DATA, frame.id, b"data")
        peer.say(Reply.OK, frame.id, b"\0")

    once(provider, hang_up, answer)
    assert await sandbox.read("f") == b"data"
    assert len(provider.peers) == 2


async def test_half_a_reply_from_the_old_channel_is_not_kept(provider: FakeProvider, sandbox: Sandbox) -> None:
    def half(peer: Peer, frame: Frame) -> None:
        peer.say(Reply.ITEMS, frame.id, items((b"f", record(4))))
        peer.say(Reply.DATA, frame.id, b"da")
        peer.hang_up()

    def whole(peer: Peer, frame: Frame) -> None:
        peer.say(Reply.ITEMS, frame.id, items((b"f", record(4))))
        peer.say(Reply.DATA, frame.id, b"data")
        peer.say(Reply.OK, frame.id, b"\0")

    once(provider, half, whole)
    assert await sandbox.read("f") == b"data"


@pytest.mark.parametrize(
    ("names", "said"),
    [
        ((b"a", b"b", b"c"), 3),
        ((b"a",), 2),
        ((b"../x",), 1),
        ((b"a/../x",), 1),
        ((b"/etc",), 1),
        ((b"a//b",), 1),
        ((b".",), 1),
        ((b"",), 1),
        ((b"a/",), 1),
        ((b"a\0b",), 1),
    ],
)
async def test_a_listing_that_cannot_be_one_loses_the_sandbox(
    provider: FakeProvider, sandbox: Sandbox, names: tuple[bytes, ...], said: int
) -> None:
    def answer(peer: Peer, frame: Frame) -> None:
        peer.say(Reply.ITEMS, frame.id, items(*((name, record(4)) for name in names)))
        peer.say(Reply.OK, frame.id, b"\0" + said.to_bytes(8, "little"))

    provider.answer = answer
    with pytest.raises(SandboxLost, match="broke the protocol"):
        await sandbox.list(".", max_entries=2)
    with pytest.raises(SandboxLost):
        await sandbox.list(".")


async def test_a_request_that_breaks_every_channel_ends_in_a_loss(provider: FakeProvider, sandbox: Sandbox) -> None:
    provider.answer = hang_up
    with anyio.fail_after(20), pytest.raises(SandboxLost, match="STAT broke 3 channels"):
        await sandbox.stat(["a"])
    assert len(provider.all(Request.STAT)) == 3


async def test_a_restarted_supervisor_is_a_loss_with_its_reason(provider: FakeProvider, sandbox: Sandbox) -> None:
    provider.generation = 8
    provider.peers[0].hang_up()
    for _ in range(2):
        with anyio.fail_after(20), pytest.raises(SandboxLost, match="restarted"):
            await sandbox.exec(["true"])
    assert provider.all(Request.EXEC) == []


async def test_a_provider_that_stays_down_is_a_loss_after_bounded_attempts(
    provider: FakeProvider, sandbox: Sandbox
) -> None:
    provider.down = True
    provider.peers[0].hang_up()
    with anyio.fail_after(20), pytest.raises(SandboxLost, match="3 attempts"):
        await sandbox.read("f")


async def test_an_idle_sandbox_attaches_anew_unasked(provider: FakeProvider, sandbox: Sandbox) -> None:
    provider.peers[0].hang_up()
    with anyio.fail_after(20):
        while len(provider.peers) < 2:
            await asyncio.sleep(0.01)
    assert sandbox.generation == 7


async def test_a_supervisor_that_never_answers_is_a_failed_start(
    provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_ATTEMPT_TIMEOUT", 0.2)
    provider.generation = 0
    with anyio.fail_after(20), pytest.raises(StartFailed):
        await provider.sandbox()


@pytest.mark.parametrize("change", ["make_dir", "remove", "rename", "symlink", "write"])
async def test_a_change_is_never_silently_done_twice(provider: FakeProvider, sandbox: Sandbox, change: str) -> None:
    def look(peer: Peer, frame: Frame) -> None:
        peer.say(Reply.ITEMS, frame.id, items((b"a", record(3, bytes(32)))))
        peer.say(Reply.OK, frame.id)

    once(provider, hang_up, look)
    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "make_dir": lambda: sandbox.make_dir("a"),
        "remove": lambda: sandbox.remove("a"),
        "rename": lambda: sandbox.rename("a", "b"),
        "symlink": lambda: sandbox.symlink("x", "a"),
        "write": lambda: sandbox.write("a", b"data"),
    }
    with pytest.raises(PathError) as caught:
        await calls[change]()
    assert caught.value.reason == "conflict"
    assert "not known" in caught.value.message
    assert len(provider.all(Request[change.upper()])) == 1


async def test_a_write_that_did_arrive_is_recognised_by_its_digest(provider: FakeProvider, sandbox: Sandbox) -> None:
    digest = hashlib.sha256(b"data").digest()

    def look(peer: Peer, frame: Frame) -> None:
        peer.say(Reply.ITEMS, frame.id, items((b"a", record(4, digest))))
        peer.say(Reply.OK, frame.id)

    once(provider, hang_up, look)
    stat = await sandbox.write("a", b"data")
    assert (stat.path, stat.sha256) == ("/workspace/a", digest.hex())
    assert len(provider.all(Request.WRITE)) == 1


async def test_a_removal_that_did_arrive_is_recognised(provider: FakeProvider, sandbox: Sandbox) -> None:
    def look(peer: Peer, frame: Frame) -> None:
        gone = (1).to_bytes(4, "little") + (1).to_bytes(4, "little") + b"a" + b"\0\2" + bytes(4)
        peer.say(Reply.ITEMS, frame.id, gone)
        peer.say(Reply.OK, frame.id)

    once(provider, hang_up, look)
    assert await sandbox.remove("a") == 1


async def test_a_running_exec_is_attached_to_not_run_again(provider: FakeProvider, sandbox: Sandbox) -> None:
    def start(peer: Peer, frame: Frame) -> None:
        peer.say(Reply.STARTED, frame.id, STARTED)
        peer.hang_up()

    def attached(peer: Peer, frame: Frame) -> None:
        peer.say(Reply.OUTPUT, frame.id, b"\x01" + bytes(8) + b"out")
        peer.say(Reply.OK, frame.id, end(3, 3))

    once(provider, start, attached)
    result = await sandbox.exec(["x"])
    assert (result.exit_code, result.stdout) == (3, b"out")
    [attach] = provider.all(Request.ATTACH)
    [sent] = provider.all(Request.EXEC)
    assert attach.payload[:8] == sent.id.to_bytes(8, "little")
    assert result.id == f"exec_{sent.id:016x}"


async def test_an_exec_that_never_arrived_is_sent_once_more_under_its_own_id(
    provider: FakeProvider, sandbox: Sandbox
) -> None:
    def later(peer: Peer, frame: Frame) -> None:
        if frame.kind == Request.ATTACH:
            peer.say(Reply.ERROR, frame.id, error(UNKNOWN_EXEC))
        elif frame.kind == Request.EXEC:
            peer.say(Reply.STARTED, frame.id, STARTED)
            peer.say(Reply.OK, frame.id, end(0))

    once(provider, hang_up, later)
    assert (await sandbox.exec(["x"])).exit_code == 0
    first, second = provider.all(Request.EXEC)
    assert (first.id, first.payload) == (second.id, second.payload)


async def test_an_exec_that_arrived_late_after_all_is_attached_to(provider: FakeProvider, sandbox: Sandbox) -> None:
    def later(peer: Peer, frame: Frame) -> None:
        if frame.kind == Request.EXEC:
            peer.say(Reply.ERROR, frame.id, error(CONFLICT))
        elif frame.kind == Request.ATTACH and not peer.of(Request.EXEC):
            peer.say(Reply.ERROR, frame.id, error(UNKNOWN_EXEC))
        elif frame.kind == Request.ATTACH:
            peer.say(Reply.OK, frame.id, end(6))

    once(provider, hang_up, later)
    assert (await sandbox.exec(["x"])).exit_code == 6


async def test_a_container_that_its_engine_holds_paused_is_waited_for(
    provider: FakeProvider, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_PAUSE_POLL", 0.01)
    provider.answer = lambda peer, frame: peer.say(Reply.OK, frame.id, (0).to_bytes(4, "little"))
    provider.down, provider.state = True, "paused"
    provider.peers[0].hang_up()
    async with anyio.create_task_group() as group:
        found: list[object] = []

        async def call() -> None:
            found.append(await sandbox.execs())

        group.start_soon(call)
        while provider.listed < 20:
            await asyncio.sleep(0.01)
        provider.down, provider.state = False, "running"
    assert found == [[]]


async def test_an_exec_that_ran_and_is_forgotten_is_a_loss_not_a_second_run(
    provider: FakeProvider, sandbox: Sandbox
) -> None:
    def start(peer: Peer, frame: Frame) -> None:
        peer.say(Reply.STARTED, frame.id, STARTED)
        peer.hang_up()

    once(provider, start, lambda peer, frame: peer.say(Reply.ERROR, frame.id, error(UNKNOWN_EXEC)))
    with pytest.raises(SandboxLost, match="knows nothing"):
        await sandbox.exec(["x"])
    assert len(provider.all(Request.EXEC)) == 1


async def test_an_exec_past_its_deadline_is_killed_and_told(
    provider: FakeProvider, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "KILL_MARGIN", 0.2)

    def answer(peer: Peer, frame: Frame) -> None:
        if frame.kind == Request.EXEC:
            peer.say(Reply.STARTED, frame.id, STARTED)
        elif frame.kind == Request.KILL:
            peer.say(Reply.OK, frame.id, bytes(8))
        elif frame.kind == Request.ATTACH:
            peer.say(Reply.OK, frame.id, end(5))

    provider.answer = answer
    with anyio.fail_after(20):
        result = await sandbox.exec(["x"], timeout=0.1, grace=0.1)
    assert result.exit_code == 5
    assert len(provider.all(Request.KILL)) == 1


async def test_a_supervisor_that_can_end_nothing_is_a_loss_not_a_hang(
    provider: FakeProvider, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "KILL_MARGIN", 0.2)
    provider.answer = lambda peer, frame: (
        peer.say(Reply.STARTED, frame.id, STARTED) if frame.kind == Request.EXEC else None
    )
    with anyio.fail_after(20), pytest.raises(SandboxLost, match="deadline"):
        await sandbox.exec(["x"], timeout=0.1, grace=0.1)
    with pytest.raises(SandboxLost):
        await sandbox.read("f")


async def test_an_end_that_is_never_told_after_a_kill_is_a_loss(
    provider: FakeProvider, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "KILL_MARGIN", 0.2)

    def answer(peer: Peer, frame: Frame) -> None:
        if frame.kind == Request.EXEC:
            peer.say(Reply.STARTED, frame.id, STARTED)
        elif frame.kind == Request.KILL:
            peer.say(Reply.OK, frame.id, bytes(8))

    provider.answer = answer
    with anyio.fail_after(20), pytest.raises(SandboxLost, match="not told"):
        await sandbox.exec(["x"], timeout=0.1, grace=0.1)


async def test_a_cancelled_exec_whose_kill_is_not_proved_is_a_loss(
    provider: FakeProvider, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execution, "KILL_MARGIN", 0.2)
    provider.answer = lambda peer, frame: (
        peer.say(Reply.STARTED, frame.id, STARTED) if frame.kind == Request.EXEC else None
    )
    with anyio.fail_after(20):
        with anyio.move_on_after(0.2):
            await sandbox.exec(["x"], grace=0.1)
        with pytest.raises(SandboxLost, match="could not be proved"):
            await sandbox.exec(["x"])


async def test_closing_ends_what_runs_then_destroys(provider: FakeProvider) -> None:
    running = 9

    def answer(peer: Peer, frame: Frame) -> None:
        if frame.kind == Request.EXECS:
            line = running.to_bytes(8, "little") + b"\x01" + bytes(4) + bytes(24)
            peer.say(Reply.OK, frame.id, (1).to_bytes(4, "little") + line)
        elif frame.kind == Request.KILL:
            assert not provider.destroyed
            peer.say(Reply.OK, frame.id, bytes(8))

    provider.answer = answer
    sandbox = await provider.sandbox(detached=False)
    await sandbox.aclose()
    await sandbox.aclose()
    assert [frame.payload[:8] for frame in provider.all(Request.KILL)] == [running.to_bytes(8, "little")]
    assert provider.destroyed == 1
    with pytest.raises(SandboxLost):
        await sandbox.read("f")


async def test_closing_what_is_lost_still_destroys_and_raises_nothing(provider: FakeProvider) -> None:
    def answer(peer: Peer, frame: Frame) -> None:
        provider.down = True
        peer.hang_up()

    provider.answer = answer
    sandbox = await provider.sandbox(detached=False)
    with anyio.fail_after(20):
        await sandbox.aclose()
    assert provider.destroyed == 1


async def test_closing_a_detached_sandbox_touches_nothing(provider: FakeProvider) -> None:
    sandbox = await provider.sandbox(detached=True)
    await sandbox.aclose()
    assert provider.destroyed == 0
    assert provider.all(Request.KILL) == provider.all(Request.EXECS) == []


async def test_a_signal_over_a_broken_channel_is_not_sent_again(provider: FakeProvider, sandbox: Sandbox) -> None:
    def start(peer: Peer, frame: Frame) -> None:
        if frame.kind == Request.EXEC:
            peer.say(Reply.STARTED, frame.id, STARTED)
        elif frame.kind == Request.SIGNAL:
            peer.hang_up()

    provider.answer = start
    process = await sandbox.start(ExecRequest(command=["x"]))
    with pytest.raises(Exception, match="may or may not"):
        await process.signal(10)
    assert len(provider.all(Request.SIGNAL)) == 1


async def test_an_engine_that_does_not_answer_is_waited_for_and_the_watcher_is_told(
    provider: FakeProvider, sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_OUTAGE_POLL", 0.01)
    answers = provider.open_stream
    tried: list[SandboxRef] = []
    seen: list[tuple[str, str]] = []

    async def away_for_a_while(ref: SandboxRef) -> ByteStream:
        tried.append(ref)
        if len(tried) <= 20:
            raise EngineUnavailable("nobody there")
        return await answers(ref)

    monkeypatch.setattr(provider, "open_stream", away_for_a_while)
    sandbox.watch(lambda state, why: seen.append((state, why)))
    once(provider, hang_up, lambda peer, frame: peer.say(Reply.OK, frame.id))
    await sandbox.pause()
    assert len(tried) == 21
    assert seen == [("degraded", "nobody there"), ("ready", "the supervisor answers again")]


async def test_an_engine_that_stays_away_for_orphan_grace_is_a_loss_that_names_it(
    provider: FakeProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_OUTAGE_POLL", 0.01)
    seen: list[str] = []

    async def away(ref: SandboxRef) -> ByteStream:
        raise EngineUnavailable("nobody there")

    async with await provider.sandbox(orphan_grace=1.0) as sandbox:
        monkeypatch.setattr(provider, "open_stream", away)
        sandbox.watch(lambda state, why: seen.append(state))
        provider.peers[0].hang_up()
        with anyio.fail_after(5), pytest.raises(SandboxLost, match=r"out of reach for 1 s.*nobody there"):
            await sandbox.pause()
    assert seen == ["degraded", "lost"]
