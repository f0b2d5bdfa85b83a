"""Errors as problem JSON (RFC 9457). Every refusal says what is wrong and what to do."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any, Self, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from coe.errors import CoeError, place_of
from coe.helpers import files
from coe.serve.database.connecting import DatabaseError, DatabaseErrorKind
from coe.serve.database.verifications import CallChanged

MEDIA_TYPE = "application/problem+json"
_T = TypeVar("_T")
_log = logging.getLogger(__name__)
RETRY_S = 5  # after how many seconds a client that was refused may come again


class ProblemKind(StrEnum):
    """What is wrong, for programs: the last part of a problem's `type`, and the status that goes with it."""

    status: HTTPStatus

    def __new__(cls, word: str, status: HTTPStatus) -> Self:
        """Make a word that knows its status."""
        kind = str.__new__(cls, word)
        kind._value_, kind.status = word, status
        return kind

    NO_KEY = "no-key", HTTPStatus.UNAUTHORIZED
    WRONG_ROLE = "wrong-role", HTTPStatus.FORBIDDEN
    NOT_FOUND = "not-found", HTTPStatus.NOT_FOUND
    NO_SUCH_METHOD = "no-such-method", HTTPStatus.METHOD_NOT_ALLOWED
    BAD_REQUEST = "bad-request", HTTPStatus.BAD_REQUEST
    INVALID = "invalid", HTTPStatus.UNPROCESSABLE_ENTITY
    NO_REFERENCE = "no-reference", HTTPStatus.NOT_FOUND
    UNSEEN = "unseen", HTTPStatus.UNPROCESSABLE_ENTITY
    CONFLICT = "conflict", HTTPStatus.CONFLICT
    CHANGED = "changed", HTTPStatus.PRECONDITION_FAILED
    NO_MATCH = "no-match-given", HTTPStatus.PRECONDITION_REQUIRED
    TOO_LARGE = "too-large", HTTPStatus.REQUEST_ENTITY_TOO_LARGE
    NOT_A_PICTURE = "not-a-picture", HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    ENCODED = "encoded", HTTPStatus.UNSUPPORTED_MEDIA_TYPE
    TORN = "torn", HTTPStatus.UNPROCESSABLE_ENTITY
    TOO_SLOW = "too-slow", HTTPStatus.REQUEST_TIMEOUT
    TOO_MANY = "too-many", HTTPStatus.TOO_MANY_REQUESTS
    DRAINING = "draining", HTTPStatus.SERVICE_UNAVAILABLE
    BUSY = "busy", HTTPStatus.SERVICE_UNAVAILABLE
    NOT_READY = "not-ready", HTTPStatus.SERVICE_UNAVAILABLE
    DISK_FULL = "disk-full", HTTPStatus.INSUFFICIENT_STORAGE
    DISK_FAILED = "disk-failed", HTTPStatus.SERVICE_UNAVAILABLE
    FAULT = "fault", HTTPStatus.INTERNAL_SERVER_ERROR


class Problem(Exception):
    """A refusal: `detail` says what is wrong with this request, `way_out` what to do."""

    def __init__(
        self,
        kind: ProblemKind,
        detail: str,
        way_out: str,
        headers: Mapping[str, str] | None = None,
        *,
        status: HTTPStatus | None = None,
    ) -> None:
        """`status` is given where it is not that of the kind."""
        super().__init__(detail)
        self.status, self.kind, self.detail, self.way_out = status or kind.status, kind, detail, way_out
        retry = {"Retry-After": str(RETRY_S)} if self.status is HTTPStatus.SERVICE_UNAVAILABLE else {}
        self.headers = {**retry, **(headers or {})}

    @property
    def body(self) -> dict[str, Any]:
        """It as problem JSON."""
        return {
            "type": f"urn:coe:problem:{self.kind}",
            "title": self.status.phrase,
            "status": int(self.status),
            "detail": self.detail,
            "way_out": self.way_out,
        }

    def response(self, request: Request) -> Response:
        """Return it as an answer to a request."""
        body = {**self.body, "instance": request.url.path}
        return JSONResponse(body, int(self.status), self.headers, MEDIA_TYPE)


def not_found(what: str, way_out: str) -> Problem:
    """Return the problem that something does not exist."""
    return Problem(ProblemKind.NOT_FOUND, f"there is no {what}", way_out)


def existing(found: _T | None, what: str, way_out: str) -> _T:
    """Return what a request names; raises Problem if it does not exist."""
    if found is None:
        raise not_found(what, way_out)
    return found


def disk_full(detail: str) -> Problem:
    """Return the problem that there is no room."""
    way_out = "make room on the disk of the service's folder; the same request will then succeed"
    return Problem(ProblemKind.DISK_FULL, detail, way_out)


def disk_failed(what: str) -> Problem:
    """Return the problem that the disk cannot be used now."""
    way_out = "check the disk or share; the same request will then succeed"
    return Problem(ProblemKind.DISK_FAILED, f"the disk of the service's folder {what}", way_out)


async def answer(request: Request, error: Exception) -> Response:
    """Turn any error of a handler into problem JSON; what is said of a disk may be a fault of the service."""
    if isinstance(error, OSError):
        _log.warning("%s: %s%s", request.url.path, error, place_of(error))
    return problem_of(error).response(request)


def problem_of(error: Exception) -> Problem:
    """Return what any error of a handler says to a client."""
    match error:
        case OSError() if files.is_full(error):
            return disk_full(f"there is no room on the disk: {error.strerror}")
        case OSError():
            return disk_failed(f"does not work: {error.strerror or type(error).__name__}")
        case Problem():
            return error
        case DatabaseError(kind=DatabaseErrorKind.FULL):
            return disk_full(str(error))
        case DatabaseError(kind=DatabaseErrorKind.LOST):
            return Problem(ProblemKind.BUSY, str(error), "before retrying later, check whether this request was saved")
        case DatabaseError():
            return Problem(ProblemKind.BUSY, str(error), "try again later; nothing of this request was saved")
        case CallChanged():
            way_out = "read the call again, and send its new ETag as If-Match"
            return Problem(ProblemKind.CHANGED, str(error), way_out)
        case files.DiskFull():
            return disk_full(str(error))
        case CoeError():
            return Problem(ProblemKind.INVALID, str(error), "correct the request")
        case ClientDisconnect():
            return Problem(
                ProblemKind.TORN,
                "the body ended too early",
                "send the complete body again",
                status=HTTPStatus.BAD_REQUEST,
            )
        case HTTPException():
            return _of_starlette(error)
    # The server writes the traceback into its log.
    return Problem(ProblemKind.FAULT, "a fault of the service, not yours", "see the service's log, and report it")


def _of_starlette(error: HTTPException) -> Problem:
    status = HTTPStatus(error.status_code)
    if status is HTTPStatus.NOT_FOUND:
        return not_found("such page", "see /openapi.json for all paths")
    if status is HTTPStatus.METHOD_NOT_ALLOWED:
        detail, way_out = "this path has no such method", "see /openapi.json for the methods of each path"
        return Problem(ProblemKind.NO_SUCH_METHOD, detail, way_out, error.headers)
    return Problem(ProblemKind.BAD_REQUEST, str(error.detail), "see /openapi.json", error.headers, status=status)
