"""Calls and the words of people on them. An answer is to the call as the person saw it, and is never overwritten.

A person reserves a call before looking at it; the reservation ends by itself, so that nobody can block the queue. All
that reads and writes a call stands in one file: each route checks the same reservation and revision.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from http import HTTPStatus
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection
from starlette.responses import JSONResponse, Response

from coe.helpers.strict_model import StrictModel
from coe.serve.clock import SECOND_US, iso
from coe.serve.component_pictures import CropPlace
from coe.serve.database import audit, board_rows, call_rows, repairs, row_types, verifications
from coe.serve.database.repairs import NothingToRepair
from coe.serve.database.tables import Board, Call, Escape, NewEscape, NewRepair, NewVerification, Repair, Verification
from coe.serve.enums import Outcome, RepairOutcome
from coe.serve.gate.image_routes import call_named, golden_of
from coe.serve.gate.operations import DIGITS, FINDING, VERIFY, JsonForm, OperationRouter, RowId, Visit
from coe.serve.gate.problems import Problem, ProblemKind
from coe.serve.text_checks import Note, Spelt, SpeltText

router = OperationRouter()

CLAIM_S = 90  # how long a person has for a call before others may take it
_MOST_LISTED = 500
_WORD = JsonForm(
    "Verification",
    Verification,
    "supersedes outcome label note verification=id call=call_id by=verified_by at=verified_us",
)
_AS_SEEN: Any = {"needs": "If-Match", "gives": "ETag", "status": 201}
_PICTURE = JsonForm(
    "CallPicture", more={"pixels": int, "around": int, "in_view": bool, "view_pixels": int, "middle": list[float]}
)
_CALL = JsonForm(
    "Call",
    Call,
    "call=id board=board_id open=is_open refdes component verdict reason detail expert label score late opened_us "
    "revision claimed_by",
    {
        "serial": str,
        "recipe": str,
        "findings": FINDING.many,
        "picture": _PICTURE.one | None,
        "claimed_until": datetime | None,
    },
    {"golden": bool, "reference": bool, "verifications": _WORD.many},
)
_CALLS = JsonForm("Calls", more={"calls": _CALL.many})


class VerificationRequest(StrictModel):
    """A person's word on a call; `label` if it is another, `drawn` if the pictures were on the screen."""

    outcome: Outcome
    label: SpeltText = ""
    note: Note = ""
    drawn: bool | None = None


class CallStatus(StrEnum):
    """Which calls are listed."""

    OPEN = "open"
    ANSWERED = "answered"


class NextQuery(StrictModel):
    """Where the search for the next open call begins."""

    after: Annotated[RowId, Field(description="calls after the call of this id")] = 0


class ClaimQuery(NextQuery):
    """Which open call is reserved."""

    without: Annotated[
        str, Field(pattern="^([0-9]{1,18}(,[0-9]{1,18}){0,99})?$", description="ids of calls to leave out, with commas")
    ] = ""


class CallsQuery(NextQuery):
    """Which calls are listed, and how many: `after` and `component` are for open calls, `before` for answered ones."""

    status: Annotated[CallStatus, Field(description="open (if not given) or answered")] = CallStatus.OPEN
    before: Annotated[RowId | None, Field(description="answered calls before the call of this id")] = None
    limit: Annotated[int, Field(ge=1, le=_MOST_LISTED, description="how many"), DIGITS] = 100
    component: Annotated[str, Field(description="open calls of this component type")] = ""


