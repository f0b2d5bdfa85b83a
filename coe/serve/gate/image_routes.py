"""Pictures for people. A browser gets PNG or JPEG made here, never the bytes that a client sent."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Annotated, Any, TypeVar

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field
from sqlalchemy import Connection
from starlette.responses import Response

from coe.comparing.comparison import compare
from coe.errors import ConfigError, ImageError, StoreError
from coe.helpers.spelling import composed
from coe.helpers.strict_model import StrictModel
from coe.pictures.array_images import AS_FILLED, DecodedImage, encoded
from coe.pictures.decoding import decode
from coe.pictures.picture_file import PictureFile
from coe.serve.component_pictures import CropPlace, in_frame
from coe.serve.database import board_rows, call_rows, recipe_versions, row_types
from coe.serve.database.tables import Board, Call, Recipe, View
from coe.serve.gate.gate_state import Gate
from coe.serve.gate.operations import READ, OperationRouter, Visit
from coe.serve.gate.problems import Problem, ProblemKind, existing, not_found
from coe.serve.recipe_content import RecipeContent
from coe.serve.service_config import ServeConfig
from coe.store.references import References
from coe.store.store import Store

_Pixels = Callable[[], DecodedImage]  # draws a picture, on a thread; raises Problem, OSError, ImageError, StoreError
_P = TypeVar("_P", bound=Callable[[Visit, Connection], _Pixels])


async def _answer(visit: Visit, find: Callable[[Connection], _Pixels]) -> Response:
    pixels = await visit.gate.read(find)
    # Answers to calls with a picture of the same id never change, so a browser may keep them for this session.
    headers = {"Cache-Control": "private, max-age=600"}
    try:
        content, media_type = await visit.gate.draw(lambda: shown(pixels()))
    except (OSError, ImageError, StoreError) as error:
        detail = f"the picture cannot be read: {error}"
        raise Problem(ProblemKind.NOT_FOUND, detail, "see the faults of the service") from None
    return Response(content, media_type=media_type, headers=headers)


class _PictureRouter(OperationRouter):
    """Collects pictures: a query finds what is shown, and what it returns makes the pixels."""

    def picture(self, path: str, **more: Any) -> Callable[[_P], _P]:
        """Serve the picture that is made by what this decorates returns."""
        return self.serve(_answer, "GET", path, READ, sends="image/*", **more)


router = _PictureRouter()
LARGEST_SIDE = 1600  # a larger picture is made smaller for the page; its file stays as it is
SMALL = 512  # pictures up to this side are sent without loss, so that their pixels can be judged
QUALITY = 90
OUTLINE = (255, 210, 31)  # the colour, RGB, of an outline; it has a dark border, so that it shows on any board


@dataclass(frozen=True, slots=True)
class _Shot:
    """A view, the place of a part in it (None: it shows the part alone), and how many bits of samples count."""

    view: View | None
    place: CropPlace | None
    bits: int | None = None


@router.picture("/api/v1/calls/{id:int}/picture")
def call_picture(visit: Visit, connection: Connection) -> _Pixels:
    """Get the part's picture. Of a whole board: its crop as the experts saw it, with its surroundings."""
    shot = _shot(connection, call_named(visit, connection))
    return lambda: _pixels(visit.gate, shot)


@router.picture("/api/v1/calls/{id:int}/view")
def call_view(visit: Visit, connection: Connection) -> _Pixels:
    """Get the view with the outline of the crop."""
    shot = _shot(connection, call_named(visit, connection))
    return lambda: _outlined(_pixels(visit.gate, replace(shot, place=None)), shot.place)


@router.picture("/api/v1/calls/{id:int}/reference")
def call_reference(visit: Visit, connection: Connection) -> _Pixels:
    """Get the reference. It is golden, or a good picture of the same part, if possible of the same place."""
    call = call_named(visit, connection)
    shot, golden = _shot(connection, call), golden_of(connection, call)
    if golden:
        return lambda: in_frame(load_golden(visit.gate.config, golden).image, shot.place)
    if (good := board_rows.good_picture(connection, call)) is None:
        raise Problem(ProblemKind.NO_REFERENCE, "there is no good picture", "no part of this type has been OK yet")
    return lambda: _pixels(visit.gate, _Shot(good[0], CropPlace.of(good[1]), shot.bits))


@router.picture("/api/v1/calls/{id:int}/difference")
def call_difference(visit: Visit, connection: Connection) -> _Pixels:
    """Get the difference from the golden reference. Brighter is more."""
    call = call_named(visit, connection)
    shot, id = _shot(connection, call), golden_of(connection, call)
    if not id:
        raise not_found("golden reference", "the component has none in its recipe")

    def pixels() -> DecodedImage:
        part, golden = _pixels(visit.gate, shot, is_framed=False), load_golden(visit.gate.config, id)
        compared = compare(part, golden.image, golden.spread)
        if compared.difference is None:
            raise not_found("difference", compared.doubt)
        return in_frame(np.dstack([compared.difference] * 3), shot.place)

    return pixels


@router.picture("/api/v1/views/{id:int}/picture")
def view_picture(visit: Visit, connection: Connection) -> _Pixels:
    """Get a view of a board."""
    view = row_types.get(connection, View, visit.id)
    return lambda: _pixels(visit.gate, _Shot(view, None))


