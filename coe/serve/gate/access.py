"""Who may do what: keys, and sessions of browsers. No handler runs before the caller's key was found to suffice.

A session is a random cookie; it may do what its key may, and ends with its key. The database knows the signed hash of
the cookie, so a copy of the database gives nobody a session, and without the secret of the service all are over.
Requests that change something need a token beside the cookie, which a page of another site cannot read.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import replace
from http import HTTPStatus

from pydantic import Field
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from coe.helpers.strict_model import StrictModel
from coe.helpers.visible import visible
from coe.serve.clock import HOUR_US, SECOND_US
from coe.serve.database import keys
from coe.serve.database.tables import Key
from coe.serve.enums import Role
from coe.serve.gate.gate_state import Gate, HeldSession
from coe.serve.gate.operations import ANY, JsonForm, Operation, OperationRouter, Visit, json_body, read_query
from coe.serve.gate.problems import Problem, ProblemKind

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
    # Nobody waits for the secret who needs no key, as for the style of a page that says what is wrong.
    visit = Visit(gate, request, key, await name_of(gate, request) if key else "", query)
    if operation.body is not None:
        visit = replace(visit, body=await json_body(visit, operation.body, most_bytes=operation.most_bytes))
    answer = await operation.handler(visit)
    if isinstance(answer, Response):
        return answer
    status = operation.status
    return Response(status_code=status) if answer is None else JSONResponse(answer, status)


async def admitted(gate: Gate, request: Request, roles: frozenset[Role]) -> Key:
    """Return the caller's key; raises Problem if there is none, or if its role is another."""
    key = await _key_of(gate, request)
    if key is None:
        is_wrong = "authorization" in request.headers
        if is_wrong:
            gate.admissions.refuse(_sender(request))
        detail = "the key is not valid" if is_wrong else "this needs a key"
        raise Problem(ProblemKind.NO_KEY, detail, _WAY_OUT, {"WWW-Authenticate": "Bearer"})
    expect_role(key, roles)
    return key


def expect_role(key: Key | None, roles: frozenset[Role]) -> None:
    """Raise Problem if the holder of a key has none of these roles."""
    if key is not None and key.role not in roles:
        needed = " or ".join(sorted(roles))
        raise Problem(
            ProblemKind.WRONG_ROLE, f"key '{key.name}' has the role {key.role}", f"use a key with the role {needed}"
        )


async def _key_of(gate: Gate, request: Request) -> Key | None:
    """Return the key of the header; without the header, that of the session, whose requests must come from a page."""
    if "authorization" not in request.headers:
        key = await key_of(gate, request)
        if key is not None and request.method not in _SAFE:
            await expect_csrf(gate, request)
        return key
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    given = given.strip()
    if scheme.lower() != "bearer" or not 0 < len(given) <= _MOST_CHARACTERS:
        return None
    return await gate.read(lambda connection: keys.holder(connection, given, gate.now_us()))


router = OperationRouter()
_SESSION = JsonForm("Session", Key, "name role")

COOKIE = "coe_session"
CSRF_HEADER = "X-CSRF-Token"
LASTS_H = 12  # how long a session lasts: a shift
VIEWER_LASTS_H = 365 * 24  # how long that of a viewer lasts: nobody signs in at a screen on the wall
_SLACK_US = 60 * SECOND_US  # a time server usually sets the clock back by less than this
_MOST_BYTES = 4096  # the most bytes that a person without a key may send


class SessionRequest(StrictModel):
    """Who signs in: `key` is a key or a badge, or with `name` the PIN of that person."""

    key: str = Field(min_length=1, max_length=_MOST_CHARACTERS)
    name: str = Field(default="", max_length=_MOST_CHARACTERS)


async def key_of(gate: Gate, request: Request) -> Key | None:
    """Return the key of the session that a request's cookie names; None if there is none that is valid."""
    if not (name := await name_of(gate, request)):
        return None
    return await gate.read(lambda connection: gate.admissions.key_of(connection, name, gate.now_us(), _longest_us))


async def name_of(gate: Gate, request: Request) -> str:
    """Return the name of the session of a request's cookie; empty without one, or with a key in the header."""
    cookie = request.cookies.get(COOKIE, "")
    has_session = cookie and "authorization" not in request.headers
    return await signature(gate, f"session {cookie}") if has_session else ""


async def csrf_of(gate: Gate, request: Request) -> str:
    """Return the token that requests of a session must bring when they change something."""
    return await signature(gate, f"csrf {request.cookies.get(COOKIE, '')}")


async def signature(gate: Gate, text: str) -> str:
    """Sign a text, so that the service knows it again later; `text` begins with its purpose."""
    secret = gate.secret or await gate.keep(gate.read_secret)
    return hmac.new(secret, text.encode(), hashlib.sha256).hexdigest()


