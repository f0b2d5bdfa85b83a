"""What must not be exported as it is labelled: defects under labels that pass, and parts that a report may mean.

A report of an escape names a board by its serial, and both sides and all passes of a board have one serial.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from pydantic import ValidationError
from sqlalchemy import Connection, select, union

from coe.core import NOTHING, Verdict
from coe.errors import CoeError
from coe.serve.database import recipe_versions
from coe.serve.database.tables import Recipe, board, escape, unit_serial
from coe.serve.recipe_content import RecipeContent


class Passing:
    """The labels that do not speak against a part, by expert, in at least one of some versions of recipes.

    `found` holds the experts and labels of parts that the line called OK.
    """

    def __init__(self, connection: Connection, recipe_ids: Iterable[int], found: Iterable[tuple[str, str]]) -> None:
        self._passing, self._known = set(found), set[str]()
        for id in recipe_ids:
            self._add(recipe_versions.get(connection, id))

    def _add(self, recipe: Recipe) -> None:
        try:
            components = RecipeContent.model_validate(recipe.content).board(recipe.name).components.values()
        except (CoeError, ValidationError):  # its experts stay unknown
            return
        for step in {step for component in components for step in component.root.walk()}:
            self._known.add(step.expert)
            self._passing |= {
                (step.expert, label)
                for label, outcome in step.outcomes.items()
                if outcome not in (Verdict.NG, Verdict.REVIEW)
            }

    def may_pass(self, expert: str, label: str, *, said: bool, verdict: Verdict) -> bool:
        """Tell whether a defect must not be kept under a label: `said` by a person, or that of an expert's finding.

        Of an expert that no recipe here names, a label counts that was said, or led to NG.
        """
        if label == NOTHING or (expert, label) in self._passing:
            return True
        return expert not in self._known and not said and verdict is not Verdict.NG


class SuspectedPictures:
    """The parts that the reports of escapes may mean, whenever they came, and whichever of a serial's boards."""

    def __init__(self, connection: Connection) -> None:
        said, serial = escape.c.refdes, escape.c.serial
        known = union(
            select(escape.c.board_id, said).where(escape.c.board_id.is_not(None)),
            select(board.c.id, said).join(escape, (serial == board.c.serial) & (board.c.serial != "")),
            select(unit_serial.c.board_id, said).join(escape, serial == unit_serial.c.serial),
        )
        self._found = defaultdict[int, set[str]](set)
        for id, refdes in connection.execute(known):
            self._found[id].add(refdes.casefold())

    def has(self, board_id: int, refdes: str) -> bool:
        """Tell whether a report may mean a part: it names no part, or this one, as a test of the unit alone does."""
        return not self._found.get(board_id, set()).isdisjoint({"", *_names(refdes)})

    def names(self, board_id: int, refdes: str) -> bool:
        """Tell whether a report names a part."""
        return not self._found.get(board_id, set()).isdisjoint(_names(refdes))


def _names(refdes: str) -> set[str]:
    name = refdes.casefold()
    return {name, name.rpartition("/")[2]}