class PartQuery(StrictModel):
    """Which part of a board."""

    refdes: Annotated[str, Field(description="on a panel unit/refdes")]


@router.picture("/api/v1/boards/{id:int}/part", query=PartQuery)
def part_picture(visit: Visit, connection: Connection) -> _Pixels:
    """Get a part of a decided board."""
    shot = _part(visit, connection)
    return lambda: _pixels(visit.gate, shot)


def _part(visit: Visit, connection: Connection) -> _Shot:
    refdes = composed(visit.query.refdes)
    if (call := call_rows.of_component(connection, visit.id, refdes)) is not None:
        return _shot(connection, call)
    for good in board_rows.unpack(board_rows.findings_of(connection, visit.id)):
        if good.refdes == refdes:
            return _Shot(row_types.get(connection, View, good.view_id), CropPlace.of(good.place))
    raise not_found(f"part '{refdes}' of board {visit.id}", "see GET /api/v1/boards/{id}?good=1")


def call_named(visit: Visit, connection: Connection) -> Call:
    """Return the call that the path names; raises Problem if there is none."""
    return existing(row_types.get(connection, Call, visit.id), f"call {visit.id}", "see GET /api/v1/calls?status=open")


def _shot(connection: Connection, call: Call) -> _Shot:
    view = None if call.view_id is None else row_types.get(connection, View, call.view_id)
    return _Shot(view, CropPlace.of(call.place), bits_of(connection, call))


def _pixels(gate: Gate, shot: _Shot, *, is_framed: bool = True) -> DecodedImage:
    """Return what a view shows of a part, framed by what lies around its crop; raises Problem, OSError, ImageError."""
    if shot.view is None or shot.view.removed_us is not None:
        raise not_found("such picture", "it was never submitted, or was deleted after its retention time")
    file, limit = PictureFile(gate.pictures.path(shot.view.file), shot.view.sha256), gate.config.limits.pixels
    if shot.place is None:
        return decode(file, bits=shot.bits or AS_FILLED, limit_pixels=limit)
    return gate.cutter.cut(file, shot.place, limit, around=shot.place.around if is_framed else 0)


def _outlined(pixels: DecodedImage, place: CropPlace | None) -> DecodedImage:
    scale = min(1.0, LARGEST_SIDE / max(pixels.shape[:2]))
    small = cv2.resize(pixels, None, fx=scale, fy=scale, interpolation=cv2.INTER_AREA) if scale < 1 else pixels.copy()
    if place is not None:
        corners = np.round((np.array(place.corners) + 0.5) * scale - 0.5).astype(np.int32)
        for colour, thick in (((0, 0, 0), 7), (OUTLINE, 3)):
            cv2.polylines(small, [corners], True, colour, thick, cv2.LINE_AA)
    return np.asarray(small)


def shown(pixels: DecodedImage, most: int = LARGEST_SIDE) -> tuple[bytes, str]:
    """Return a picture's pixels as a browser shows them, `most` on a side, and their media type."""
    picture = Image.fromarray(pixels)
    picture.thumbnail((most, most))
    if max(picture.size) <= SMALL:
        return encoded(picture, compress_level=1), "image/png"
    return encoded(picture, "JPEG", quality=QUALITY), "image/jpeg"


def golden_of(connection: Connection, call: Call) -> str:
    """Return the id of the golden reference that a finding names, else the component's first; "" without one."""
    if taken := next((finding["reference"] for finding in call.findings if finding.get("reference")), ""):
        return str(taken)
    recipe = _recipe_of(connection, call)
    return "" if recipe is None else _ids(recipe.name, recipe.content["rules"]).get(call.component, "")


def bits_of(connection: Connection, call: Call) -> int | None:
    """Return how many low bits of 16-bit samples counted in a part's picture; None if its recipe does not say."""
    recipe = _recipe_of(connection, call)
    return None if recipe is None else RecipeContent.model_validate(recipe.content).bits


def _recipe_of(connection: Connection, call: Call) -> Recipe | None:
    board = None if call.board_id is None else row_types.get(connection, Board, call.board_id)
    return None if board is None else recipe_versions.get(connection, board.recipe_id)


@lru_cache(maxsize=64)
def _ids(name: str, rules: str) -> Mapping[str, str]:
    """Return the ids by component; reading the rules of a large board takes a while."""
    try:
        components = RecipeContent(rules=rules).board(name).components.values()
    except ConfigError:  # the recipe was in order when the board was accepted, and an update refuses it
        return {}
    return {component.name: component.references[0] for component in components if component.references}


@dataclass(frozen=True, slots=True)
class Golden:
    """A golden reference: `image` (H, W, 3) uint8 RGB, and by how much good parts vary, `spread` (H, W) uint8."""

    image: NDArray[np.uint8]
    spread: NDArray[np.uint8]


def load_golden(config: ServeConfig, id: str) -> Golden:
    """Return a golden reference as the store has it now; raises StoreError, ImageError."""
    pictures = References(Store(config.line.store)).load(id)
    image, spread = (decode(data, limit_pixels=config.limits.pixels) for data in (pictures.image, pictures.spread))
    return Golden(image, spread[:, :, 0])
