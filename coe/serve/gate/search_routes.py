"""Find boards: by serial, key, verdict, component, state and time. Who searches blindly finds what an operator sees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field
from sqlalchemy import Connection

from coe.core import Verdict
from coe.helpers.strict_model import StrictModel
from coe.serve.clock import moment_us
from coe.serve.database import board_rows, recipe_versions, row_types
from coe.serve.database.board_rows import BoardFilter
from coe.serve.database.tables import Board
from coe.serve.enums import BoardState
from coe.serve.gate.board_routes import FACTS, OF_RECIPE, RENAMED
from coe.serve.gate.json_form import JsonForm
from coe.serve.gate.operations import ANY, DIGITS, OperationRouter, RowId, Visit
from coe.serve.gate.problems import Problem, ProblemKind
from coe.serve.gate.stats_routes import Moment
from coe.serve.text_checks import SpeltText

router = OperationRouter()

_MOST_FOUND = 500
_FOUND = JsonForm("FoundBoard", Board, FACTS, OF_RECIPE, called="calls", **RENAMED)
_PAGE = JsonForm("FoundBoards", more={"boards": _FOUND.many, "next": int | None})
_T = TypeVar("_T")
_Given = Annotated[_T | None, BeforeValidator(lambda given: None if given == "" else given)]
"""A condition; an empty text, as an empty field of a form sends it, is none."""


class BoardsQuery(StrictModel):
    """Which boards are searched, and how many."""

    serial: Annotated[_Given[SpeltText], Field(description="boards of this serial, and panels with a unit of it")] = (
        None
    )
    key: Annotated[_Given[str], Field(description="the board that was handed in under this key")] = None
    verdict: Annotated[_Given[Verdict], Field(description="OK, NG or REVIEW")] = None
    component: Annotated[_Given[SpeltText], Field(description="boards with a call of this component type")] = None
    state: Annotated[_Given[BoardState], Field(description="where the board stands")] = None
    since: Annotated[Moment, Field(description="accepted at this time or later, in UTC or with its offset")] = None
    until: Annotated[Moment, Field(description="accepted before this time, in UTC or with its offset")] = None
    limit: Annotated[int, Field(ge=1, le=_MOST_FOUND, description="how many"), DIGITS] = 100
    after: Annotated[_Given[RowId], Field(description="`next` of the answer before: the boards that follow")] = None

    @property
    def asked(self) -> BoardFilter:
        """The filter of the database."""
        between = (None if moment is None else moment_us(moment) for moment in (self.since, self.until))
        return BoardFilter(self.serial, self.key, self.verdict, self.component, self.state, *between)


@dataclass(frozen=True, slots=True)
class FoundBoards:
    """A page of boards, the newest first; `next` is the `after` of what follows, if any does.

    `recipes` are name and version by the id of a recipe.
    """

    boards: list[Board]
    recipes: Mapping[int, tuple[str, int]]
    next: int | None


def search(connection: Connection, query: BoardsQuery) -> FoundBoards:
    """Return the boards of a query; raises Problem for an unknown `after`."""
    after = None
    if query.after is not None:
        after = row_types.get(connection, Board, query.after)
        if after is None:
            detail = f"`after` names board {query.after}, which does not exist"
            raise Problem(ProblemKind.BAD_REQUEST, detail, "give `next` of the answer before, or leave `after` out")
    rows = board_rows.find(connection, query.asked, limit=query.limit + 1, after=after)
    boards = rows[: query.limit]
    recipes = recipe_versions.titles(connection, (board.recipe_id for board in boards))
    return FoundBoards(boards, recipes, boards[-1].id if len(rows) > query.limit else None)


@router.read(
    "/api/v1/boards", ANY, query=BoardsQuery, answers={200: "boards, and `next` if others follow"}, sends=_PAGE
)
def get_boards(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Find boards.

    By serial, key, verdict, component, state or time, newest first. All conditions must hold. `called` is the number of
    calls of a board.
    """
    found = search(connection, visit.query)
    return _PAGE(boards=[_facts(board, found) for board in found.boards], next=found.next)


def _facts(board: Board, found: FoundBoards) -> dict[str, Any]:
    recipe, version = found.recipes[board.recipe_id]
    return _FOUND(board, recipe=recipe, version=version)
