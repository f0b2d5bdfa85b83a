"""A bell between processes: whoever wrote rings, and who waits looks into the database. Law: it carries no data.

The database is the truth; a ring that is lost costs at most the time until the other process looks again by itself. A
bell is a socket for datagrams on this machine, which every system has. Its port stands in a file, so that there is
nothing to configure. Any program of the machine may ring: it makes somebody look, and nothing else.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from coe.files import NotWritten, write_atomically

_INSIDE, _OUTSIDE = b"i", b"o"
_HOST = "127.0.0.1"
_TOGETHER = 1000
"""How many rings are heard together: whoever rings faster than they are taken must hold nobody up."""


class Bell:
    """The end of a bell that waits; its port is written to `path`. One process at a time."""

    def __init__(self, path: Path) -> None:
        self._socket = _bound(path)
        self._address = self._socket.getsockname()

    def ring(self) -> None:
        """Ring from any thread of this process."""
        with suppress(OSError):  # it is full of rings already
            self._socket.sendto(_INSIDE, self._address)

    def wait(self, timeout_s: float) -> bool:
        """Wait for a ring, at most for a time; return whether another process rang."""
        select.select([self._socket], [], [], max(0.0, timeout_s))
        is_outside = False
        with suppress(BlockingIOError):
            for _ in range(_TOGETHER):
                is_outside |= self._socket.recv(1) == _OUTSIDE
        return is_outside

    def close(self) -> None:
        """Close it."""
        self._socket.close()


async def heard(path: Path, rung: Callable[[], None]) -> asyncio.DatagramTransport:
    """Call `rung` on this event loop whenever another process rings at `path`, until what is returned is closed."""

    class _Rings(asyncio.DatagramProtocol):
        def datagram_received(self, data: bytes, addr: object) -> None:
            rung()

    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(_Rings, sock=_bound(path))
    return transport


def ring(path: Path) -> bool:
    """Ring the bell at a path; False if nobody ever waited there."""
    try:
        address = (_HOST, int(path.read_bytes()))
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ringing:
            ringing.sendto(_OUTSIDE, address)
    except (OSError, ValueError, OverflowError):
        return False
    return True


def _bound(path: Path) -> socket.socket:
    waiting = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    try:
        waiting.bind((_HOST, 0))
        waiting.setblocking(False)
        with suppress(NotWritten):  # on a full disk the rings of others are lost, and the service goes on
            write_atomically(path, [str(waiting.getsockname()[1])])
    except BaseException:
        waiting.close()
        raise
    return waiting
