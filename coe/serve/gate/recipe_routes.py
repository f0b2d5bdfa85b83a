"""Recipes: add versions, activate them. The line, not the gate, says what becomes of an activation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any

from sqlalchemy import Connection
from starlette.responses import JSONResponse, Response

from coe.errors import did_you_mean
from coe.inspector import weights_used
from coe.serve.database import audit, event_log, recipe_versions, row_types
from coe.serve.database.tables import Activation, Recipe
from coe.serve.enums import ActivationState, EventKind
from coe.serve.gate.json_form import JsonForm
from coe.serve.gate.operations import ANY, ENGINEER, READ, OperationRouter, Visit
from coe.serve.gate.problems import Problem, ProblemKind, existing
from coe.serve.recipe_content import RecipeContent
from coe.store.store import Store

router = OperationRouter()

_FACTS = "name version digest created_us created_by"
VERSION = JsonForm("RecipeVersion", Recipe, _FACTS, maybe={"warnings": list[str], "content": RecipeContent})
_NAMED = JsonForm("RecipeName", more={"name": str, "active": int | None, "newest": int})
_RECIPES = JsonForm("Recipes", more={"recipes": _NAMED.many})
_ASKED = JsonForm("AskedActivation", Recipe, _FACTS, {"activation": int, "state": ActivationState})
_ACTIVATION = JsonForm("Activation", Activation, "state reason answered_us", activation="id")


@router.read("/api/v1/recipes", READ, answers={200: "their names and versions"}, sends=_RECIPES)
def get_recipes(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """List recipes."""
    rows = []
    for name in recipe_versions.names(connection):
        active = recipe_versions.active(connection, name)
        newest = recipe_versions.versions(connection, name)[0]
        rows.append(_NAMED(name=name, active=active and active.version, newest=newest.version))
    return _RECIPES(recipes=rows)


@router.read(
    "/api/v1/recipes/{name}/{version:int}", READ, answers={200: "the version", 404: "no such version"}, sends=VERSION
)
def get_version(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Get a version of a recipe."""
    version = version_of(visit, connection)
    warnings = _warnings(RecipeContent.model_validate(version.content))
    return VERSION(version, **warnings, content=version.content)


@router.add(
    "POST",
    "/api/v1/recipes/{name}",
    ENGINEER,
    body=RecipeContent,
    sends=VERSION,
    gives=("Location",),
    answers={201: "the version", 422: "rules or weights that cannot be used"},
)
async def post_recipe(visit: Visit) -> Response:
    """Add a version of a recipe. It is checked first. Another request activates it."""
    # The path as the client has written it: a header takes only ASCII.
    return await add_version(visit, visit.name("name"), visit.body.form, visit.request.scope["raw_path"].decode())


async def add_version(visit: Visit, name: str, form: RecipeContent, path: str = "") -> Response:
    """Check a recipe, add it as the newest version, and return the answer; raises CoeError.

    `path` is that of the recipe, for a header.
    """
    gate = visit.gate
    unproven = await gate.keep(partial(check, name, form, Store(gate.config.line.store)))
    content = form.model_dump(mode="json")
    warnings: list[str] = []

    def add(connection: Connection) -> Recipe:
        now_us, active = gate.now_us(), recipe_versions.active(connection, name)
        if active is not None and active.content.get("calibration") and not form.calibration:
            warnings.append(f"version {active.version}, which is active, has a calibration, and this one has none")
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
    """Return sentences about experts whose verdicts prove little; see `coe.inspector.weights_used.warnings`.

    Raises RulesError for rules that cannot be used, StoreError for experts whose weights are missing or others.
    """
    board = content.board(name)
    return weights_used.warnings(board, weights_used.read_manifests(board, store))


@router.write(
    "POST",
    "/api/v1/recipes/{name}/{version:int}/activate",
    ENGINEER,
    answers={202: "asked", 404: "no such version", 409: "nobody has confirmed where it cuts whole boards"},
    sends=_ASKED,
    gives=("Location",),
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


@router.read("/api/v1/activations/{id:int}", ANY, answers={200: "asked, active or failed"}, sends=_ACTIVATION)
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
