"""What the gate remembers of people at its door until the database takes it, as while the disk is full.

A person must be able to sign in and out when something is wrong, for there is work to do then. Wrong keys are counted,
and written once a minute at most: whoever has no key must not be able to fill the disk.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection

from coe.serve.database import audit, call_rows, keys
from coe.serve.database.tables import Key
from coe.serve.enums import Role

EVERY_S = 60.0
"""How often wrong keys are written into the audit chain, if there were any."""
MOST_SENDERS = 20
"""How many senders of wrong keys are named in one minute; the others are counted together."""
MOST_TRIES, LOCKED_S = 5, 300.0
"""After so many wrong badges of a place, or PINs of a name, nobody may try again for this time."""
_MOST_HELD = 1000


@dataclass(frozen=True, slots=True)
class HeldSession:
    """A session that began at `began_us` from an address, and that the database does not know yet."""

    name: str
    key: Key
    sender: str
    began_us: int
    ends_us: int


class Admissions:
    """Sessions that began or ended while the database took nothing, and wrong keys; any thread may use it."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self._now_s, self._lock = now_s, threading.Lock()
        self._held: dict[str, HeldSession] = {}
        self._ended: dict[str, str] = {}
        self._wrong: Counter[str] = Counter()
        self._next_s = 0.0
        self._tries: dict[str, tuple[int, float]] = {}
        self.guessing = asyncio.Lock()
        """Held from the look at earlier tries until this one counts: of many at a time each would be the first."""

    def begin(self, session: HeldSession) -> None:
        """Begin a session; of too many that wait for the database, the oldest ends."""
        with self._lock:
            if len(self._held) >= _MOST_HELD:
                del self._held[next(iter(self._held))]
            self._held[session.name] = session

    def end(self, name: str, by: str) -> None:
        """End a session, whoever knows it."""
        with self._lock:
            self._held.pop(name, None)
            self._ended[name] = by

    def key_of(self, connection: Connection, name: str, now_us: int, longest_us: Callable[[Role], int]) -> Key | None:
        """Return the key of a session, if both are valid now, whether the database knows the session or not."""
        with self._lock:
            held = self._held.get(name)
            if name in self._ended:
                return None
        if held is not None:
            return keys.by_id(connection, held.key.id, now_us) if now_us < held.ends_us else None
        return keys.of_session(connection, name, now_us, longest_us)

    def wait_s(self, who: str) -> float:
        """Return for how many seconds nobody may try a badge or a PIN of these; 0 if somebody may."""
        with self._lock:
            times, last_s = self._tries.get(who, (0, 0.0))
        return max(0.0, last_s + LOCKED_S - self._now_s()) if times >= MOST_TRIES else 0.0

    def tried(self, who: str, *, is_right: bool) -> None:
        """Note a try; a right one, or a pause, makes earlier wrong ones forgotten."""
        now_s = self._now_s()
        with self._lock:
            tries = {one: (times, at_s) for one, (times, at_s) in self._tries.items() if now_s < at_s + LOCKED_S}
            times, _ = tries.pop(who, (0, 0.0))
            if not is_right:
                tries[who] = (times + 1, now_s)
            self._tries = tries

    def refuse(self, sender: str) -> None:
        """Count a wrong key from an address."""
        with self._lock:
            known = sender in self._wrong or len(self._wrong) < MOST_SENDERS
            self._wrong[sender if known else "others"] += 1

    def write(self, connection: Connection, now_us: int) -> Callable[[], None]:
        """Write what is new; call what this returns once the transaction is on the disk."""
        now_s = self._now_s()
        with self._lock:
            held, ended = list(self._held.values()), dict(self._ended)
            wrong = Counter(self._wrong if now_s >= self._next_s else {})
        for one in held:
            # A write that was given up, or another at the same moment, may have added it.
            if keys.begin_session(connection, one.key, one.name, now_us=one.began_us, ends_us=one.ends_us):
                audit.append(connection, one.key.name, "sign in", one.sender, now_us=one.began_us)
        for name, by in ended.items():
            keys.end_session(connection, name)
            call_rows.free(connection, name)
            audit.append(connection, by, "sign out", "session", now_us=now_us)
        for sender, times in wrong.items():
            audit.append(connection, "nobody", "wrong key", sender, now_us=now_us, detail={"times": times})

        def written() -> None:
            with self._lock:
                for one in held:
                    self._held.pop(one.name, None)
                for name in ended:
                    self._ended.pop(name, None)
                self._wrong -= wrong
                if wrong:
                    self._next_s = now_s + EVERY_S

        return written
