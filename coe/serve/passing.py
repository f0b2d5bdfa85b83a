"""Which labels of an expert may pass, by the rules of the recipes and by what was found on good parts."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError
from sqlalchemy import Connection

from coe.core import NOTHING, Verdict
from coe.errors import CoeError
from coe.serve.database import recipe_versions
from coe.serve.recipe_content import RecipeContent


class Passing:
    """The labels that do not speak against a part, by expert, in at least one of some versions of recipes.

    `found` holds the experts and labels of parts that the line called OK.
    """

    def __init__(self, connection: Connection, recipe_ids: Iterable[int], found: Iterable[tuple[str, str]]) -> None:
        self._passing, self._known = set(found), set[str]()
        for id in recipe_ids:
            self._add(recipe_versions.get(connection, id))

    def _add(self, recipe: recipe_versions.Recipe) -> None:
        try:
            components = RecipeContent.model_validate(recipe.content).board(recipe.name).components.values()
        except (CoeError, ValidationError):  # its experts stay unknown
            return
        for step in {step for component in components for step in component.root.walk()}:
            self._known.add(step.expert)
            self._passing |= {
                (step.expert, label)
                for label, outcome in step.outcomes.items()
                if outcome not in (Verdict.NG, Verdict.REVIEW)
            }

    def may_pass(self, expert: str, label: str, *, said: bool, verdict: Verdict) -> bool:
        """Tell whether a defect must not be kept under a label: `said` by a person, or that of an expert's finding.

        Of an expert that no recipe here names, a label counts that was said, or led to NG.
        """
        if label == NOTHING or (expert, label) in self._passing:
            return True
        return expert not in self._known and not said and verdict is not Verdict.NG
