"""Pictures for people. Law: a browser gets PNG or JPEG made here, never the bytes that a client had sent."""

from __future__ import annotations

import io
from collections.abc import Callable
from http import HTTPStatus

from PIL import Image
from sqlalchemy import Connection
from starlette.responses import Response

from coe.board.decoding import decode
from coe.errors import ImageError
from coe.serve.database import calls, references, views
from coe.serve.database.views import View
from coe.serve.gate.bodies import expect_query, id_of
from coe.serve.gate.operations import READ, Operation, Visit
from coe.serve.gate.problems import Problem, ProblemKind, not_found

LARGEST_SIDE = 1600
"""A larger picture is made smaller for the page; its file stays as it is."""
SMALL = 512
"""Pictures up to this side are sent without loss, so that their pixels can be judged."""
QUALITY = 90


async def call_picture(visit: Visit) -> Response:
    """Show the picture of a call."""

    def view_of(connection: Connection) -> View | None:
        call = calls.get(connection, id_of(visit))
        return None if call is None or call.view_id is None else views.get(connection, call.view_id)

    return await _show(visit, view_of)


async def call_reference(visit: Visit) -> Response:
    """Show a good picture of the same part."""

    def view_of(connection: Connection) -> View | None:
        call = calls.get(connection, id_of(visit))
        return None if call is None else references.reference(connection, call)

    return await _show(visit, view_of)


async def view_picture(visit: Visit) -> Response:
    """Show a view of a board."""
    return await _show(visit, lambda connection: views.get(connection, id_of(visit)))


async def _show(visit: Visit, view_of: Callable[[Connection], View | None]) -> Response:
    expect_query(visit)
    view = await visit.gate.read(view_of)
    if view is None or view.removed_us is not None:
        raise not_found("such picture", "it was never handed in, or its time of retention is over")
    file = visit.gate.pictures.path(view.file)
    # Answers to calls with a picture of the same id never change, so a browser may keep them for this session.
    headers = {"Cache-Control": "private, max-age=600"}
    try:
        content, media_type = await visit.gate.draw(lambda: shown(file.read_bytes(), visit.gate.config.limits.pixels))
    except (OSError, ImageError) as error:
        detail = f"the picture cannot be read: {error}"
        raise Problem(HTTPStatus.NOT_FOUND, ProblemKind.NOT_FOUND, detail, "see the faults of the service") from None
    return Response(content, media_type=media_type, headers=headers)


def shown(data: bytes, limit_pixels: int) -> tuple[bytes, str]:
    """Return a picture's bytes as a browser shows them, and their media type; raises ImageError."""
    picture = Image.fromarray(decode(data, limit_pixels=limit_pixels))
    picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
    file = io.BytesIO()
    if max(picture.size) <= SMALL:
        picture.save(file, "png", compress_level=1)
        return file.getvalue(), "image/png"
    picture.save(file, "jpeg", quality=QUALITY)
    return file.getvalue(), "image/jpeg"


OPERATIONS = [
    Operation(
        "GET", "/api/v1/calls/{id:int}/picture", "The picture of a call.", call_picture, READ, answers={200: "image"}
    ),
    Operation(
        "GET",
        "/api/v1/calls/{id:int}/reference",
        "A good picture of the same part, of the same place if there is one.",
        call_reference,
        READ,
        answers={200: "image", 404: "no such part was good yet"},
    ),
    Operation(
        "GET", "/api/v1/views/{id:int}/picture", "A view of a board.", view_picture, READ, answers={200: "image"}
    ),
]