@router.read("/api/v1/calls", VERIFY, query=CallsQuery, sends=_CALLS)
def get_calls(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """List calls. Open ones come oldest first, answered ones newest first."""
    asked: CallsQuery = visit.query
    is_open = asked.status is CallStatus.OPEN
    for name in ("before",) if is_open else ("after", "component"):
        if getattr(asked, name) == CallsQuery.model_fields[name].default:
            continue  # generated clients send what is not given, too
        detail = f"`{name}` does not go with status={asked.status}"
        raise Problem(ProblemKind.BAD_REQUEST, detail, f"leave `{name}` out, or ask for the other status")
    if is_open:
        rows = call_rows.open_calls(connection, after_id=asked.after, limit=asked.limit, component=asked.component)
    else:
        rows = call_rows.answered(connection, before_id=asked.before, limit=asked.limit)
    return _CALLS(calls=[facts(connection, row) for row in rows])


@router.read("/api/v1/calls/{id:int}", VERIFY, sends=_CALL, gives="ETag")
def get_call(visit: Visit, connection: Connection) -> Response:
    """Get a call and its answers."""
    call = call_named(visit, connection)
    words = [_WORD(word) for word in verifications.of_calls(connection, [call.id])]
    return _tagged({**full_facts(connection, call), "verifications": words})


@router.write("POST", "/api/v1/calls/next", VERIFY, query=ClaimQuery, sends=_CALL, gives="ETag X-Open-Calls", also=204)
def claim_next(visit: Visit, connection: Connection) -> Response:
    """Reserve the next open call."""
    now_us = visit.gate.now_us()
    taken = call_rows.claim_next(
        connection,
        by=visit.caller,
        session=visit.session,
        now_us=now_us,
        until_us=now_us + CLAIM_S * SECOND_US,
        after_id=visit.query.after,
        without=[int(id) for id in visit.query.without.split(",") if id],
        # A page that is loaded again shows its call again; of programs with one key nobody knows which is which.
        is_again=bool(visit.session),
    )
    answer = Response(status_code=int(HTTPStatus.NO_CONTENT))
    if taken is not None:
        answer = _tagged(full_facts(connection, taken))
    answer.headers["X-Open-Calls"] = str(call_rows.count_open(connection))
    return answer


@router.write("POST", "/api/v1/calls/{id:int}/claim", VERIFY, sends=_CALL, gives="ETag")
def claim(visit: Visit, connection: Connection) -> Response:
    """Reserve a call, or extend the reservation."""
    _reserve(visit, connection, CLAIM_S)
    return _tagged(full_facts(connection, call_named(visit, connection)))


@router.write("DELETE", "/api/v1/calls/{id:int}/claim", VERIFY, status=204)
def give_back(visit: Visit, connection: Connection) -> None:
    """Release a reserved call."""
    _reserve(visit, connection, 0)


def _reserve(visit: Visit, connection: Connection, lasts_s: int) -> None:
    """Reserve a call for the caller from now on for a time; raises Problem if another person has it."""
    call, now_us = call_named(visit, connection), visit.gate.now_us()
    until_us = now_us + lasts_s * SECOND_US
    if not call_rows.claim(
        connection, call.id, by=visit.caller, session=visit.session, until_us=until_us, now_us=now_us
    ):
        raise _taken(call)


@router.write("POST", "/api/v1/calls/{id:int}/verification", VERIFY, body=VerificationRequest, sends=_WORD, **_AS_SEEN)
def verify(visit: Visit, connection: Connection) -> Response:
    """Answer a call.

    The answer supersedes earlier ones, which are kept. Once all calls of a board are answered, the board is verified.
    Without the pictures a person can only confirm the defect: `drawn` must be true for the other outcomes in a browser
    session, and must not be false for a program.
    """
    form: VerificationRequest = visit.body.form
    new = NewVerification(form.outcome, visit.gate.now_us(), visit.caller, form.label, form.note)
    call = call_as_seen(visit, connection)
    is_mine = (call.claimed_by, call.claimed_session) == (visit.caller, visit.session)
    if call.is_open and not is_mine and call.claimed_until_us > new.verified_us:
        raise _taken(call)
    _expect_seen(visit, call, form)
    added = verifications.record_verification(connection, call, new, visit.gate.config.stop_rules)
    word = {"outcome": added.outcome.value, "label": added.label, "supersedes": added.supersedes}
    word |= {"note": added.note} if added.note else {}
    word |= {} if form.drawn is None else {"drawn": form.drawn}
    audit.append(connection, visit.caller, "verify", f"call {call.id}", now_us=new.verified_us, detail=word)
    return JSONResponse(_WORD(added), int(HTTPStatus.CREATED), {"ETag": tag_of(connection, call.id)})


def call_as_seen(visit: Visit, connection: Connection) -> Call:
    """Return the call of the path as the caller saw it; raises Problem without If-Match, and CallChanged."""
    revision, call = _revision(visit), call_named(visit, connection)
    if call.revision != revision:
        raise verifications.CallChanged(call.id)
    return call


def tag_of(connection: Connection, id: int) -> str:
    """Return the ETag of a call as it is now."""
    call = row_types.get(connection, Call, id)
    assert call is not None
    return _tag(call.revision)


def _expect_seen(visit: Visit, call: Call, form: VerificationRequest) -> None:
    """Raise Problem if a part is called good or accepted unseen; only programs need not say that it was drawn."""
    is_seen = form.drawn is True and call.view_id is not None if visit.session else form.drawn is not False
    if form.outcome is not Outcome.CONFIRMED and not is_seen:
        raise Problem(
            ProblemKind.UNSEEN,
            f"the pictures of call {call.id} were not shown, so its part cannot be '{form.outcome}'",
            "look at the pictures of the call, and send `drawn` as true; without them confirm the defect, or leave it",
        )


def facts(connection: Connection, call: Call) -> dict[str, Any]:
    """Return a call as JSON, with its board's serial and recipe."""
    until_us = call.claimed_until_us
    serial, name, pixels = call_rows.around(connection, call)
    return _CALL(
        call,
        serial=serial,
        recipe=name,
        findings=list(call.findings),
        picture=picture_of(call, pixels),
        claimed_until=iso(until_us) if until_us else None,
    )


def full_facts(connection: Connection, call: Call) -> dict[str, Any]:
    """Return a call as JSON, with whether its part has a golden reference, and a good picture at all."""
    golden = bool(golden_of(connection, call))
    return {
        **facts(connection, call),
        "golden": golden,
        "reference": golden or board_rows.good_picture(connection, call) is not None,
    }


def picture_of(call: Call, view_pixels: int) -> dict[str, Any] | None:
    """Return how boxes lie in the picture of a call: `pixels` in all, `around` of them on each side of the crop.

    `in_view` says whether the picture is cut out of a view of a whole board, of `view_pixels`, in which the `middle` of
    the part lies at [x, y]. None without a picture.
    """
    place = CropPlace.of(call.place)
    if call.view_id is None:
        return None
    if place is None:
        return _PICTURE(pixels=view_pixels, around=0, in_view=False, view_pixels=view_pixels, middle=[])
    middle = [sum(at) / len(at) for at in zip(*place.corners, strict=True)]
    more = {"in_view": True, "view_pixels": view_pixels, "middle": middle}
    return _PICTURE(pixels=place.shown_pixels, around=place.around, **more)


def _tag(revision: int) -> str:
    return f'"{revision}"'


def _tagged(body: dict[str, Any]) -> Response:
    return JSONResponse(body, headers={"ETag": _tag(body["revision"])})


def _revision(visit: Visit) -> int:
    given = visit.request.headers.get("if-match", "").strip()
    number = given.removeprefix('"').removesuffix('"')
    if not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise Problem(
            ProblemKind.NO_MATCH,
            "this needs the header If-Match with the ETag of the call that you saw",
            'read the call, and send its ETag, as If-Match: "0"',
        )
    return int(number)


def _taken(call: Call) -> Problem:
    if not call.is_open:
        detail = f"call {call.id} was answered"
    else:
        until = iso(call.claimed_until_us)[11:19]
        detail = f"{call.claimed_by or 'another person'} has reserved call {call.id} until {until} UTC"
    return Problem(ProblemKind.CONFLICT, detail, "take another call, or wait until it is free")


# What later stations say: what became of a confirmed defect, and defects of boards that had passed
_MOST = 500
_REPAIR = JsonForm("Repair", Repair, "supersedes outcome note repair=id call=call_id by=repaired_by at=repaired_us")
_BOARD = JsonForm("BoardToRepair", Board, "key serial panel board=id", {"defects": int})
_ESCAPE = JsonForm("Escape", Escape, "refdes label found_at serial reported_us escape=id board=board_id")
_BOARDS = JsonForm("BoardsToRepair", more={"boards": _BOARD.many, "more": bool})


class RepairRequest(StrictModel):
    """What became of a defect."""

    outcome: RepairOutcome
    note: Note = ""


@router.write("POST", "/api/v1/calls/{id:int}/repair", VERIFY, body=RepairRequest, sends=_REPAIR, **_AS_SEEN)
def post_repair(visit: Visit, connection: Connection) -> Response:
    """Report a repair.

    Its outcome is repaired, scrapped, or no defect, which makes it a false call. It supersedes earlier ones, which are
    kept.
    """
    call, form = call_as_seen(visit, connection), visit.body.form
    new = NewRepair(form.outcome, visit.gate.now_us(), visit.caller, form.note)
    try:
        added = repairs.record_repair(connection, call, new)
    except NothingToRepair as error:
        raise Problem(ProblemKind.CONFLICT, str(error), "see the board's page") from None
    word = {"outcome": added.outcome.value, "supersedes": added.supersedes}
    audit.append(connection, visit.caller, "repair", f"call {call.id}", now_us=added.repaired_us, detail=word)
    return JSONResponse(_REPAIR(added), int(HTTPStatus.CREATED), {"ETag": tag_of(connection, call.id)})


@router.read("/api/v1/repairs", VERIFY, sends=_BOARDS)
def get_waiting(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """List boards that wait for repair. `more` if there are others."""
    found = repairs.waiting(connection, limit=_MOST + 1)
    boards = [_BOARD(board, defects=number) for board, number in found[:_MOST]]
    return _BOARDS(boards=boards, more=len(found) > _MOST)


class EscapeRequest(StrictModel):
    """A defect that a later test found; `found_at` is the test, as "ICT" or "customer"."""

    serial: Spelt
    refdes: SpeltText = ""
    component: SpeltText = ""
    label: SpeltText = ""
    found_at: SpeltText = ""
    note: Note = ""


@router.write("POST", "/api/v1/escapes", VERIFY, body=EscapeRequest, sends=_ESCAPE, status=201)
def post_escape(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Report a defect that a later test found.

    It belongs to the newest decided board of the serial, or to the panel of the unit; `board` is null without one. The
    same report again changes nothing.
    """
    now_us = visit.gate.now_us()
    new = NewEscape(reported_us=now_us, reported_by=visit.caller, **visit.body.form.model_dump())
    added = repairs.report_escape(connection, new)
    answer = _ESCAPE(added)
    if added.reported_us == now_us:
        about = {name: answer[name] for name in ("escape", "refdes", "label", "found_at")}
        audit.append(connection, visit.caller, "report escape", added.serial, now_us=now_us, detail=about)
    return answer
