"""Who may do what. Law: no handler runs before the caller's key was found valid and its role sufficient."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from coe.serve.database import keys
from coe.serve.database.keys import Key
from coe.serve.enums import Role
from coe.serve.gate import sessions
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.operation_routes import Operation, Visit
from coe.serve.gate.problems import Problem, ProblemKind
from coe.serve.gate.request_data import json_body, read_query

_MOST_CHARACTERS = 200
_SAFE = ("GET", "HEAD")
_WAY_OUT = "send the header `Authorization: Bearer coe_...` with a valid key; `coe-serve add-key` makes keys"


def guarded(gate: Gate, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
    """Return an operation as a handler of requests that asks for the key first, and then reads the query."""

    async def handle(request: Request) -> Response:
        key = None if operation.roles is None else await admitted(gate, request, operation.roles)
        return await answered(gate, operation, request, key)

    return handle


async def answered(gate: Gate, operation: Operation, request: Request, key: Key | None) -> Response:
    """Return the answer of an operation to the holder of a key; raises Problem."""
    query = None if operation.query is None else read_query(request, operation.query)
    visit = Visit(gate, request, key, await sessions.name_of(gate, request), query)
    if operation.body is not None:
        visit = replace(visit, body=await json_body(visit, operation.body, most_bytes=operation.most_bytes))
    answer = await operation.handler(visit)
    if isinstance(answer, Response):
        return answer
    status = next(iter(operation.answers))
    return Response(status_code=status) if answer is None else JSONResponse(answer, status)


async def admitted(gate: Gate, request: Request, roles: frozenset[Role]) -> Key:
    """Return the caller's key; raises Problem if there is none, or if its role is another."""
    key = await _key_of(gate, request)
    if key is None:
        detail = "this needs a key" if "authorization" not in request.headers else "the key is not valid"
        raise Problem(ProblemKind.NO_KEY, detail, _WAY_OUT, {"WWW-Authenticate": "Bearer"})
    if key.role not in roles:
        needed = " or ".join(sorted(roles))
        raise Problem(
            ProblemKind.WRONG_ROLE, f"key '{key.name}' has the role {key.role}", f"use a key with the role {needed}"
        )
    return key


async def _key_of(gate: Gate, request: Request) -> Key | None:
    """Return the key of the header; without the header, that of the session, whose requests must come from a page."""
    if "authorization" not in request.headers:
        key = await sessions.key_of(gate, request)
        if key is not None and request.method not in _SAFE:
            await sessions.expect_csrf(gate, request)
        return key
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    given = given.strip()
    if scheme.lower() != "bearer" or not 0 < len(given) <= _MOST_CHARACTERS:
        return None
    return await gate.read(lambda connection: keys.holder(connection, given, gate.now_us()))
