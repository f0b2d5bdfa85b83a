"""The gate's operations. Routes, access and `/openapi.json` come from one list."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from http import HTTPStatus
from typing import Annotated, Any, TypeVar

from pydantic import BeforeValidator, Field
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response

from coe.helpers.strict_model import StrictModel
from coe.helpers.visible import is_visible
from coe.serve.database.row_types import NAME
from coe.serve.database.tables import Key
from coe.serve.enums import Role
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.json_form import JsonForm
from coe.serve.gate.problems import Problem, ProblemKind, not_found

FEED = frozenset({Role.FEEDER, Role.ENGINEER})
VERIFY = frozenset({Role.OPERATOR, Role.ENGINEER})
READ = VERIFY | {Role.VIEWER}
ENGINEER = frozenset({Role.ENGINEER})
ANY = frozenset(Role)
"""Who may do an operation: the roles that a key may have."""
LARGEST_ID = 2**63 - 1
MAX_JSON_BYTES = 8 << 20
"""A JSON body holds at most a board file and what belongs to it."""


def _decimal(given: Any) -> Any:
    if isinstance(given, str) and not (given.isascii() and given.isdecimal()):
        raise ValueError("give a whole number")
    return given


DIGITS = BeforeValidator(_decimal)
"""For a whole number of a query: it is written in digits alone."""
RowId = Annotated[int, Field(ge=0, le=LARGEST_ID), DIGITS]


QUOTED = "coe.is_quoted"
"""In the scope of a request: its path was left as it came, because a name in it has a `/`, as `%2F`."""


def _unquoted(part: str) -> str:
    """Return a part of a path with its `%XX` decoded, as uvicorn decodes paths."""
    encoded = part.encode("ascii", "replace")
    return re.sub(rb"%([0-9A-Fa-f]{2})", lambda found: bytes.fromhex(found[1].decode()), encoded).decode(
        errors="replace"
    )


class NoQuery(StrictModel):
    """The query of an operation without parameters."""


@dataclass(frozen=True, slots=True)
class Visit:
    """A request to the gate; `key` is that of the caller, None for an operation that needs none.

    `session` names the session in a browser that the caller's key was given in; it is empty for a program. `query` has
    the parameters in the form that the operation names, `body` a JSON body (`JsonBody`).
    """

    gate: Gate
    request: Request
    key: Key | None
    session: str = ""
    query: Any = None
    body: Any = None

    @property
    def caller(self) -> str:
        """The name of the caller's key."""
        return self.key.name if self.key else ""

    @property
    def id(self) -> int:
        """The id of a row in the path; raises Problem for a number that no row can have."""
        id = int(self.part("id"))
        if id > LARGEST_ID:
            raise not_found(f"row {str(id)[:30]}", "use an id that the service gave you")
        return id

    def part(self, name: str) -> str:
        """Return a part of the path."""
        return str(self.request.path_params[name])

    def name(self, part: str) -> str:
        """Return a name in the path; raises Problem if it has hidden characters, is too long, or leads to a folder."""
        name = _unquoted(self.part(part)) if self.request.scope.get(QUOTED) else self.part(part)
        if not 0 < len(name) <= NAME or not is_visible(name) or "\n" in name:
            raise Problem(
                ProblemKind.BAD_REQUEST,
                f"the {part} in the path is longer than {NAME} characters, or has hidden characters",
                f"give a {part} of plain characters",
            )
        if "/" in name and {".", ".."} & set(name.split("/")):
            way_out = f"give a {part} without `..` between its slashes"
            raise Problem(ProblemKind.BAD_REQUEST, f"the {part} in the path leads to a folder", way_out)
        return name


HandlerResult = Response | Mapping[str, Any] | None
"""A mapping is sent as JSON, with the first status of its operation; None means that there is no more to say."""
Handler = Callable[[Visit], Awaitable[HandlerResult]]
_H = TypeVar("_H", bound=Handler)
_Q = TypeVar("_Q", bound=Callable[[Visit, Connection], HandlerResult])
_W = TypeVar("_W", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Operation:
    """What a method does at a path: the docstring of its handler says it to clients.

    `roles` are those that may do it; None: everybody, without a key. `query` is the form of the parameters, None if any
    may be given. `body` is the form of a JSON body of `most_bytes` at most, `takes` the media type of any other body.
    `answers` says what each status means, `sends` is the form of a JSON answer, or the media type of any other. `needs`
    are headers that a request must have, `reads` those that it may have, `gives` those of its answer.
    """

    method: str
    path: str
    handler: Handler
    roles: frozenset[Role] | None
    answers: Mapping[int, str]
    query: type[StrictModel] | None = NoQuery
    body: type[StrictModel] | None = None
    most_bytes: int = MAX_JSON_BYTES
    takes: str = ""
    sends: JsonForm | str = ""
    needs: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()
    gives: tuple[str, ...] = ()


class OperationRouter:
    """Collects operations where their handlers stand."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []

    def add(
        self,
        method: str,
        path: str,
        roles: frozenset[Role] | None,
        answers: Mapping[int, str] = {HTTPStatus.OK: "a page"},
        **more: Any,
    ) -> Callable[[_H], _H]:
        """Serve an operation with the handler that this decorates; `more` are fields of `Operation`."""

        def added(handler: _H) -> _H:
            self.operations.append(Operation(method, path, handler, roles, answers, **more))
            return handler

        return added

    def read(self, path: str, roles: frozenset[Role] | None, **more: Any) -> Callable[[_Q], _Q]:
        """Serve what the query that this decorates returns of one state of the database."""
        return self.serve(lambda visit, query: visit.gate.read(query), "GET", path, roles, **more)

    def write(self, method: str, path: str, roles: frozenset[Role] | None, **more: Any) -> Callable[[_Q], _Q]:
        """Serve what the query that this decorates returns; what it writes is on the disk when the answer is sent."""
        return self.serve(lambda visit, query: visit.gate.write(query), method, path, roles, **more)

    def serve(
        self,
        run: Callable[[Visit, Callable[..., Any]], Awaitable[HandlerResult]],
        method: str,
        path: str,
        roles: frozenset[Role] | None,
        **more: Any,
    ) -> Callable[[_W], _W]:
        """Serve what `run` makes of a visit and of the function that this decorates, which has the visit already."""

        def added(work: _W) -> _W:
            @wraps(work)
            async def handle(visit: Visit) -> HandlerResult:
                return await run(visit, partial(work, visit))

            self.add(method, path, roles, **more)(handle)
            return work

        return added
