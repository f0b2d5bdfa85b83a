"""The Open Inference Protocol v2: a recipe is a model, and a request is a board of one picture.

It takes the way of every other board. The answer is the board's decision; nothing is judged outside the history.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from PIL import Image
from sqlalchemy import Connection
from starlette.responses import Response

import coe
from coe.errors import CoeError, ConfigError
from coe.pictures.array_images import encoded
from coe.serve.database import board_rows, call_rows, findings, recipe_versions
from coe.serve.database.database_errors import DatabaseError
from coe.serve.database.tables import Board, Recipe
from coe.serve.enums import BoardState
from coe.serve.gate.board_routes import hand_in, take_back, until_decided
from coe.serve.gate.json_form import JsonForm
from coe.serve.gate.operations import ANY, FEED, OperationRouter, Visit
from coe.serve.gate.problems import Problem, ProblemKind, existing
from coe.serve.gate.recipe_routes import expect_confirmed, version_of
from coe.serve.gate.request_data import JsonBody, whole_body
from coe.serve.gate.tensors import LENGTH_HEADER, OUTPUTS, InferRequest, Parameters, Parsed, answer, parse
from coe.serve.gate.upload_routes import check_pixels, discard_views, keep_view
from coe.serve.request import BoardRequest
from coe.strict_model import of_json

router = OperationRouter()

LONGEST_WAIT_S = 60.0
_VIEW = "image"
_RECIPE, _VERSION = "/v2/models/{name}", "/v2/models/{name}/versions/{version:int}"
"""The active version of a recipe, and the version that the path names."""
_ANSWERS = {
    200: "the decision",
    404: "no such recipe",
    409: "nobody has confirmed where the recipe cuts whole boards",
    422: "a request that cannot be used",
    503: "there was no decision in time",
}
_SERVER = JsonForm("InferenceServer", more={"name": str, "version": str, "extensions": list[str]})
_TENSOR_FACTS = {"name": str, "datatype": str, "shape": list[int]}
_TENSOR = JsonForm("TensorFacts", more=_TENSOR_FACTS)
_MODEL = JsonForm(
    "Model", more={"name": str, "versions": list[str], "platform": str, "inputs": _TENSOR.many, "outputs": _TENSOR.many}
)
_READY = JsonForm("ModelReady", more={"name": str, "ready": bool})
_OUTPUT = JsonForm("Output", more=_TENSOR_FACTS, maybe={"data": list[str | int | float], "parameters": Parameters})
_INFERRED = JsonForm("Inferred", more={"model_name": str, "model_version": str, "id": str, "outputs": _OUTPUT.many})
_INFER: dict[str, Any] = {
    "answers": _ANSWERS,
    "takes": "application/octet-stream",
    "form": InferRequest,
    "sends": _INFERRED,
}


@router.add("GET", "/v2", ANY, answers={200: "it"}, sends=_SERVER)
async def get_server(visit: Visit) -> Mapping[str, Any]:
    """What the server is (Open Inference Protocol v2)."""
    return _SERVER(name="coe-serve", version=coe.__version__, extensions=["binary_tensor_data"])


@router.read(_RECIPE, ANY, answers={200: "the inputs"}, sends=_MODEL)
@router.read(_VERSION, ANY, answers={200: "the inputs"}, sends=_MODEL)
def get_model(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """Inputs and outputs of a recipe."""
    recipe = _recipe(visit, connection)
    return _MODEL(
        name=recipe.name,
        versions=[str(recipe.version)],
        platform="coe",
        inputs=[_TENSOR(name=name, datatype="BYTES", shape=[1]) for name in ("image", "component")],
        outputs=[_TENSOR(name=name, datatype=datatype, shape=[1]) for name, datatype in OUTPUTS.items()],
    )


@router.read(_RECIPE + "/ready", ANY, answers={200: "it is"}, sends=_READY)
@router.read(_VERSION + "/ready", ANY, answers={200: "it is"}, sends=_READY)
def get_model_ready(visit: Visit, connection: Connection) -> Mapping[str, Any]:
    """There is such a recipe; whether the line answers, `/v2/health/ready` says."""
    return _READY(name=_recipe(visit, connection).name, ready=True)


@router.add("POST", _RECIPE + "/infer", FEED, **_INFER)
@router.add("POST", _VERSION + "/infer", FEED, **_INFER)
async def infer(visit: Visit) -> Response:
    """Inspect one picture of one component (Open Inference Protocol v2, with the binary extension)."""
    gate = visit.gate
    recipe = await gate.read(partial(_recipe, visit))
    key = f"infer-{secrets.token_hex(16)}"
    request, component = await _take_in(visit, key)
    views = {_VIEW: {"refdes": component, "component": component}}
    data: dict[str, Any] = {"recipe": recipe.name, "version": recipe.version, "views": views}
    within_s = request.parameters.within_s
    data |= {} if within_s is None else {"within_s": within_s}
    try:
        handed = await hand_in(gate, visit.caller, key, JsonBody(data, of_json(data, BoardRequest)))
    except (Problem, CoeError):
        with suppress(DatabaseError, OSError):  # else it goes with the pictures that nobody hands in
            await gate.run(partial(discard_views, gate, key))
        raise
    decided = await until_decided(gate, handed.board.id, LONGEST_WAIT_S)
    if decided.verdict is None and decided.state is not BoardState.ABORTED:  # nobody waits for it any more
        with suppress(Problem):  # it may be decided at this moment
            await gate.write(lambda connection: take_back(visit, connection, decided.id))
        decided = await until_decided(gate, decided.id, 0)
    if decided.verdict is None:
        raise Problem(ProblemKind.NOT_READY, f"there was no decision in {LONGEST_WAIT_S:g} s", "see the faults")
    outputs = await gate.read(partial(_outputs, board=decided))
    facts = {"model_name": recipe.name, "model_version": str(recipe.version), "id": request.id or key}
    return answer(facts, outputs, request)


async def _take_in(visit: Visit, key: str) -> tuple[InferRequest, str]:
    """Keep the picture of a request as a view of the board `key`; return the request without it, and what it shows.

    No picture is in memory while the request waits.
    """
    gate = visit.gate
    async with whole_body(visit, gate.config.limits.body) as content:
        parsed = await gate.run(partial(parse, content, visit.request.headers.get(LENGTH_HEADER)))
        picture = await gate.draw(partial(_picture, parsed, gate.config.limits.pixels))
        component = _component(parsed)
        await keep_view(gate, key, _VIEW, picture)
        return parsed.request.model_copy(update={"inputs": ()}), component


def _recipe(visit: Visit, connection: Connection) -> Recipe:
    """Return the version that the path names, the active version if it names none; raises Problem."""
    name = visit.name("name")
    if "version" in visit.request.path_params:
        recipe = version_of(visit, connection)
    else:
        active = recipe_versions.active(connection, name)
        recipe = existing(active, f"such active recipe as '{name}'", "see GET /api/v1/recipes")
    expect_confirmed(connection, recipe)
    return recipe


def _picture(parsed: Parsed, most_pixels: int) -> bytes:
    """Return the picture as a file: BYTES is a file, in JSON as base64, UINT8 are pixels, (height, width, 3) RGB."""
    tensor = parsed.tensor("image")
    if tensor is None:
        raise ConfigError("there is no input 'image'; send a picture as BYTES, or pixels as UINT8")
    values = parsed.values(tensor)
    if isinstance(values, list):
        if len(values) != 1:
            raise ConfigError("input 'image' must hold one picture")
        if tensor.data is None:
            return values[0]
        try:
            return base64.b64decode(b"".join(values[0].split()), validate=True)  # in lines, as many programs write it
        except binascii.Error:
            raise ConfigError("input 'image' is no base64; JSON holds a picture so, binary data as it is") from None
    if len(tensor.shape) != 3 or tensor.shape[2] != 3 or not values:
        raise ConfigError(f"input 'image' has the shape {list(tensor.shape)}; send (height, width, 3)")
    height, width = tensor.shape[:2]
    check_pixels(height * width, most_pixels)
    return encoded(Image.frombytes("RGB", (width, height), values), compress_level=1)


def _component(parsed: Parsed) -> str:
    tensor = parsed.tensor("component")
    values = [] if tensor is None else parsed.values(tensor)
    if not isinstance(values, list) or len(values) != 1:
        raise ConfigError("input 'component' must be one text (BYTES): the component's type in the recipe")
    unknown = [tensor.name for tensor in parsed.request.inputs if tensor.name not in ("image", "component")]
    if unknown:
        raise ConfigError(f"there is no input '{unknown[0]}'; known: image, component")
    return values[0].decode("utf-8", "replace")


def _outputs(connection: Connection, *, board: Board) -> dict[str, int | float | str]:
    """Return what was decided: the component's call if there is one, else its last finding."""
    called = call_rows.of_board(connection, board.id)
    good = findings.unpack(board_rows.findings_of(connection, board.id))
    rows: list[Any] = list(called[0].findings if called else good[0].findings if good else ())
    last = rows[-1] if rows else {}
    label = called[0].label if called else str(last.get("label", ""))
    score = called[0].score if called else last.get("score")
    assert board.verdict is not None
    return {
        "verdict": board.verdict.value,
        "label": label,
        "score": float(score or 0.0),
        "findings": json.dumps(rows),
        "board": board.id,
    }
