"""Rows of a history that nobody lived through, inserted together. Law: the service could have written each row.

Ids are given here, because rows of many boards refer to each other before any is inserted.
"""

from __future__ import annotations

import hashlib
from typing import Any

from sqlalchemy import Connection, func, insert, select

from coe.core import Verdict
from coe.placement.dialects import Side
from coe.serve.clock import SECOND_US
from coe.serve.database import counts, tables, tallies
from coe.serve.database.tallies import Tally
from coe.serve.enums import BoardState, CallKind, CallReason, Outcome

Row = dict[str, Any]
_TABLES = (tables.board, tables.view, tables.call, tables.verification, tables.event)
"""In the order in which they are written."""


class HistoryRows:
    """Rows of some boards, to be written in one transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._rows: dict[str, list[Row]] = {table.name: [] for table in _TABLES}
        self._ids: dict[str, int] = {}
        for table in _TABLES:
            self._ids[table.name] = connection.scalar(select(func.coalesce(func.max(table.c.id), 0))) or 0
        self.tallies: list[Tally] = []

    @property
    def answers(self) -> list[Row]:
        """The answers to calls so far."""
        return self._rows[tables.verification.name]

    def board(self, key: str, recipe_id: int, decided_us: int, calls: list[Row], **more: Any) -> int:
        """Add a decided board with its calls, which get its id, and return it; `more` are other columns.

        Without an open call the board is verified, a minute after its decision.
        """
        defects = [call for call in calls if call["kind"] is CallKind.DEFECT]
        is_open = any(call["verification_id"] is None for call in defects)
        row: Row = {
            "key": key,
            "digest": hashlib.sha256(key.encode()).hexdigest(),
            "recipe_id": recipe_id,
            "state": BoardState.DECIDED if is_open else BoardState.VERIFIED,
            "side": Side.TOP,
            "request": {},
            "fed_by": "feeder",
            "accepted_us": decided_us - 4 * SECOND_US,
            "started_us": decided_us - 3 * SECOND_US,
            "attempts": 1,
            "decided_us": decided_us,
            "verified_us": None if is_open else decided_us + 60 * SECOND_US,
            "verdict": max((call["verdict"] for call in defects), key=lambda one: one.severity, default=Verdict.OK),
            "calls": len(defects),
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
        row: Row = {
            "kind": CallKind.DEFECT,
            "refdes": refdes,
            "component": component,
            "view_id": None,
            "verdict": Verdict.NG,
            "reason": CallReason.EXPERT,
            "expert": f"body-{component.lower()}",
            "label": label,
            "score": None,
            "findings": [],
            "opened_us": opened_us,
            "verification_id": None,
            "revision": 0,
            "face": None,
        } | more
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
        """Insert all rows, and count them as the service would have counted them."""
        for table in _TABLES:
            if rows := self._rows[table.name]:
                self._connection.execute(insert(table), rows)
        tallies.add(self._connection, self.tallies)
        ids = [row["id"] for row in self._rows[tables.board.name]]
        counts.add(self._connection, tables.board.c.id.between(min(ids), max(ids)))
