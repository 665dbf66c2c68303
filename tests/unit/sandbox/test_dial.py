"""The host's listener: one stream from the right peer, and nothing left in the directory."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

import anyio
import pytest

from kinfold.errors import StartFailed
from kinfold.sandbox.dial import Listener
from kinfold.sandbox.streams import SocketStream

pytestmark = pytest.mark.anyio


def dial(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    folder = os.open(path.parent, os.O_PATH)
    connection.connect(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)
    return connection


async def test_whoever_dials_is_the_stream(tmp_path: Path) -> None:
    async with Listener(tmp_path) as listener:
        assert os.listdir(tmp_path) == [listener.path.name], "the hidden name is gone"
        assert stat.S_IMODE(listener.path.stat().st_mode) == 0o666
        peer = dial(listener.path)
        stream = await listener.accept(5)
    assert os.listdir(tmp_path) == []
    peer.sendall(b"hello")
    assert await stream.receive() == b"hello"
    await stream.send(b"back")
    assert peer.recv(10) == b"back"
    await stream.aclose()
    assert peer.recv(10) == b""
    peer.close()


async def test_a_directory_deeper_than_a_socket_address_works(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    async with Listener(deep) as listener:
        peer = dial(listener.path)
        await (await listener.accept(5)).aclose()
        peer.close()


async def test_a_peer_of_another_uid_is_hung_up_on(tmp_path: Path) -> None:
    async with Listener(tmp_path, peer_uids=frozenset({os.geteuid() + 1})) as listener:
        peer = dial(listener.path)
        with pytest.raises(StartFailed, match="did not dial"):
            await listener.accept(0.2)
        assert peer.recv(10) == b""
        peer.close()


async def test_a_cut_stream_says_so() -> None:
    ours, theirs = socket.socketpair()
    stream = SocketStream(ours)
    theirs.close()
    with pytest.raises(anyio.EndOfStream):
        await stream.receive()
    with pytest.raises(anyio.BrokenResourceError):
        await stream.send(b"x")
    await stream.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await stream.receive()
