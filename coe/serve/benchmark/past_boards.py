"""A history for measurements: boards with calls, answers, events and an audit chain, as years of work would leave.

Law: rows only, and no pictures; nothing here is a board that anybody inspected.
"""

from __future__ import annotations

import uuid
from collections import Counter
from typing import Any

import numpy as np
from sqlalchemy import Connection, insert, select

from coe.serve.benchmark.benchmark_rows import HistoryRows, Row
from coe.serve.clock import HOUR_US, SECOND_US, hour_of
from coe.serve.database import audit, tables
from coe.serve.database.connecting import Database
from coe.serve.database.tallies import Tally
from coe.serve.enums import EventKind, Outcome

HOURS = 168
"""The boards of a history were decided within so many hours."""
CALLS = 0.5
"""The mean number of calls on a board."""
FALSE, REAL = 0.8, 0.15
"""The shares of calls that people called false, and confirmed; the others are open."""
_TOGETHER = 2000


def fill(database: Database, recipe_id: int, components: list[str], boards: int, end_us: int) -> None:
    """Write so many boards of a recipe with these component types; the newest was decided at `end_us`."""
    rng = np.random.default_rng(1)
    step_us = HOURS * HOUR_US // max(1, boards)
    for first in range(0, boards, _TOGETHER):
        numbers = range(first, min(boards, first + _TOGETHER))
        with database.writing() as connection:
            writer = _Writer(connection, rng, recipe_id, components)
            for number in numbers:
                writer.board(number, end_us - (boards - 1 - number) * step_us)
            writer.write()


class _Writer:
    """Makes the rows of some boards."""

    def __init__(self, connection: Connection, rng: np.random.Generator, recipe_id: int, components: list[str]) -> None:
        self._connection, self._rng, self._recipe_id, self._components = connection, rng, recipe_id, components
        self._rows = HistoryRows(connection)
        self._findings: Counter[tuple[int, int, str, str, str]] = Counter()

    def board(self, number: int, at_us: int) -> None:
        """Add a board that was decided at a time."""
        key = f"history-{number + 1:07d}"
        chances = self._rng.random(int(self._rng.poisson(CALLS)))
        calls = [self._call(index, float(chance), at_us) for index, chance in enumerate(chances)]
        id = self._rows.board(
            key,
            self._recipe_id,
            at_us,
            calls,
            serial=f"SN{number:07d}",
            pass_number=1 if number % 50 else 2,
            components=len(self._components),
        )
        file = {"file": f"00/{uuid.uuid4().hex}", "sha256": "0" * 64, "size_bytes": 5_000_000, "pixels": 24_000_000}
        self._rows.view(key, "top", at_us, removed_us=at_us, **file)
        for kind in (EventKind.BOARD_ACCEPTED, EventKind.BOARD_STARTED, EventKind.BOARD_DECIDED):
            body = {"board": id, "key": key}
            self._rows.event(uuid=str(uuid.uuid4()), kind=kind, board_id=id, happened_us=at_us, body=body)
        for component in self._components:
            self._findings[hour_of(at_us), self._recipe_id, component, f"body-{component}", "ok"] += 1

    def _call(self, index: int, chance: float, at_us: int) -> Row:
        component = self._components[int(chance * 1e6) % len(self._components)]
        call = self._rows.call(f"P{index}", component, "cracked", at_us, expert=f"body-{component}", score=0.9)
        if chance < FALSE + REAL:
            outcome = Outcome.FALSE_CALL if chance < FALSE else Outcome.CONFIRMED
            self._rows.answer(call, outcome, at_us + 60 * SECOND_US, "ann")
        return call

    def write(self) -> None:
        """Insert the rows, and count them."""
        self._rows.tallies += [self._tally(key, number) for key, number in self._findings.items()]
        self._rows.insert()
        if entries := self._entries(self._connection):
            self._connection.execute(insert(tables.audit), entries)

    def _tally(self, key: tuple[int, int, str, str, str], number: int) -> Tally:
        """Return the findings of an hour with mean scores near 0.9, and a deviation of 0.05."""
        mean = float(self._rng.normal(0.9, 0.05 / number**0.5))
        return Tally(*key, number, 0, mean * number, (mean**2 + 0.05**2) * number)

    def _entries(self, connection: Connection) -> list[dict[str, Any]]:
        """Return an entry of the audit for each answer, chained to the newest entry."""
        last = connection.scalar(select(tables.audit.c.hash).order_by(tables.audit.c.id.desc()).limit(1))
        entries: list[dict[str, Any]] = []
        for word in self._rows.answers:
            entry = {
                "acted_us": word["verified_us"],
                "actor": word["verified_by"],
                "action": "verify",
                "about": f"call {word['call_id']}",
                "detail": {"outcome": word["outcome"].value},
                "previous": entries[-1]["hash"] if entries else last or audit.BEGINNING,
            }
            entries.append(entry | {"hash": audit.hash_of(entry)})
        return entries
