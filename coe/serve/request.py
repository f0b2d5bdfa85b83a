"""What a feeder says when it hands a board in. Law: what the service cannot use is refused, never ignored."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from coe.board.rules import Rules
from coe.errors import ConfigError, did_you_mean
from coe.serve.database.schema import NAME
from coe.serve.form import Form
from coe.serve.recipe import RecipeContent
from coe.serve.words import Side
from coe.visible import is_visible


def _plain(text: str) -> str:
    if not is_visible(text) or "\n" in text:
        raise ValueError("it has hidden characters; give plain text")
    return text


Text = Annotated[str, Field(max_length=NAME), AfterValidator(_plain)]
"""A text for people in one line."""
Word = Annotated[str, Field(min_length=1, max_length=NAME), AfterValidator(_plain)]


class ViewRequest(Form):
    """What a view shows: one component."""

    refdes: Word
    component: Word


class BoardRequest(Form):
    """The body of `POST /api/v1/boards/{key}`; `views` are by the names under which they were handed in.

    Without `version` the active version of the recipe counts; `within_s` counts from the acceptance.
    """

    recipe: Word
    version: Annotated[int, Field(ge=1)] | None = None
    serial: Text = ""
    panel: Text = ""
    side: Side = Side.TOP
    work_order: Text = ""
    within_s: Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)] | None = None
    views: Annotated[dict[Word, ViewRequest], Field(min_length=1)]

    def check(self, content: RecipeContent, rules: Rules, handed_in: Mapping[str, Any]) -> None:
        """Raise ConfigError unless the views, and those that were `handed_in`, fit each other and the recipe."""
        for name, view in self.views.items():
            if name not in handed_in:
                raise ConfigError(f"view '{name}' was not handed in; PUT it first, then the board")
            if view.component not in rules.components:
                hint = did_you_mean(view.component, rules.components)
                raise ConfigError(f"view '{name}': recipe '{self.recipe}' has no component '{view.component}'{hint}")
            if content.parts and content.parts.get(view.refdes) != view.component:
                stated = content.parts.get(view.refdes)
                says = f"'{view.refdes}' is a '{stated}'" if stated else f"there is no '{view.refdes}'"
                raise ConfigError(
                    f"view '{name}' shows '{view.component}' at '{view.refdes}', and by the recipe {says}"
                )
        for name in handed_in:
            if name not in self.views:
                raise ConfigError(f"view '{name}' was handed in, and `views` does not name it; say what it shows")
        twice = [
            refdes for refdes, number in Counter(view.refdes for view in self.views.values()).items() if number > 1
        ]
        if twice:
            raise ConfigError(f"two views show '{twice[0]}'; a component has one view")


def digest_of(body: Any) -> str:
    """Return a digest of a JSON body; the order of keys does not count."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
