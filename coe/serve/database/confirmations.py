"""A person's word that a recipe cuts whole boards where their parts lie. Law: without it no such recipe is used.

The word is on the placements: a later version of the recipe that cuts boards in the same way needs no new word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select

from coe.serve.database import recipe_versions
from coe.serve.database.recipe_versions import Recipe
from coe.serve.database.row_types import record
from coe.serve.database.tables import confirmation, recipe


@dataclass(frozen=True, slots=True)
class Confirmation:
    """Who confirmed the placements of a recipe's version, and over which picture the crops were looked at."""

    id: int
    recipe_id: int
    confirmed_us: int
    confirmed_by: str
    picture_sha256: str


def add(connection: Connection, of: Recipe, *, by: str, now_us: int, picture_sha256: str) -> Confirmation:
    """Note that a person confirmed the placements of a version; an earlier confirmation stays as it is."""
    if (before := find(connection, of)) is not None:
        return before
    row = {"recipe_id": of.id, "confirmed_us": now_us, "confirmed_by": by, "picture_sha256": picture_sha256}
    return record(Confirmation, connection.execute(insert(confirmation).values(row).returning(confirmation)).one())


def refusal(connection: Connection, version: Recipe) -> str | None:
    """Return why a version must not be used: it cuts whole boards where nobody has confirmed it. None if it may be.

    The gate asks when a version is activated or named, and the line when it opens one. A version that was active before
    words were asked for goes on.
    """
    if version.content.get("whole") is None or find(connection, version) is not None:
        return None
    if recipe_versions.was_active(connection, version.id):
        return None
    return f"nobody has confirmed the placements of version {version.version} of recipe '{version.name}'"


def find(connection: Connection, of: Recipe) -> Confirmation | None:
    """Return the word on the placements of a version, or of another version with the same placements; else None."""
    for word, whole in _of_name(connection, of.name):
        if whole == of.content.get("whole"):
            return word
    return None


def confirmed(connection: Connection, versions: Sequence[Recipe]) -> set[int]:
    """Return the ids of those of a recipe's versions whose placements somebody has confirmed."""
    known = [whole for _, whole in _of_name(connection, versions[0].name)] if versions else []
    return {version.id for version in versions if version.content.get("whole") in known}


def _of_name(connection: Connection, name: str) -> list[tuple[Confirmation, Any]]:
    """Return the confirmations of a recipe's versions, the oldest first, each with its placements."""
    query = (
        select(confirmation, recipe.c.content)
        .join(recipe, recipe.c.id == confirmation.c.recipe_id)
        .where(recipe.c.name == name)
        .order_by(confirmation.c.id)
    )
    return [
        (
            Confirmation(row.id, row.recipe_id, row.confirmed_us, row.confirmed_by, row.picture_sha256),
            row.content.get("whole"),
        )
        for row in connection.execute(query)
    ]
