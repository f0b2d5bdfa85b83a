"""Sessions that people have ended early. Law: what was ended stays ended, after a crash too.

The list is short: a session leaves it when it would have ended by itself. It lies beside the secret that signs
sessions, because each is useless without the other.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

from coe.files import write_atomically

ENDED = "session.ended"
"""The file in the folder of the service: a line for each session, with its name and its end in UTC microseconds."""


class EndedSessions:
    """The list in a file; several threads may use it at a time. Raises OSError for a file that cannot be read."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ENDED
        self._lock = threading.Lock()
        self._ends_us: dict[str, int] = {}
        with suppress(FileNotFoundError):
            for line in self._path.read_text(encoding="ascii", errors="replace").splitlines():
                name, _, ends_us = line.partition(" ")
                if ends_us.isdecimal():  # a file that somebody has damaged must not keep the gate from its work
                    self._ends_us[name] = int(ends_us)

    def __contains__(self, name: str) -> bool:
        return name in self._ends_us

    def add(self, name: str, ends_us: int, now_us: int) -> None:
        """End a session that would last until `ends_us`; raises NotWritten if this process alone knows that."""
        with self._lock:
            self._ends_us = {session: end for session, end in self._ends_us.items() if end > now_us} | {name: ends_us}
            write_atomically(self._path, [f"{session} {end}\n" for session, end in self._ends_us.items()])
