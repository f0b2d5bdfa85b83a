"""The pages of recipes: their versions, for a version the overlay that a person confirms, and trials of others."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sqlalchemy import Connection

from coe.core import NOTHING
from coe.errors import ConfigError
from coe.serve.database import recipe_versions, trial_rows
from coe.serve.database.tables import Recipe
from coe.serve.gate.operations import ENGINEER, Visit
from coe.serve.gate.pages.rendering import PageRouter, Shown
from coe.serve.gate.recipe_routes import version_of
from coe.serve.gate.trial_routes import facts, trial_of
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
        "unconfirmed": recipe_versions.refusal(connection, recipe),
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


@router.page("/trials", "trials.j2", ENGINEER)
def trials(visit: Visit, connection: Connection) -> Shown:
    """Trials, and a form that asks for one."""
    recipes: dict[str, list[str]] = {}
    labels: dict[str, dict[str, None]] = {}
    for name in recipe_versions.names(connection):
        recipes[name] = []
        recipe = recipe_versions.active(connection, name) or recipe_versions.versions(connection, name)[0]
        with suppress(ConfigError):  # the recipe was in order when it was added, and an update refuses it
            for id, expert in RecipeContent.model_validate(recipe.content).board(name).experts.items():
                recipes[name].append(id)
                labels.setdefault(id, {}).update(dict.fromkeys([*expert.labels, NOTHING]))
    trials = [facts(trial) | {"asked_us": trial.asked_us} for trial in trial_rows.newest(connection)]
    return {"trials": trials, "recipes": recipes, "labels": labels}


@router.page("/trials/{id:int}", "trial.j2", ENGINEER)
def trial(visit: Visit, connection: Connection) -> Shown:
    """A trial: today's figures beside those of what is tried, and the parts that change."""
    found = trial_of(visit, connection)
    same = [
        version.version
        for version in recipe_versions.versions(connection, found.recipe)
        if version.content == found.content
    ]
    shown: dict[str, Any] = {"trial": found, "facts": facts(found), "version": same[0] if same else None}
    return shown | {"changed": found.counts.get("changed", {})}
