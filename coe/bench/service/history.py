"""A history for measurements: boards with calls, answers, events and an audit chain, as years of work would leave.

Law: rows only, and no pictures; nothing here is a board that anybody inspected.
"""

from __future__ import annotations

import hashlib
import uuid
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, insert, select

from coe.core import Verdict
from coe.serve.database import audit, counts, schema, tallies
from coe.serve.database.opening import Database
from coe.serve.database.tallies import Tally
from coe.serve.moments import HOUR_US, SECOND_US, hour_of
from coe.serve.words import BoardState, CallKind, CallReason, EventKind, Outcome, Side

HOURS = 168
"""The boards of a history were decided within so many hours."""
CALLS = 0.5
"""The mean number of calls on a board."""
FALSE, REAL = 0.8, 0.15
"""The shares of calls that people called false, and confirmed; the others are open."""
_TOGETHER = 2000


@dataclass
class _Rows:
    boards: list[dict[str, Any]] = field(default_factory=list)
    views: list[dict[str, Any]] = field(default_factory=list)
    calls: list[dict[str, Any]] = field(default_factory=list)
    words: list[dict[str, Any]] = field(default_factory=list)
    events: list[dict[str, Any]] = field(default_factory=list)
    findings: Counter[tuple[int, int, str, str, str]] = field(default_factory=Counter)


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
            writer.write(connection)


class _Writer:
    """Makes the rows of some boards."""

    def __init__(self, connection: Connection, rng: np.random.Generator, recipe_id: int, components: list[str]) -> None:
        self._rng, self._recipe_id, self._components = rng, recipe_id, components
        self._rows = _Rows()
        self._ids = {
            table.name: connection.scalar(select(func.coalesce(func.max(table.c.id), 0))) or 0
            for table in (schema.board, schema.call, schema.verification)
        }

    def board(self, number: int, at_us: int) -> None:
        """Add a board that was decided at a time."""
        id = self._next("board")
        key = f"history-{id:07d}"
        chances = self._rng.random(int(self._rng.poisson(CALLS)))
        calls = [self._call(id, index, float(chance), at_us) for index, chance in enumerate(chances)]
        is_open = any(call["verification_id"] is None for call in calls)
        self._rows.boards.append(
            {
                "id": id,
                "key": key,
                "digest": hashlib.sha256(key.encode()).hexdigest(),
                "recipe_id": self._recipe_id,
                "state": BoardState.DECIDED if is_open else BoardState.VERIFIED,
                "serial": f"SN{number:07d}",
                "side": Side.TOP,
                "request": {},
                "pass_number": 1 if number % 50 else 2,
                "fed_by": "feeder",
                "accepted_us": at_us - 4 * SECOND_US,
                "started_us": at_us - 3 * SECOND_US,
                "attempts": 1,
                "decided_us": at_us,
                "verified_us": None if is_open else at_us + 60 * SECOND_US,
                "verdict": Verdict.NG if calls else Verdict.OK,
                "components": len(self._components),
                "calls": len(calls),
            }
        )
        view = {"board_key": key, "name": "top", "file": f"00/{uuid.uuid4().hex}", "sha256": "0" * 64}
        self._rows.views.append(
            {**view, "size_bytes": 5_000_000, "pixels": 24_000_000, "received_us": at_us, "removed_us": at_us}
        )
        for kind in (EventKind.BOARD_ACCEPTED, EventKind.BOARD_STARTED, EventKind.BOARD_DECIDED):
            event = {"uuid": str(uuid.uuid4()), "kind": kind, "board_id": id, "happened_us": at_us}
            self._rows.events.append({**event, "body": {"board": id, "key": key}})
        for component in self._components:
            self._rows.findings[hour_of(at_us), self._recipe_id, component, f"body-{component}", "ok"] += 1

    def _call(self, board_id: int, index: int, chance: float, at_us: int) -> dict[str, Any]:
        id, component = self._next("call"), self._components[int(chance * 1e6) % len(self._components)]
        word = None
        if chance < FALSE + REAL:
            word = self._next("verification")
            outcome = Outcome.FALSE_CALL if chance < FALSE else Outcome.CONFIRMED
            moment_us = at_us + 60 * SECOND_US
            self._rows.words.append(
                {"id": word, "call_id": id, "outcome": outcome, "verified_us": moment_us, "verified_by": "ann"}
            )
        self._rows.calls.append(
            {
                "id": id,
                "board_id": board_id,
                "kind": CallKind.DEFECT,
                "refdes": f"P{index}",
                "component": component,
                "verdict": Verdict.NG,
                "reason": CallReason.EXPERT,
                "expert": f"body-{component}",
                "label": "cracked",
                "score": 0.9,
                "findings": [],
                "opened_us": at_us,
                "verification_id": word,
            }
        )
        return self._rows.calls[-1]

    def _next(self, table: str) -> int:
        self._ids[table] += 1
        return self._ids[table]

    def write(self, connection: Connection) -> None:
        """Insert the rows, and count them."""
        rows = self._rows
        for table, listed in (
            (schema.board, rows.boards),
            (schema.view, rows.views),
            (schema.call, rows.calls),
            (schema.verification, rows.words),
            (schema.event, rows.events),
        ):
            if listed:
                connection.execute(insert(table), listed)
        if rows.words:
            connection.execute(insert(schema.audit), self._entries(connection))
        tallies.add(connection, [self._tally(key, number) for key, number in rows.findings.items()])
        ids = [board["id"] for board in rows.boards]
        counts.add(connection, schema.board.c.id.between(min(ids), max(ids)))

    def _tally(self, key: tuple[int, int, str, str, str], number: int) -> Tally:
        """Return the findings of an hour with mean scores near 0.9, and a deviation of 0.05."""
        mean = float(self._rng.normal(0.9, 0.05 / number**0.5))
        return Tally(*key, number, 0, mean * number, (mean**2 + 0.05**2) * number)

    def _entries(self, connection: Connection) -> list[dict[str, Any]]:
        """Return an entry of the audit for each answer, chained to the newest entry."""
        last = connection.scalar(select(schema.audit.c.hash).order_by(schema.audit.c.id.desc()).limit(1))
        entries: list[dict[str, Any]] = []
        for word in self._rows.words:
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
