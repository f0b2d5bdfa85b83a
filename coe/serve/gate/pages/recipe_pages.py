"""The pages of recipes: their versions, and for a version the overlay that a person confirms."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from coe.errors import ConfigError
from coe.serve.database import recipe_versions
from coe.serve.database.recipe_versions import Recipe
from coe.serve.gate.operations import Visit
from coe.serve.gate.pages.rendering import PageRouter, Shown
from coe.serve.gate.recipe_routes import version_of
from coe.serve.recipe_content import RecipeContent

router = PageRouter()


@router.page("/recipes", "recipes.j2")
def recipes_page(visit: Visit, connection: Connection) -> Shown:
    """Recipes with their versions."""
    listed, confirmed = [], set[int]()
    for name in recipe_versions.names(connection):
        versions = recipe_versions.versions(connection, name)
        listed.append((name, recipe_versions.active(connection, name), versions))
        confirmed |= recipe_versions.confirmed(connection, versions)
    asked = {activation.recipe_id for activation in recipe_versions.asked(connection)}
    return {"recipes": listed, "asked": asked, "confirmed": confirmed}


@router.page("/recipes/{name}/{version:int}", "recipe.j2")
def recipe_page(visit: Visit, connection: Connection) -> Shown:
    """A version of a recipe; engineers lay it over the picture of a board, and confirm its placements."""
    recipe = version_of(visit, connection)
    active = recipe_versions.active(connection, recipe.name)
    return {
        "recipe": recipe,
        "confirmation": recipe_versions.confirmation_of(connection, recipe),
        "is_active": active is not None and active.id == recipe.id,
        "is_asked": recipe.id in {activation.recipe_id for activation in recipe_versions.asked(connection)},
        **_facts(recipe),
    }


def _facts(recipe: Recipe) -> dict[str, Any]:
    content = RecipeContent.model_validate(recipe.content)
    facts: dict[str, Any] = {
        "whole": content.whole is not None,
        "within_s": content.within_s,
        "warnings": [],
        "blind_to": [],
    }
    try:
        if content.whole is not None:
            facts |= {"warnings": content.whole.warnings, "blind_to": content.whole.blind_to}
        numbers = {"parts_number": len(content.components), "opportunities": content.opportunities(recipe.name)}
    except ConfigError as error:  # the recipe was in order when it was added, and an update refuses it
        return {**facts, "parts_number": None, "opportunities": None, "refusal": str(error)}
    return {**facts, **numbers, "refusal": ""}
