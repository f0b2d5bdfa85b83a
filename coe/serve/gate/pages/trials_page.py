"""The pages of trials, for engineers: what can be tried, and what a trial shows."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import Any

from sqlalchemy import Connection
from starlette.responses import Response

from coe.core import NOTHING
from coe.errors import ConfigError
from coe.serve.database import recipe_versions, trial_rows
from coe.serve.gate.operations import ENGINEER, Visit
from coe.serve.gate.pages.rendering import PageRouter, Shown, page
from coe.serve.gate.trial_routes import facts, trial_of
from coe.serve.recipe_content import RecipeContent

router = PageRouter()


@router.add("GET", "/trials", ENGINEER)
async def trials(visit: Visit) -> Response:
    """Trials, and a form that asks for one."""
    return await page(visit, "trials.j2", _trials)


def _trials(connection: Connection) -> Shown:
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


@router.add("GET", "/trials/{id:int}", ENGINEER)
async def trial(visit: Visit) -> Response:
    """A trial: today's figures beside those of what is tried, and the parts that change."""
    return await page(visit, "trial.j2", partial(_trial, visit))


def _trial(visit: Visit, connection: Connection) -> Shown:
    found = trial_of(visit, connection)
    same = [
        version.version
        for version in recipe_versions.versions(connection, found.recipe)
        if version.content == found.content
    ]
    shown: dict[str, Any] = {"trial": found, "facts": facts(found), "version": same[0] if same else None}
    return shown | {"changed": found.counts.get("changed", {})}
