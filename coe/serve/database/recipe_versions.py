"""Recipes: versions that never change, and which of them is active. Activations are added, never rewritten."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError
from sqlalchemy import Connection, func, select

from coe.errors import ConfigError
from coe.serve.database import row_types
from coe.serve.database.row_types import change, found, in_turn, listed, only, record, records
from coe.serve.database.tables import Activation, Confirmation, Recipe, activation, confirmation, recipe
from coe.serve.enums import ActivationState
from coe.serve.recipe_content import WholeBoard

MOST_VERSION = 2**31 - 1  # the column holds no larger number, and drivers refuse to ask for one


def add(connection: Connection, name: str, content: Mapping[str, Any], *, by: str, now_us: int) -> Recipe:
    """Add a version of a recipe; the version that has this content already is returned as it is."""
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    in_turn(connection, recipe)
    if (same := only(connection, Recipe, recipe.c.name == name, recipe.c.digest == digest)) is not None:
        return same
    last = connection.scalar(select(func.max(recipe.c.version)).where(recipe.c.name == name)) or 0
    row = {"name": name, "version": last + 1, "content": dict(content), "digest": digest}
    return row_types.add(connection, Recipe, row | {"created_us": now_us, "created_by": by})


def get(connection: Connection, id: int) -> Recipe:
    """Return the version of an id, which a row refers to."""
    return record(Recipe, connection.execute(select(recipe).where(recipe.c.id == id)).one())


def titles(connection: Connection, ids: Iterable[int]) -> dict[int, tuple[str, int]]:
    """Return name and version of recipes by their ids."""
    query = select(recipe.c.id, recipe.c.name, recipe.c.version).where(recipe.c.id.in_(set(ids)))
    return {row.id: (row.name, row.version) for row in connection.execute(query)}


class KeptRecipes:
    """The versions of recipes that were asked for last, in memory: a version never changes. One thread at a time."""

    def __init__(self, most: int = 8) -> None:
        self._most = most
        self._kept: dict[int, Recipe] = {}

    def get(self, connection: Connection, id: int) -> Recipe:
        """Return the version of an id, which a row refers to."""
        self._kept[id] = wanted = self._kept.pop(id, None) or get(connection, id)
        if len(self._kept) > self._most:
            del self._kept[next(iter(self._kept))]
        return wanted


def version(connection: Connection, name: str, number: int) -> Recipe | None:
    """Return a version of a recipe, or None."""
    if number > MOST_VERSION:
        return None
    return only(connection, Recipe, recipe.c.name == name, recipe.c.version == number)


def versions(connection: Connection, name: str) -> list[Recipe]:
    """Return all versions of a recipe, the newest first."""
    query = select(recipe).where(recipe.c.name == name).order_by(recipe.c.version.desc())
    return records(Recipe, connection.execute(query))


def names(connection: Connection) -> list[str]:
    """Return the names of all recipes, sorted."""
    return list(connection.scalars(select(recipe.c.name).distinct().order_by(recipe.c.name)))


def active(connection: Connection, name: str) -> Recipe | None:
    """Return the active version of a recipe; None if none was ever activated."""
    query = (
        select(recipe)
        .join(activation, activation.c.recipe_id == recipe.c.id)
        .where(recipe.c.name == name, activation.c.state == ActivationState.ACTIVE)
        .order_by(activation.c.id.desc())
        .limit(1)
    )
    return found(Recipe, connection.execute(query))


def was_active(connection: Connection, id: int) -> bool:
    """Return whether a version is active, or was."""
    query = select(activation.c.id).where(activation.c.recipe_id == id, activation.c.state == ActivationState.ACTIVE)
    return connection.execute(query.limit(1)).first() is not None


def all_active(connection: Connection) -> list[Recipe]:
    """Return the active version of each recipe that has one, in the order of their names."""
    query = select(recipe).where(recipe.c.id.in_(active_ids(connection))).order_by(recipe.c.name)
    return records(Recipe, connection.execute(query))


def active_ids(connection: Connection) -> frozenset[int]:
    """Return the ids of the active version of each recipe that has one."""
    newest = (
        select(func.max(activation.c.id))
        .join(recipe, recipe.c.id == activation.c.recipe_id)
        .where(activation.c.state == ActivationState.ACTIVE)
        .group_by(recipe.c.name)
    )
    return frozenset(connection.scalars(select(activation.c.recipe_id).where(activation.c.id.in_(newest))))


def ask_activation(connection: Connection, recipe_id: int, *, by: str, now_us: int) -> Activation:
    """Ask the worker to make a version the active version."""
    row = {"recipe_id": recipe_id, "state": ActivationState.ASKED, "asked_us": now_us, "asked_by": by, "reason": ""}
    return row_types.add(connection, Activation, row)


def asked(connection: Connection) -> list[Activation]:
    """Return the activations that the worker has not answered yet, the oldest first."""
    return listed(connection, Activation, activation.c.state == ActivationState.ASKED)


def answer(connection: Connection, id: int, state: ActivationState, *, now_us: int, reason: str = "") -> bool:
    """Note the result of an activation; return False if it was answered before."""
    is_asked = (activation.c.id == id, activation.c.state == ActivationState.ASKED)
    return change(connection, activation, *is_asked, state=state, answered_us=now_us, reason=reason)


def confirm(connection: Connection, of: Recipe, *, by: str, now_us: int, picture_sha256: str) -> Confirmation:
    """Note that a person confirmed the placements of a version; an earlier confirmation stays as it is."""
    if (before := confirmation_of(connection, of)) is not None:
        return before
    row = {"recipe_id": of.id, "confirmed_us": now_us, "confirmed_by": by, "picture_sha256": picture_sha256}
    row["reading"] = reading_of(of.content)
    return row_types.add(connection, Confirmation, row)


def reading_of(content: Mapping[str, Any]) -> str:
    """Return the digest of where placements lie; empty without any, or if this service refuses them."""
    try:
        return "" if content.get("whole") is None else WholeBoard.model_validate(content["whole"]).reading
    except (ConfigError, ValidationError):
        return ""


def refusal(connection: Connection, version: Recipe) -> str | None:
    """Return why a version must not be used: it cuts whole boards where nobody has confirmed it. None if it may be.

    The gate asks when a version is activated or named, the line when it opens one; one that was active goes on.
    """
    if version.content.get("whole") is None:
        return None
    words = _words_of(connection, version.name)
    if _word_on(version, words) is not None:
        return None
    about = f"the placements of version {version.version} of recipe '{version.name}'"
    if any(whole == version.content["whole"] for _, whole in words):
        return f"{about} were confirmed with another version of coe-serve, which crops differently"
    return None if was_active(connection, version.id) else f"nobody has confirmed {about}"


def confirmation_of(connection: Connection, of: Recipe) -> Confirmation | None:
    """Return the word on the placements of a version, or of another version with the same placements; else None."""
    return _word_on(of, _words_of(connection, of.name))


def confirmed(connection: Connection, versions: Sequence[Recipe]) -> set[int]:
    """Return the ids of those of a recipe's versions whose placements somebody has confirmed."""
    words = _words_of(connection, versions[0].name) if versions else []
    return {version.id for version in versions if _word_on(version, words) is not None}


def _words_of(connection: Connection, name: str) -> list[tuple[Confirmation, Any]]:
    """Return the confirmations of a recipe's versions, the oldest first, each with its placements."""
    query = select(*confirmation.c, recipe.c.content).join(recipe, recipe.c.id == confirmation.c.recipe_id)
    rows = connection.execute(query.where(recipe.c.name == name).order_by(confirmation.c.id))
    return [(Confirmation(*row[:-1]), row.content.get("whole")) for row in rows]


def _word_on(of: Recipe, words: Sequence[tuple[Confirmation, Any]]) -> Confirmation | None:
    same = [word for word, whole in words if whole == of.content.get("whole")]
    reading = reading_of(of.content) if same else ""
    # Placements that this version refuses lie nowhere: whoever uses them says why.
    return next((word for word in same if not reading or word.reading in ("", reading)), None)