async def expect_csrf(gate: Gate, request: Request) -> None:
    """Raise Problem unless a request brings the token of its session."""
    token = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(token.encode(), (await csrf_of(gate, request)).encode()):
        raise Problem(
            ProblemKind.WRONG_ROLE,
            f"a request of a session that changes something needs the header {CSRF_HEADER}",
            "load the page again; programs send a key in the header Authorization, not a cookie",
        )


@router.add(
    "POST", "/api/v1/session", None, body=SessionRequest, most_bytes=_MOST_BYTES, sends=_SESSION, needs=CSRF_HEADER
)
async def sign_in(visit: Visit) -> Response:
    """Sign in. With a key, a badge, or a name and a PIN. The previous session ends."""
    gate, request = visit.gate, visit.request
    # A page of another site cannot send this header, so it cannot sign people in with a key of its own.
    if CSRF_HEADER not in request.headers:
        raise Problem(
            ProblemKind.WRONG_ROLE,
            f"signing in needs the header {CSRF_HEADER}, with any value",
            "sign in on the page /login",
        )
    form: SessionRequest = visit.body.form
    before = await key_of(gate, request)
    key = await _signing_in(gate, form.key.strip(), form.name.strip(), _sender(request), before)
    if before is not None:
        gate.admissions.end(await name_of(gate, request), before.name)
    cookie, now_us = secrets.token_urlsafe(32), gate.now_us()
    name = await signature(gate, f"session {cookie}")
    lasts_h = _lasts_h(key.role)
    gate.admissions.begin(HeldSession(name, key, _sender(request), now_us, now_us + lasts_h * HOUR_US))
    await gate.write_faults()
    response = JSONResponse(_SESSION(key))
    _set(visit, response, cookie, lasts_h * 3600)
    return response


async def _signing_in(gate: Gate, given: str, name: str, sender: str, before: Key | None) -> Key:
    """Return who signs in, after whom; raises Problem if nobody does, or if too many have failed."""
    if given.startswith(keys.PREFIX):
        key = await gate.read(lambda connection: keys.holder(connection, given, gate.now_us()))
    else:
        async with gate.admissions.guessing:
            key = await _guessed(gate, given, name, f"scanned by {before.name}" if before else f"at {sender}")
    if key is None:
        if before is None:  # what a person who is signed in scans is most often the serial of a board
            gate.admissions.refuse(sender)
        way_out = "scan the badge, give name and PIN, or a key as `coe-serve init` or `coe-serve add-key` wrote it"
        raise Problem(ProblemKind.NO_KEY, "this key, badge, or name and PIN is unknown", way_out)
    return key


async def _guessed(gate: Gate, given: str, name: str, where: str) -> Key | None:
    """Return who has a badge, or a name with a PIN; raises Problem if too many were wrong."""
    if not name and not await gate.read(lambda connection: keys.is_like_badge(connection, given, gate.now_us())):
        return None
    guessed = f"name {name}" if name else f"badges {where}"
    if (wait_s := gate.admissions.wait_s(guessed)) > 0:
        detail = f"too many wrong tries ({visible(guessed)})"
        raise Problem(ProblemKind.TOO_MANY, detail, f"wait {wait_s:.0f} s, or sign in with a key")
    if name:
        hash = await gate.run(lambda: keys.pin_hash(name, given))
        key = await gate.read(lambda connection: keys.of_pin(connection, name, hash, gate.now_us()))
    else:
        hash = await gate.run(lambda: keys.badge_hash(given))
        key = await gate.read(lambda connection: keys.of_badge(connection, hash, gate.now_us()))
    if name or key is None:  # who has a badge could make guesses at others' forgotten with it
        gate.admissions.tried(guessed, is_right=key is not None)
    return key


@router.add("DELETE", "/api/v1/session", ANY, status=204)
async def sign_out(visit: Visit) -> Response:
    """Sign out."""
    if visit.session:
        visit.gate.admissions.end(visit.session, visit.caller)
        await visit.gate.write_faults()
    response = Response(status_code=int(HTTPStatus.NO_CONTENT))
    _set(visit, response, "", 0)
    return response


def _lasts_h(role: Role) -> int:
    return VIEWER_LASTS_H if role is Role.VIEWER else LASTS_H


def _longest_us(role: Role) -> int:
    return _lasts_h(role) * HOUR_US + _SLACK_US


def _sender(request: Request) -> str:
    return request.client.host if request.client else ""


def _set(visit: Visit, response: Response, value: str, lasts_s: int) -> None:
    has_tls = visit.request.url.scheme == "https"  # also of a proxy on this machine
    response.set_cookie(COOKIE, value, lasts_s, path="/", httponly=True, samesite="strict", secure=has_tls)
