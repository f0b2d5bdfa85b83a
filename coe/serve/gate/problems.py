"""Errors as problem JSON (RFC 9457). Law: every refusal says what is wrong and what to do."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from coe.errors import CoeError
from coe.serve.database.trouble import DatabaseTrouble, TroubleKind
from coe.serve.database.verifications import CallChanged

MEDIA_TYPE = "application/problem+json"
RETRY_S = 5
"""After how many seconds a client that was refused may come again."""


class ProblemKind(StrEnum):
    """What is wrong, for programs: the last part of a problem's `type`."""

    NO_KEY = "no-key"
    WRONG_ROLE = "wrong-role"
    NOT_FOUND = "not-found"
    NO_SUCH_METHOD = "no-such-method"
    BAD_REQUEST = "bad-request"
    INVALID = "invalid"
    CONFLICT = "conflict"
    CHANGED = "changed"
    NO_MATCH = "no-match-given"
    TOO_LARGE = "too-large"
    NOT_A_PICTURE = "not-a-picture"
    TORN = "torn"
    TOO_SLOW = "too-slow"
    DRAINING = "draining"
    BUSY = "busy"
    NOT_READY = "not-ready"
    DISK_FULL = "disk-full"
    FAULT = "fault"


class Problem(Exception):
    """A refusal: `detail` says what is wrong with this request, `way_out` what to do."""

    def __init__(
        self,
        status: HTTPStatus,
        kind: ProblemKind,
        detail: str,
        way_out: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail, self.way_out = status, kind, detail, way_out
        self.headers = dict(headers or {})

    def response(self, request: Request) -> Response:
        """Return it as an answer to a request."""
        body = {
            "type": f"urn:coe:problem:{self.kind}",
            "title": self.status.phrase,
            "status": int(self.status),
            "detail": self.detail,
            "way_out": self.way_out,
            "instance": request.url.path,
        }
        if request.url.path.startswith("/v2/"):  # clients of the Open Inference Protocol read this
            body["error"] = f"{self.detail}; {self.way_out}"
        return JSONResponse(body, int(self.status), self.headers, MEDIA_TYPE)


def not_found(what: str, way_out: str) -> Problem:
    """Return the problem that something does not exist."""
    return Problem(HTTPStatus.NOT_FOUND, ProblemKind.NOT_FOUND, f"there is no {what}", way_out)


def unavailable(kind: ProblemKind, detail: str, way_out: str) -> Problem:
    """Return the problem that the service cannot do it now."""
    return Problem(HTTPStatus.SERVICE_UNAVAILABLE, kind, detail, way_out, {"Retry-After": str(RETRY_S)})


def disk_full(detail: str) -> Problem:
    """Return the problem that there is no room."""
    way_out = "make room on the disk of the service's folder; the same request will then succeed"
    return Problem(HTTPStatus.INSUFFICIENT_STORAGE, ProblemKind.DISK_FULL, detail, way_out)


async def answer(request: Request, error: Exception) -> Response:
    """Turn any error of a handler into problem JSON."""
    return _problem(error).response(request)


def _problem(error: Exception) -> Problem:
    match error:
        case Problem():
            return error
        case DatabaseTrouble(kind=TroubleKind.FULL):
            return disk_full(str(error))
        case DatabaseTrouble():
            return unavailable(ProblemKind.BUSY, str(error), "try again later; nothing of this request was kept")
        case CallChanged():
            way_out = "read the call again, and send its new ETag as If-Match"
            return Problem(HTTPStatus.PRECONDITION_FAILED, ProblemKind.CHANGED, str(error), way_out)
        case CoeError():
            return Problem(
                HTTPStatus.UNPROCESSABLE_ENTITY, ProblemKind.INVALID, str(error), "correct the request as it says"
            )
        case ClientDisconnect():
            return Problem(HTTPStatus.BAD_REQUEST, ProblemKind.TORN, "the body ended too early", "send it again, whole")
        case HTTPException():
            return _of_starlette(error)
    # The server writes the traceback into its log.
    return Problem(
        HTTPStatus.INTERNAL_SERVER_ERROR,
        ProblemKind.FAULT,
        "a fault of the service, not yours",
        "see the service's log, and report it",
    )


def _of_starlette(error: HTTPException) -> Problem:
    status = HTTPStatus(error.status_code)
    if status is HTTPStatus.NOT_FOUND:
        return not_found("such page", "see /openapi.json for all paths")
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        detail, way_out = "this path has no such method", "see /openapi.json for the methods of each path"
        return Problem(status, ProblemKind.NO_SUCH_METHOD, detail, way_out, error.headers)
    return Problem(status, ProblemKind.BAD_REQUEST, str(error.detail), "see /openapi.json", error.headers)
