"""Parts that a later test found defective. Law: what may be one of them is exported among the good ones by no door.

A report names a board by its serial, and both sides and all passes of a board have one serial: it is about each.
"""

from __future__ import annotations

from collections import defaultdict

from sqlalchemy import Connection, select, union

from coe.serve.database.tables import board, escape, unit_serial


class SuspectedPictures:
    """The parts that the reports of escapes may mean, whenever they came, and whichever of a serial's boards."""

    def __init__(self, connection: Connection) -> None:
        said = escape.c.refdes
        known = union(
            select(escape.c.board_id, said).where(escape.c.board_id.is_not(None)),
            select(board.c.id, said).join(escape, (escape.c.serial == board.c.serial) & (board.c.serial != "")),
            select(unit_serial.c.board_id, said).join(escape, escape.c.serial == unit_serial.c.serial),
        )
        self._found = defaultdict[int, set[str]](set)
        for id, refdes in connection.execute(known):
            self._found[id].add(refdes.casefold())

    def has(self, board_id: int, refdes: str) -> bool:
        """Tell whether a report may mean a part: it names no part, or this one, as a test of the unit alone does."""
        name = refdes.casefold()
        return not self._found.get(board_id, set()).isdisjoint({"", name, name.rpartition("/")[2]})
