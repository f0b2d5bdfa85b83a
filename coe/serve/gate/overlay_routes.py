"""The overlay of a recipe: a picture of a board with every crop, and a person's word that each lies on its part.

The picture that was sent is not kept, and only an overlay of a registered board that this service drew for this
version can be confirmed.
"""

from __future__ import annotations

import hashlib
import hmac
import io
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection
from starlette.responses import Response

from coe.helpers.strict_model import StrictModel
from coe.pictures.array_images import encoded
from coe.pictures.formats import pixels_in
from coe.placement import overlay_of, read_board
from coe.serve.database import audit, recipe_versions
from coe.serve.database.tables import Confirmation, Recipe
from coe.serve.gate import access
from coe.serve.gate.json_form import JsonForm
from coe.serve.gate.operations import DIGITS, ENGINEER, OperationRouter, Visit
from coe.serve.gate.problems import Problem, ProblemKind
from coe.serve.gate.recipe_routes import version_of
from coe.serve.gate.request_data import whole_body
from coe.serve.gate.upload_routes import check_pixels
from coe.serve.recipe_content import RecipeContent, WholeBoard
from coe.serve.text_checks import Word

router = OperationRouter()
_CONFIRMED = JsonForm(
    "Confirmed", Confirmation, more={"name": str, "version": int}, by="confirmed_by", at="confirmed_us"
)

PICTURE_HEADER, PROOF_HEADER = "X-Picture-SHA256", "X-Overlay-Proof"
"""In the answer with an overlay: which picture it is of, and what a confirmation must bring."""
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
LEAST_SIDE, SIDE, MOST_SIDE = 200, 1600, 20_000


class ConfirmationRequest(StrictModel):
    """What the headers of an overlay said: the picture, and the proof that the overlay was drawn.

    `blind_to` are the ways in which boards could lie wrong without being noticed, as the version names them: who
    confirms the placements has read them, and says that no board lies so.
    """

    picture: Digest
    proof: Digest
    blind_to: tuple[Word, ...] = ()


class OverlayQuery(StrictModel):
    """How large an overlay is drawn."""

    side: Annotated[int, Field(ge=LEAST_SIDE, le=MOST_SIDE, description="pixels of the longer side"), DIGITS] = SIDE


@router.add(
    "POST",
    "/api/v1/recipes/{name}/{version:int}/overlay",
    ENGINEER,
    takes="application/octet-stream",
    query=OverlayQuery,
    sends="image/png",
    gives=(PICTURE_HEADER, PROOF_HEADER),
    answers={
        200: f"the picture, a PNG; {PROOF_HEADER} and {PICTURE_HEADER} are for the confirmation",
        404: "no such version",
        409: "the version does not say how whole boards are cut",
        413: "too large",
        415: "not a picture",
        422: "a picture that cannot be read",
    },
)
async def post_overlay(visit: Visit) -> Response:
    """Draw the crops of a version on a picture of a whole board.

    Check them before activation. Neither picture is kept.
    """
    gate = visit.gate
    recipe = await gate.read(partial(version_of, visit))
    whole, bits = _whole(recipe), RecipeContent.model_validate(recipe.content).bits
    async with whole_body(visit, gate.config.limits.body) as picture:
        drawn, is_registered = await gate.draw(
            partial(_drawn, whole, bits, picture, gate.config.limits.pixels, visit.query.side)
        )
        digest = hashlib.sha256(picture).hexdigest()
    headers = {PICTURE_HEADER: digest}
    if is_registered:
        headers[PROOF_HEADER] = await _proof(visit, recipe, digest)
    return Response(drawn, media_type="image/png", headers=headers)


@router.add(
    "POST",
    "/api/v1/recipes/{name}/{version:int}/confirmation",
    ENGINEER,
    body=ConfirmationRequest,
    sends=_CONFIRMED,
    answers={
        201: "confirmed",
        404: "no such version",
        409: "nobody saw such an overlay, or `blind_to` is not what the version says",
    },
)
async def confirm(visit: Visit) -> Mapping[str, Any]:
    """Confirm the crops of an overlay.

    A version that cuts whole boards needs this before activation.
    """
    gate = visit.gate
    form: ConfirmationRequest = visit.body.form
    recipe = await gate.read(partial(version_of, visit))
    whole = _whole(recipe)
    if not hmac.compare_digest(await _proof(visit, recipe, form.picture), form.proof):
        raise Problem(
            ProblemKind.CONFLICT,
            f"this is not the proof of an overlay of version {recipe.version} of recipe '{recipe.name}'",
            "draw the overlay of a board that can be registered, look at it, and send what its headers say",
        )

    await gate.run(partial(_expect_read, whole, form.blind_to))
    detail = {"picture": form.picture, **({"blind_to": list(form.blind_to)} if form.blind_to else {})}

    def add(connection: Connection) -> Confirmation:
        now_us = gate.now_us()
        added = recipe_versions.confirm(connection, recipe, by=visit.caller, now_us=now_us, picture_sha256=form.picture)
        if added.confirmed_us == now_us and added.recipe_id == recipe.id:
            about = f"recipe {recipe.name} {recipe.version}"
            audit.append(connection, visit.caller, "confirm", about, now_us=now_us, detail=detail)
        return added

    added = await gate.write(add)
    return _CONFIRMED(added, name=recipe.name, version=recipe.version)


def _whole(recipe: Recipe) -> WholeBoard:
    whole = RecipeContent.model_validate(recipe.content).whole
    if whole is None:
        raise Problem(
            ProblemKind.CONFLICT,
            f"version {recipe.version} of recipe '{recipe.name}' does not say how whole boards are cut",
            "add a version with `whole`: parts.csv and a board recipe",
        )
    return whole


def _expect_read(whole: WholeBoard, read: tuple[str, ...]) -> None:
    """Raise Problem unless the caller names all ways in which a board could lie wrong unnoticed, and no others."""
    if set(read) != set(whole.blind_to):
        raise Problem(
            ProblemKind.CONFLICT,
            "; ".join(whole.warnings) or "the fiducials notice a board that lies wrong, and `blind_to` says otherwise",
            f"name a landmark in the board recipe, or say that no board lies so: `blind_to`: {list(whole.blind_to)}",
        )


async def _proof(visit: Visit, recipe: Recipe, picture: str) -> str:
    return await access.signature(visit.gate, f"overlay {recipe.name} {recipe.digest} {picture}")


def _drawn(whole: WholeBoard, bits: int | None, picture: bytes, limit: int, side: int) -> tuple[bytes, bool]:
    """Return an overlay, a PNG file, and whether the board is registered in it; raises Problem."""
    check_pixels(pixels_in(io.BytesIO(picture)), limit)
    read = read_board(picture, whole.layout, "", bits=bits)
    if read.location is None:
        raise Problem(ProblemKind.INVALID, read.why, "send a whole picture of a board")
    return encoded(overlay_of(read, side, "RGB"), compress_level=1), read.location.registered
