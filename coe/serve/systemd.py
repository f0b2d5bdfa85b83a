"""What systemd is told of a process, in datagrams on this machine."""

from __future__ import annotations

import os
import socket
from contextlib import suppress

SOCKET = "NOTIFY_SOCKET"  # the variable with the address at which systemd listens, if it asked for it
READY, ALIVE, STOPPING = "READY=1", "WATCHDOG=1", "STOPPING=1"  # without ALIVE for `WatchdogSec` it restarts


def notify(notice: str = READY) -> bool:
    """Tell systemd; False if it did not ask, or does not listen."""
    address = os.environ.get(SOCKET, "")
    if not address:
        return False
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto(notice.encode(), "\0" + address[1:] if address.startswith("@") else address)
        return True
    return False
