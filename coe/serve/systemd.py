"""What systemd is told of the service."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from enum import StrEnum

SYSTEMD_SOCKET = "NOTIFY_SOCKET"
"""The variable with the address at which systemd listens, if it asked for it."""


class SystemdNotice(StrEnum):
    """The notices that systemd understands."""

    READY = "READY=1"
    ALIVE = "WATCHDOG=1"
    """Worker and database have answered; without it for a while systemd restarts the service."""
    STOPPING = "STOPPING=1"


def notify(notice: SystemdNotice) -> bool:
    """Tell systemd, in a datagram on this machine; False if it did not ask, or does not listen."""
    address = os.environ.get(SYSTEMD_SOCKET, "")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
        sender.sendto(notice.encode(), address)
        return True
    return False
