"""Golden references of the store, for people. Law: the recipe of the call's board says which part has a reference."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from coe.board.router import GIVEN
from coe.errors import ConfigError
from coe.pictures.decoding import decode
from coe.serve.database import board_rows, recipe_versions
from coe.serve.database.call_rows import Call
from coe.serve.database.recipe_versions import Recipe
from coe.serve.recipe_content import RecipeContent
from coe.serve.service_config import ServeConfig
from coe.store.references import References
from coe.store.store import Store


def id_of(connection: Connection, call: Call) -> str:
    """Return the id of the golden reference with which the experts compared a part; "" without one."""
    recipe = _recipe_of(connection, call)
    return "" if recipe is None else _ids(recipe.name, recipe.content["rules"]).get(call.component, "")


def bits_of(connection: Connection, call: Call) -> int | None:
    """Return how many low bits of 16-bit samples counted in a part's picture; None if its recipe does not say."""
    recipe = _recipe_of(connection, call)
    return None if recipe is None else RecipeContent.model_validate(recipe.content).bits


def _recipe_of(connection: Connection, call: Call) -> Recipe | None:
    board = None if call.board_id is None else board_rows.get(connection, call.board_id)
    return None if board is None else recipe_versions.get(connection, board.recipe_id)


@lru_cache(maxsize=64)
def _ids(name: str, rules: str) -> Mapping[str, str]:
    """Return the ids by component; reading the rules of a large board takes a while."""
    try:
        components = RecipeContent(rules=rules).board(name).components.values()
    except ConfigError:  # the recipe was in order when the board was accepted, and an update refuses it
        return {}
    return {component.name: component.reference for component in components if component.reference not in ("", GIVEN)}


@dataclass(frozen=True, slots=True)
class Golden:
    """A golden reference: `image` (H, W, 3) uint8 RGB, and by how much good parts vary, `spread` (H, W) uint8."""

    image: NDArray[np.uint8]
    spread: NDArray[np.uint8]


def load(config: ServeConfig, id: str) -> Golden:
    """Return a golden reference as the store has it now; raises StoreError, ImageError."""
    pictures = References(Store(config.line.store)).load(id)
    image, spread = (decode(data, limit_pixels=config.limits.pixels) for data in (pictures.image, pictures.spread))
    return Golden(image, spread[:, :, 0])
