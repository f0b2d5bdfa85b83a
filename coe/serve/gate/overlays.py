"""The overlay of a recipe: a picture of a board with every crop, for a person to see before the recipe is activated.

Law: it changes nothing, and the picture that was sent is not kept.
"""

from __future__ import annotations

import io
from functools import partial
from http import HTTPStatus

from starlette.responses import Response

from coe.board.image_size import pixels_in
from coe.serve.gate.bodies import expect_query, number_of, whole_body
from coe.serve.gate.operations import ENGINEER, Operation, Visit
from coe.serve.gate.problems import Problem, ProblemKind
from coe.serve.gate.recipes import version_of
from coe.serve.gate.uploads import check_pixels
from coe.serve.recipe import RecipeContent
from coe.serve.whole_board import WholeBoard

LEAST_SIDE, SIDE, MOST_SIDE = 200, 1600, 20_000


async def post_overlay(visit: Visit) -> Response:
    """Draw what a version of a recipe cuts out of the picture of a board."""
    expect_query(visit, "side")
    gate = visit.gate
    side = int(number_of(visit, "side", default=SIDE, least=LEAST_SIDE, most=MOST_SIDE))
    recipe = await gate.read(partial(version_of, visit))
    whole = RecipeContent.model_validate(recipe.content).whole
    if whole is None:
        raise Problem(
            HTTPStatus.CONFLICT,
            ProblemKind.CONFLICT,
            f"version {recipe.version} of recipe '{recipe.name}' does not say how whole boards are cut",
            "add a version with `whole`: a placement file and a board recipe",
        )
    async with whole_body(visit, gate.config.limits.body) as picture:
        drawn = await gate.draw(partial(_drawn, whole, picture, gate.config.limits.pixels, side))
    return Response(drawn, media_type="image/png")


def _drawn(whole: WholeBoard, picture: bytes, limit: int, side: int) -> bytes:
    """Return the overlay as the bytes of a PNG file; raises Problem for a picture that cannot be read."""
    # OpenCV and Pillow take a while to import, and most gates draw no overlay.
    from PIL import Image

    from coe.placement import read_board

    check_pixels(pixels_in(io.BytesIO(picture)), limit)
    read = read_board(picture, whole.layout, "")
    if read.location is None:
        raise Problem(HTTPStatus.UNPROCESSABLE_ENTITY, ProblemKind.INVALID, read.why, "send a whole picture of a board")
    file = io.BytesIO()
    Image.fromarray(read.overlay(side)).save(file, "PNG", compress_level=1)
    return file.getvalue()


OPERATIONS = [
    Operation(
        "POST",
        "/api/v1/recipes/{name}/{version:int}/overlay",
        "Send the picture of a whole board, and get it back with every crop that the version cuts out of it, before it "
        "is activated. Neither picture is kept.",
        post_overlay,
        ENGINEER,
        takes="application/octet-stream",
        query={"side": f"pixels of the longer side, from {LEAST_SIDE} to {MOST_SIDE}; {SIDE} without it"},
        answers={
            200: "the picture, a PNG",
            404: "no such version",
            409: "the version does not say how whole boards are cut",
            413: "too large",
            415: "not a picture",
            422: "a picture that cannot be read",
        },
    )
]
