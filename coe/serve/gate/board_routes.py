"""Boards: hand in, read, take back. 202 is said after the commit; the same key and body get the same answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field
from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError
from starlette.responses import JSONResponse, Response

from coe.core import Verdict
from coe.helpers.strict_model import StrictModel
from coe.serve import failpoints, request
from coe.serve.clock import microseconds, moment_us
from coe.serve.database import audit, board_rows, call_rows, recipe_versions, row_types, states, views
from coe.serve.database.board_rows import BoardFilter
from coe.serve.database.tables import Board, Call, NewBoard, Recipe
from coe.serve.enums import UNDECIDED, BoardState
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.operations import ANY, DIGITS, FEED, FINDING, JsonBody, JsonForm, OperationRouter, RowId, Visit
from coe.serve.gate.problems import Problem, ProblemKind, existing
from coe.serve.gate.recipe_routes import expect_confirmed
from coe.serve.gate.stats_routes import Moment
from coe.serve.recipe_content import RecipeContent
from coe.serve.request import BoardRequest, BoardUnit, digest_of
from coe.serve.text_checks import SpeltText

router = OperationRouter()

MAX_WAIT_S = 60.0  # the longest time that a client may wait for a decision in one request
FACTS = (
    "key state verdict late revision serial panel side work_order components reason accepted_us due_us "
    "started_us decided_us verified_us board=id pass=pass_number"
)
OF_RECIPE: Mapping[str, Any] = {"recipe": str, "version": int}
_ACCEPTED = JsonForm("AcceptedBoard", Board, "key accepted_us due_us board=id pass=pass_number", OF_RECIPE)
_CALL = JsonForm(
    "BoardCall", Call, "id refdes component detail expert label score late place revision verdict reason open=is_open"
)
_GOOD = JsonForm("GoodComponent", board_rows.GoodComponent, "refdes component", {"findings": FINDING.many})
_UNIT = JsonForm("PanelUnit", BoardUnit, "number serial unit=name bad_mark=is_skipped", {"verdict": Verdict | None})
_BOARD = JsonForm(
    "Board",
    Board,
    FACTS,
    {**OF_RECIPE, "serials": Mapping[str, str], "units": _UNIT.many, "calls": _CALL.many},
    {"good": _GOOD.many},
)


@dataclass(frozen=True, slots=True)
class Handed:
    """A board that is in the database, with its recipe."""

    board: Board
    recipe: Recipe


@router.add("POST", "/api/v1/boards/{key}", FEED, body=BoardRequest, sends=_ACCEPTED, gives="Location", status=202)
async def post_board(visit: Visit) -> Response:
    """Submit a board.

    Its views come first. After the answer 202 the board will be decided or aborted, whatever happens. The same key and
    body get the same answer.
    """
    handed = await hand_in(visit.gate, visit.caller, visit.name("key"), visit.body)
    board, recipe = handed.board, handed.recipe
    answer = _ACCEPTED(board, recipe=recipe.name, version=recipe.version)
    return JSONResponse(answer, int(HTTPStatus.ACCEPTED), {"Location": f"/api/v1/boards/{board.id}"})


async def hand_in(gate: Gate, by: str, key: str, body: JsonBody[BoardRequest]) -> Handed:
    """Accept a board whose views are there; raises Problem, and ConfigError for wrong views."""
    accept = partial(_hand_in, gate, key, body, by)
    try:
        handed = await gate.run(accept)
    except IntegrityError:  # another client handed the same key in at the same moment
        handed = await gate.run(accept)
    gate.feed.hurry()
    return handed


def _hand_in(gate: Gate, key: str, body: JsonBody[BoardRequest], by: str) -> Handed:
    digest = digest_of(body.data)
    with gate.database.reading() as connection:
        # Rules are checked here, where nobody waits for the lock.
        known = _known(connection, key, digest) or _checked(gate, connection, key, body.form)
    if isinstance(known, Handed):
        return known
    with gate.database.writing() as connection:
        views.hold(connection)
        if again := _known(connection, key, digest):
            return again
        # A view may have come or changed since the check, and the gate may be draining.
        recipe = _checked(gate, connection, key, body.form)
        new = _new_board(gate, key, digest, body, recipe, by)
        failpoints.reached(failpoints.Failpoint.BOARD_CHECKED)
        board = board_rows.accept(connection, new)
    failpoints.reached(failpoints.Failpoint.BOARD_ACCEPTED)
    return Handed(board, recipe)


def _known(connection: Connection, key: str, digest: str) -> Handed | None:
    """Return the board that was handed in under this key with this body; raises Problem if the body was another."""
    board = board_rows.of_key(connection, key)
    if board is None:
        return None
    if board.digest != digest:
        raise Problem(
            ProblemKind.CONFLICT,
            f"board '{key}' was submitted before with another body",
            "use a new key for each submission, also for a reinspection",
        )
    return Handed(board, recipe_versions.get(connection, board.recipe_id))


def _checked(gate: Gate, connection: Connection, key: str, form: BoardRequest) -> Recipe:
    """Return the recipe of a board that may be accepted now; raises Problem, and ConfigError for wrong views."""
    if why := states.why_closed(connection):
        raise Problem(ProblemKind.DRAINING, why, "submit the board after it has resumed")
    if board_rows.count_undecided(connection) >= gate.config.limits.waiting_boards:
        detail = f"{gate.config.limits.waiting_boards} boards wait for their decision"
        raise Problem(ProblemKind.BUSY, detail, "try again later, or raise `limits.waiting_boards`")
    recipe = _recipe(connection, form)
    content = RecipeContent.model_validate(recipe.content)
    there = {view.name: view.sha256 for view in views.of_board(connection, key) if view.removed_us is None}
    form.check(content, content.board(recipe.name), there)
    return recipe


def _recipe(connection: Connection, form: BoardRequest) -> Recipe:
    if form.version is not None:
        recipe = recipe_versions.version(connection, form.recipe, form.version)
        way_out = "leave `version` out for the active version, or see GET /api/v1/recipes"
    else:
        recipe = recipe_versions.active(connection, form.recipe)
        way_out = "activate a version of it: POST /api/v1/recipes/{name}/{version}/activate"
    if recipe is None:
        which = f"version {form.version}" if form.version else "active version"
        raise Problem(ProblemKind.INVALID, f"recipe '{form.recipe}' has no {which}", way_out)
    expect_confirmed(connection, recipe)
    return recipe


def _new_board(gate: Gate, key: str, digest: str, body: JsonBody[BoardRequest], recipe: Recipe, by: str) -> NewBoard:
    form, now_us = body.form, gate.now_us()
    content = RecipeContent.model_validate(recipe.content)
    within_s = form.within_s or content.within_s
    due_us = None if within_s is None else now_us + microseconds(within_s)
    return NewBoard(
        key=key,
        digest=digest,
        recipe_id=recipe.id,
        serial=form.serial,
        panel=form.panel,
        side=form.side,
        work_order=form.work_order,
        request=form.model_dump(mode="json"),
        fed_by=by,
        accepted_us=now_us,
        due_us=due_us,
        components=len(form.views if form.whole is None else content.components),
    )


class BoardQuery(StrictModel):
    """How a board is asked for."""

    wait: Annotated[
        float, Field(ge=0, le=MAX_WAIT_S, allow_inf_nan=False, description="seconds to wait for the decision")
    ] = 0
    good: Annotated[int, Field(ge=0, le=1, description="1: with the components that are OK, too"), DIGITS] = 0


@router.add("GET", "/api/v1/boards/{id:int}", ANY, query=BoardQuery, sends=_BOARD)
async def get_board(visit: Visit) -> Mapping[str, Any]:
    """Get a board, its verdict and calls."""
    gate, id = visit.gate, visit.id
    asked: BoardQuery = visit.query
    if asked.wait:
        with gate.places.taken(visit.key):
            await until_decided(gate, id, asked.wait)
    return await gate.read(partial(_board_shown, id=id, with_good=asked.good > 0))


async def until_decided(gate: Gate, id: int, wait_s: float) -> Board:
    """Return a board once it is decided or aborted, or as it is after a time; raises Problem if there is none."""
    loop = asyncio.get_running_loop()
    until_s = loop.time() + wait_s
    seen_id = gate.feed.last_id
    board = await gate.read(partial(board_named, id=id))
    while board.state in UNDECIDED and (left_s := until_s - loop.time()) > 0 and not gate.feed.closed:
        new = await gate.feed.after(seen_id, left_s)
        seen_id = new[-1].id if new else seen_id
        if any(event.board_id == id for event in new):
            board = await gate.read(partial(board_named, id=id))
    return board


def board_named(connection: Connection, *, id: int) -> Board:
    """Return the board of an id; raises Problem if there is none."""
    way_out = "use the number of `board` in the answer to its POST, or see the page of boards"
    return existing(row_types.get(connection, Board, id), f"board {id}", way_out)


def _board_shown(connection: Connection, *, id: int, with_good: bool) -> Mapping[str, Any]:
    board, called = board_named(connection, id=id), call_rows.of_board(connection, id)
    recipe = recipe_versions.get(connection, board.recipe_id)
    body = _BOARD(
        board,
        recipe=recipe.name,
        version=recipe.version,
        serials=board.request.get("serials", {}),
        units=[_UNIT(one.unit, verdict=one.verdict) for one in request.views_of(board, recipe, called)],
        calls=[_CALL(call) for call in called],
    )
    if with_good:
        names = {call.refdes for call in called}
        good = [part for part in board_rows.unpack(board_rows.findings_of(connection, id)) if part.refdes not in names]
        body["good"] = [_GOOD(part, findings=part.findings) for part in good]
    return body


@router.write("DELETE", "/api/v1/boards/{id:int}", FEED, status=204)
def delete_board(visit: Visit, connection: Connection) -> None:
    """Withdraw an undecided board."""
    take_back(visit, connection, visit.id)


def take_back(visit: Visit, connection: Connection, id: int) -> None:
    """Abort a board for the caller; raises Problem if it is decided."""
    board, now_us = board_named(connection, id=id), visit.gate.now_us()
    if not board_rows.abort(connection, board, now_us, reason=f"withdrawn by {visit.caller}"):
        way_out = "only an undecided board can be withdrawn"
        raise Problem(ProblemKind.CONFLICT, f"board {id} is {board.state}", way_out)
    audit.append(connection, visit.caller, "abort", f"board {id}", now_us=now_us)


# Find boards: by serial, key, verdict, component, state and time. Who searches blindly finds what an operator sees.
_MOST_FOUND = 500
_FOUND = JsonForm("FoundBoard", Board, FACTS + " called=calls", OF_RECIPE)
_PAGE = JsonForm("FoundBoards", more={"boards": _FOUND.many, "next": int | None})
_T = TypeVar("_T")
_Given = Annotated[_T | None, BeforeValidator(lambda given: None if given == "" else given)]
"""A condition; an empty text, as an empty field of a form sends it, is none."""


class BoardsQuery(StrictModel):
    """Which boards are searched, and how many."""

    serial: Annotated[_Given[SpeltText], Field(description="boards of this serial, and panels with a unit of it")] = (
        None
    )
    key: Annotated[_Given[str], Field(description="the board that was submitted under this key")] = None
    verdict: Annotated[_Given[Verdict], Field(description="OK, NG or REVIEW")] = None
    component: Annotated[_Given[SpeltText], Field(description="boards with a call of this component type")] = None
    state: Annotated[_Given[BoardState], Field(description="state of the board")] = None
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
    """A page of boards, newest first, names and versions of their recipes by id, and the `after` of the next page."""

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


@router.read("/api/v1/boards", ANY, query=BoardsQuery, sends=_PAGE)
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
