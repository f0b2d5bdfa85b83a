"""Recipes: add versions, activate them. The line, not the gate, says what becomes of an activation."""

from __future__ import annotations

import hashlib
import hmac
import io
from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Annotated, Any

from pydantic import Field
from sqlalchemy import Connection
from starlette.responses import JSONResponse, Response

from coe.errors import did_you_mean
from coe.helpers.strict_model import StrictModel
from coe.inspector import weights_used
from coe.pictures.array_images import encoded
from coe.pictures.formats import pixels_in
from coe.placement import overlay_of, read_board
from coe.serve.database import audit, event_log, recipe_versions, row_types
from coe.serve.database.tables import Activation, Confirmation, Recipe
from coe.serve.enums import ActivationState, EventKind
from coe.serve.gate import access
from coe.serve.gate.operations import ANY, BYTES, DIGITS, ENGINEER, READ, JsonForm, OperationRouter, Visit, whole_body
from coe.serve.gate.problems import Problem, ProblemKind, existing
from coe.serve.gate.upload_routes import check_pixels
from coe.serve.recipe_content import RecipeContent, WholeBoard
from coe.serve.text_checks import Word
from coe.store.store import Store

router = OperationRouter()

_FACTS = "name version digest created_us created_by"
VERSION = JsonForm("RecipeVersion", Recipe, _FACTS, maybe={"warnings": list[str], "content": RecipeContent})
_NAMED = JsonForm("RecipeName", more={"name": str, "active": int | None, "newest": int})
_RECIPES = JsonForm("Recipes", more={"recipes": _NAMED.many})
_ASKED = JsonForm("AskedActivation", Recipe, _FACTS, {"activation": int, "state": ActivationState})
_ACTIVATION = JsonForm("Activation", Activation, "state reason answered_us activation=id")


