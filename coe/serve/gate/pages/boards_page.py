"""The page that finds boards. What a scanner types opens a board at once if it can mean one board alone."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from http import HTTPStatus
from typing import Annotated

from pydantic import Field
from sqlalchemy import Connection
from starlette.datastructures import URL
from starlette.responses import RedirectResponse, Response

from coe.core import Verdict
from coe.serve.enums import BoardState
from coe.serve.gate.operations import DIGITS, READ, Visit
from coe.serve.gate.pages.rendering import PageRouter, Shown, page
from coe.serve.gate.search_routes import BoardsQuery, FoundBoards, search

router = PageRouter()
_LISTED = 50


class FindQuery(BoardsQuery):
    """What the page searches: `scan` is a serial or, if no board has it, a key."""

    scan: Annotated[str, Field(description="what a person scanned or typed")] = ""
    limit: Annotated[int, Field(ge=1, le=_LISTED, description="how many"), DIGITS] = _LISTED

    @property
    def scanned(self) -> str:
        """The scan without what scanners send around it."""
        return self.scan.strip()


@router.add("GET", "/boards", READ, query=FindQuery)
async def boards(visit: Visit) -> Response:
    """Find boards; a scan that means one board alone opens it."""
    visit = _of_the_place(visit)
    query: FindQuery = visit.query
    if query.scanned and query.after is None:
        found = await visit.gate.read(partial(of_scan, visit))
        if len(found.boards) == 1:
            return RedirectResponse(f"/boards/{found.boards[0].id}", int(HTTPStatus.SEE_OTHER))
    return await page(visit, "boards.j2", partial(_shown, visit))


def _of_the_place(visit: Visit) -> Visit:
    """Return a visit whose times are as a person at the place means them: by the clock there."""
    local, given = visit.gate.config.local, visit.request.query_params
    times = {name: datetime.fromisoformat(given[name]) for name in ("since", "until") if given.get(name)}
    update = {name: local.of(moment).astimezone(UTC) for name, moment in times.items()}
    return replace(visit, query=visit.query.model_copy(update=update))


def of_scan(visit: Visit, connection: Connection) -> FoundBoards:
    """Return the boards that a scan means."""
    query: FindQuery = visit.query
    of_serial = search(connection, query.model_copy(update={"serial": query.scanned}), visit.key)
    if of_serial.boards or query.after is not None:
        return of_serial
    return search(connection, query.model_copy(update={"key": query.scanned}), visit.key)


def _shown(visit: Visit, connection: Connection) -> Shown:
    query: FindQuery = visit.query
    found = of_scan(visit, connection) if query.scanned else search(connection, query, visit.key)
    given = {name: value for name, value in visit.request.query_params.items() if value and name != "after"}
    return {
        "query": query,
        "given": given,
        "found": found,
        "verdicts": list(Verdict),
        "states": list(BoardState),
        "following": URL("/boards").include_query_params(**given, after=found.next) if found.next is not None else None,
    }
