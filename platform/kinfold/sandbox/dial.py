"""The host's end of the local socket: listen in a sandbox's own directory until its supervisor dials.

The host listens and the supervisor dials, never the other way round: a fallen supervisor could swap a socket of its
own for a link to another one.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import anyio

from kinfold.errors import StartFailed
from kinfold.sandbox.streams import SocketStream

_UCRED = struct.Struct("3i")
_SOCKET_MODE = 0o666
"""The supervisor is uid 0 without CAP_DAC_OVERRIDE, so the mode must let it in; the directory keeps others out."""


class Listener:
    """One socket file, for one stream: made, dialled once, removed.

    `directory` is the one that the supervisor watches. The file gets its name only when it can be dialled: it is
    made under a hidden name and renamed. `peer_uids` are the uids that may dial; None allows any (user namespaces
    map the supervisor's uid), where the directory's mode is the only guard.
    """

    def __init__(self, directory: Path, *, peer_uids: frozenset[int] | None = None) -> None:
        self._peer_uids = peer_uids
        name = secrets.token_hex(8)
        self.path = directory / f"{name}.sock"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        hidden = f".{name}"
        try:
            # By descriptor, for a socket's address holds 107 bytes and a state directory may lie deep.
            self._socket.bind(f"/proc/self/fd/{folder}/{hidden}")
            os.chmod(hidden, _SOCKET_MODE, dir_fd=folder)
            self._socket.listen(4)
            self._socket.setblocking(False)
            os.rename(hidden, self.path.name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            self._socket.close()
            with suppress(FileNotFoundError):
                os.unlink(hidden, dir_fd=folder)
            raise
        finally:
            os.close(folder)

    async def accept(self, timeout: float) -> SocketStream:
        """The supervisor's stream. Raises `StartFailed` when nobody with the right uid dialled in `timeout` seconds."""
        with anyio.move_on_after(timeout):
            while True:
                # Not the loop's sock_accept: cancelled in the very step of a dial, it loses the connection.
                await anyio.wait_readable(self._socket)
                try:
                    connection, _ = self._socket.accept()
                except BlockingIOError:
                    continue
                connection.setblocking(False)
                if self._peer_uids is None or _peer_uid(connection) in self._peer_uids:
                    return SocketStream(connection)
                connection.close()
        raise StartFailed(
            f"the supervisor did not dial within {timeout:g} s",
            hint="see the sandbox's log; `kinfold doctor` checks the engine",
        )

    async def aclose(self) -> None:
        """Remove the socket file and stop listening; an accepted stream lives on."""
        with suppress(FileNotFoundError):
            self.path.unlink()
        self._socket.close()

    async def __aenter__(self) -> Listener:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


def _peer_uid(connection: socket.socket) -> int:
    raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
    uid: int = _UCRED.unpack(raw)[1]
    return uid