@router.read("/api/v1/recipes", READ, sends=_RECIPES)
def get_recipes(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """List recipes."""
    rows = []
    for name in recipe_versions.names(connection):
        active = recipe_versions.active(connection, name)
        newest = recipe_versions.versions(connection, name)[0]
        rows.append(_NAMED(name=name, active=active and active.version, newest=newest.version))
    return _RECIPES(recipes=rows)


@router.read("/api/v1/recipes/{name}/{version:int}", READ, sends=VERSION)
def get_version(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Get a version of a recipe."""
    version = version_of(visit, connection)
    warnings = _warnings(RecipeContent.model_validate(version.content))
    return VERSION(version, **warnings, content=version.content)


@router.add("POST", "/api/v1/recipes/{name}", ENGINEER, body=RecipeContent, sends=VERSION, gives="Location", status=201)
async def post_recipe(visit: Visit) -> Response:
    """Add a version of a recipe. It is checked first. Another request activates it."""
    # The path as the client has written it: a header takes only ASCII.
    return await add_version(visit, visit.name("name"), visit.body.form, visit.request.scope["raw_path"].decode())


async def add_version(visit: Visit, name: str, form: RecipeContent, path: str = "") -> Response:
    """Check a recipe, add it as the newest version, and return the answer; raises CoeError. `path` is for a header."""
    gate = visit.gate
    unproven = await gate.keep(partial(check, name, form, Store(gate.config.line.store)))
    content = form.model_dump(mode="json")
    warnings: list[str] = []

    def add(connection: Connection) -> Recipe:
        now_us, active = gate.now_us(), recipe_versions.active(connection, name)
        if active is not None and active.content.get("calibration") and not form.calibration:
            warnings.append(f"version {active.version}, which is active, has a calibration, but this one has none")
        added = recipe_versions.add(connection, name, content, by=visit.caller, now_us=now_us)
        if added.created_us == now_us:
            event_log.append(connection, EventKind.RECIPE_STAGED, now_us, VERSION(added))
            audit.append(connection, visit.caller, "stage", f"recipe {name} {added.version}", now_us=now_us)
        return added

    added = await gate.write(add)
    headers = {"Location": f"{path}/{added.version}"} if path else None
    return JSONResponse(VERSION(added, **_warnings(form, [*unproven, *warnings])), int(HTTPStatus.CREATED), headers)


def _warnings(content: RecipeContent, unproven: Sequence[str] = ()) -> dict[str, Any]:
    """Return what a person must know before a version is used, or its placements are confirmed."""
    told = [*unproven, *(content.whole.warnings if content.whole is not None else ())]
    return {"warnings": told} if told or content.whole is not None else {}


def check(name: str, content: RecipeContent, store: Store) -> tuple[str, ...]:
    """Return warnings of experts that prove little; raises RulesError, and StoreError for missing weights."""
    board = content.board(name)
    return weights_used.warnings(board, weights_used.read_manifests(board, store))


@router.write(
    "POST", "/api/v1/recipes/{name}/{version:int}/activate", ENGINEER, sends=_ASKED, gives="Location", status=202
)
def activate(visit: Visit, connection: Connection) -> Response:
    """Activate a version. The line finishes started boards and opens it; on failure the previous version stays."""
    version, now_us = version_of(visit, connection), visit.gate.now_us()
    expect_confirmed(connection, version)
    asked = recipe_versions.ask_activation(connection, version.id, by=visit.caller, now_us=now_us)
    audit.append(connection, visit.caller, "activate", f"recipe {version.name} {version.version}", now_us=now_us)
    answer = _ASKED(version, activation=asked.id, state=asked.state)
    return JSONResponse(answer, int(HTTPStatus.ACCEPTED), {"Location": f"/api/v1/activations/{asked.id}"})


def expect_confirmed(connection: Connection, version: Recipe) -> None:
    """Raise Problem for a version that cuts whole boards if nobody has confirmed where."""
    if (refusal := recipe_versions.refusal(connection, version)) is not None:
        raise Problem(
            ProblemKind.CONFLICT,
            refusal,
            f"look at its overlay on the page /recipes/{version.name}/{version.version}, and confirm it there",
        )


@router.read("/api/v1/activations/{id:int}", ANY, sends=_ACTIVATION)
def get_activation(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Get the result of an activation."""
    found, way_out = row_types.get(connection, Activation, visit.id), "use the number in the answer to the POST"
    return _ACTIVATION(existing(found, f"activation {visit.id}", way_out))


def expect_recipe(connection: Connection, name: str) -> None:
    """Raise Problem for the name of a recipe that is not there; without a name all recipes are meant."""
    known = recipe_versions.names(connection) if name else [name]
    if name not in known:
        raise Problem(
            ProblemKind.BAD_REQUEST,
            f"there is no recipe '{name}'{did_you_mean(name, known)}",
            "see GET /api/v1/recipes, or leave `recipe` out for all",
        )


def version_of(visit: Visit, connection: Connection) -> Recipe:
    """Return the version that the path names; raises Problem."""
    name, number = visit.name("name"), int(visit.part("version"))
    version = recipe_versions.version(connection, name, number)
    return existing(version, f"version {number} of recipe '{name}'", "see GET /api/v1/recipes")


# The overlay of a recipe: a picture of a board with every crop, and a person's word that each lies on its part
_CONFIRMED = JsonForm("Confirmed", Confirmation, "by=confirmed_by at=confirmed_us", more={"name": str, "version": int})

PICTURE_HEADER, PROOF_HEADER = "X-Picture-SHA256", "X-Overlay-Proof"  # of an overlay's answer: its picture and proof
Digest = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
_SAID = f"{PICTURE_HEADER} {PROOF_HEADER}"
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
    takes=BYTES,
    query=OverlayQuery,
    sends="image/png",
    gives=_SAID,
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
    status=201,
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
            "draw the overlay of a board that can be registered, look at it, and send the values of its headers",
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
            "; ".join(whole.warnings) or "`blind_to` does not match what the fiducials cannot detect",
            f"name a landmark in the board recipe, or state that no board lies so: `blind_to`: {list(whole.blind_to)}",
        )


async def _proof(visit: Visit, recipe: Recipe, picture: str) -> str:
    return await access.signature(visit.gate, f"overlay {recipe.name} {recipe.digest} {picture}")


def _drawn(whole: WholeBoard, bits: int | None, picture: bytes, limit: int, side: int) -> tuple[bytes, bool]:
    check_pixels(pixels_in(io.BytesIO(picture)), limit)
    read = read_board(picture, whole.layout, "", bits=bits)
    if read.location is None:
        raise Problem(ProblemKind.INVALID, read.why, "send a complete picture of a board")
    return encoded(overlay_of(read, side, "RGB"), compress_level=1), read.location.registered
