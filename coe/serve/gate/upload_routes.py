"""`PUT /api/v1/boards/{key}/views/{name}`: a picture comes in. It is on the disk before the client is told so."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus

from sqlalchemy import Connection
from starlette.responses import JSONResponse, Response

from coe.pictures.formats import pixels_in
from coe.serve import failpoints
from coe.serve.database import board_rows, views
from coe.serve.database.connecting import DatabaseError, DatabaseErrorKind
from coe.serve.database.tables import NewView, View
from coe.serve.enums import FaultKind
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.operations import BYTES, FEED, JsonForm, OperationRouter, Visit, parts_of
from coe.serve.gate.problems import Problem, ProblemKind
from coe.serve.picture_folder import Receiving

router = OperationRouter()

VIEW = JsonForm("View", View, "board_key name sha256 size_bytes pixels view=id")

_TOGETHER = 1 << 20  # bytes are written in pieces of at least this size: each piece costs a change of threads


@router.add(
    "PUT", "/api/v1/boards/{key}/views/{name}", FEED, takes=BYTES, sends=VIEW, reads="X-SHA256", status=201, also=200
)
async def put_view(visit: Visit) -> Response:
    """Upload a view.

    Views come before their board. The same picture again changes nothing. The header X-SHA256, the SHA-256 of the body
    in hexadecimal, is checked.
    """
    gate, waiting = visit.gate, bytearray()
    key, name = visit.name("key"), visit.name("name")
    stated = visit.request.headers.get("x-sha256", "").lower()
    async with _receiving(gate) as receiving:
        async for part in parts_of(visit, gate.config.limits.body):
            waiting += part
            if len(waiting) >= _TOGETHER:
                await gate.keep(partial(receiving.write, bytes(waiting)))
                waiting.clear()
        return await _finish(gate, receiving, bytes(waiting), key, name, stated)


async def keep_view(gate: Gate, key: str, name: str, content: bytes) -> None:
    """Keep a picture that is in memory as a view; raises Problem."""
    async with _receiving(gate) as receiving:
        await _finish(gate, receiving, content, key, name, "")


@asynccontextmanager
async def _receiving(gate: Gate) -> AsyncIterator[Receiving]:
    """Give a picture to be received, and forget it unless it was kept; raises OSError and Problem."""
    gate.files.expect()
    receiving = gate.pictures.receive()
    try:
        try:
            yield receiving
        finally:
            if not receiving.is_kept:
                await gate.drop(receiving)
    except OSError as error:
        gate.faults.pictures_failed(error)
        await gate.write_faults()
        raise
    await gate.overcome(FaultKind.DISK_FULL)


async def _finish(gate: Gate, receiving: Receiving, rest: bytes, key: str, name: str, stated: str) -> Response:
    """Put the picture on the disk if it is whole and can be one, then its row; raises Problem."""
    new = await gate.keep(partial(_kept, gate, receiving, rest, key, name, stated))
    try:
        before, added = await gate.run(partial(_added, gate, new))
    except (Problem, DatabaseError) as error:
        # If the database was lost during the commit, the row may be there: the file stays, and a start removes strays.
        if isinstance(error, Problem) or error.kind is not DatabaseErrorKind.LOST:
            await gate.keep(partial(gate.pictures.remove, [new.file]))
        raise
    failpoints.reached(failpoints.Failpoint.VIEW_COMMITTED)
    is_again = added is before
    if before is not None:
        await gate.keep(partial(gate.pictures.remove, [new.file if is_again else before.file]))
    return JSONResponse(VIEW(added), int(HTTPStatus.OK if is_again else HTTPStatus.CREATED))


def _kept(gate: Gate, receiving: Receiving, rest: bytes, key: str, name: str, stated: str) -> NewView:
    receiving.write(rest)
    if stated and stated != receiving.sha256:
        raise Problem(
            ProblemKind.TORN,
            f"the body's SHA-256 is {receiving.sha256}, and X-SHA256 says {stated[:64]}",
            "send it again; it was damaged on the way, or X-SHA256 is that of another file",
        )
    with receiving.opened() as file:
        pixels = check_pixels(pixels_in(file), gate.config.limits.pixels)
    failpoints.reached(failpoints.Failpoint.VIEW_RECEIVED)
    file_name = receiving.keep()
    failpoints.reached(failpoints.Failpoint.VIEW_KEPT)
    return NewView(key, name, file_name, receiving.sha256, receiving.size_bytes, pixels, gate.now_us())


def check_pixels(pixels: int | None, limit: int) -> int:
    """Return how many pixels a picture has; raises Problem if it is no picture (None), or too large."""
    if not pixels:
        raise Problem(
            ProblemKind.NOT_A_PICTURE,
            "the body is not a JPEG, PNG, BMP or TIFF picture",
            "send the bytes of such a file, as `curl -T picture.png` does",
        )
    if pixels > limit:
        raise Problem(
            ProblemKind.TOO_LARGE,
            f"the picture has {pixels:,} pixels, and {limit:,} are allowed",
            "send a smaller picture, or raise `limits.pixels` in the service's config",
        )
    return pixels


def _added(gate: Gate, new: NewView) -> tuple[View | None, View]:
    """Write the row of a picture; return the view of its name before and now: the same if it is the same picture."""
    with gate.database.writing() as connection:
        views.hold(connection)
        # No look before this transaction: a board may be handed in, or the same view be sent, at any time.
        before = _before(gate, connection, new.board_key, new.name, new.sha256)
        same = before if before is not None and before.sha256 == new.sha256 else None
        return before, same or views.add(connection, new)


def _before(gate: Gate, connection: Connection, key: str, name: str, sha256: str) -> View | None:
    """Return the view of this name; raises Problem if it must not be replaced, or if there are too many."""
    before = views.named(connection, key, name)
    if before is not None and before.sha256 == sha256:
        return before
    if board_rows.of_key(connection, key) is not None:
        raise Problem(
            ProblemKind.CONFLICT,
            f"board '{key}' was submitted already, so its pictures cannot change",
            "submit the board again under another key",
        )
    if before is None and views.count_of_board(connection, key) >= gate.config.limits.views:
        raise Problem(
            ProblemKind.TOO_LARGE,
            f"board '{key}' has {gate.config.limits.views} views already",
            "submit it, or raise `limits.views` in the service's config",
        )
    return before


def discard_views(gate: Gate, key: str) -> bool:
    """Remove the pictures of a board unless it is accepted; return whether it is not. Raises DatabaseError, OSError."""
    with gate.database.writing() as connection:
        views.hold(connection)
        if board_rows.of_key(connection, key) is not None:
            return False
        gone = views.of_board(connection, key)
        views.removed(connection, [view.id for view in gone], gate.now_us())
    gate.pictures.remove(view.file for view in gone)
    return True
