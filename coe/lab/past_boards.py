"""A history for measurements: boards with calls, answers, events and an audit chain, as years of work would leave.

Rows only, and no pictures; the service could have written each row, and nothing here is a board that anybody inspected.
Ids are given here, because rows of many boards refer to each other before any is inserted.
"""

from __future__ import annotations

import hashlib
import uuid
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, insert, select

from coe.board.parts_list import Side
from coe.core import Verdict
from coe.serve.clock import HOUR_US, SECOND_US
from coe.serve.database import audit, tables
from coe.serve.database.connecting import Database
from coe.serve.database.row_types import values_of
from coe.serve.database.tables import NewCall
from coe.serve.enums import BoardState, CallReason, EventKind, Outcome

Row = dict[str, Any]
_TABLES = (tables.board, tables.view, tables.call, tables.verification, tables.event)
"""In the order in which they are written."""

HOURS = 168
"""The boards of a history were decided within so many hours."""
CALLS = 0.5
"""The mean number of calls on a board."""
FALSE, REAL = 0.8, 0.15
"""The shares of calls that people called false, and confirmed; the others are open."""
_TOGETHER = 2000


class HistoryRows:
    """Rows of some boards, to be written in one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: dict[str, list[Row]] = {table.name: [] for table in _TABLES}
        self._ids: dict[str, int] = {}
        for table in _TABLES:
            self._ids[table.name] = connection.scalar(select(func.coalesce(func.max(table.c.id), 0))) or 0
        self.answers = self._rows[tables.verification.name]

    def board(self, key: str, recipe_id: int, decided_us: int, calls: list[Row], **more: Any) -> int:
        """Add a decided board with its calls, which get its id, and return it; `more` are other columns.

        Without an open call the board is verified, a minute after its decision.
        """
        is_open = any(call["verification_id"] is None for call in calls)
        row: Row = {
            "key": key,
            "digest": hashlib.sha256(key.encode()).hexdigest(),
            "recipe_id": recipe_id,
            "state": BoardState.DECIDED if is_open else BoardState.VERIFIED,
            "serial": "",
            "panel": "",
            "side": Side.TOP,
            "work_order": "",
            "request": {},
            "fed_by": "feeder",
            "accepted_us": decided_us - 4 * SECOND_US,
            "started_us": decided_us - 3 * SECOND_US,
            "attempts": 1,
            "decided_us": decided_us,
            "verified_us": None if is_open else decided_us + 60 * SECOND_US,
            "verdict": max((call["verdict"] for call in calls), key=lambda one: one.severity, default=Verdict.OK),
            "calls": len(calls),
        }
        id = self._add(tables.board.name, row | more)
        for call in calls:
            call["board_id"] = id
        return id

    def view(self, key: str, name: str, received_us: int, **more: Any) -> int:
        """Add a view of the board of a key, and return its id."""
        return self._add(tables.view.name, {"board_key": key, "name": name, "received_us": received_us, **more})

    def call(self, refdes: str, component: str, label: str, opened_us: int, **more: Any) -> Row:
        """Add an open call of an expert that found a defect, and return its row; `board` gives it its board."""
        expert = f"body-{component.lower()}"
        new = NewCall(refdes, component, Verdict.NG, CallReason.EXPERT, expert=expert, label=label)
        row = {**values_of(new), "opened_us": opened_us, "verification_id": None, "revision": 0, **more}
        self._add(tables.call.name, row)
        return row

    def answer(self, call: Row, outcome: Outcome, verified_us: int, by: str) -> None:
        """Add a person's answer to a call."""
        row = {"call_id": call["id"], "outcome": outcome, "verified_us": verified_us, "verified_by": by}
        call["verification_id"] = self._add(tables.verification.name, row)
        call["revision"] = 1

    def event(self, **row: Any) -> None:
        """Add an event."""
        self._add(tables.event.name, row)

    def _add(self, table: str, row: Row) -> int:
        self._ids[table] += 1
        row["id"] = self._ids[table]
        self._rows[table].append(row)
        return self._ids[table]

    def insert(self) -> None:
        """Insert all rows."""
        for table in _TABLES:
            if rows := self._rows[table.name]:
                self._connection.execute(insert(table), rows)


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

    def _call(self, index: int, chance: float, at_us: int) -> Row:
        component = self._components[int(chance * 1e6) % len(self._components)]
        call = self._rows.call(f"P{index}", component, "cracked", at_us, expert=f"body-{component}", score=0.9)
        if chance < FALSE + REAL:
            outcome = Outcome.FALSE_CALL if chance < FALSE else Outcome.CONFIRMED
            self._rows.answer(call, outcome, at_us + 60 * SECOND_US, "ann")
        return call

    def write(self) -> None:
        """Insert the rows, and add an entry of the audit for each answer, chained to the newest entry."""
        self._rows.insert()
        newest = select(tables.audit.c.hash).order_by(tables.audit.c.id.desc()).limit(1)
        last, entries = self._connection.scalar(newest) or audit.BEGINNING, []
        for answer in self._rows.answers:
            entry = {
                "acted_us": answer["verified_us"],
                "actor": answer["verified_by"],
                "action": "verify",
                "about": f"call {answer['call_id']}",
                "detail": {"outcome": answer["outcome"].value},
                "previous": last,
            }
            last = audit.hash_of(entry)
            entries.append(entry | {"hash": last})
        if entries:
            self._connection.execute(insert(tables.audit), entries)
