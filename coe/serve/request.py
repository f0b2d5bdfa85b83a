"""What a feeder says when it hands a board in. What the service cannot use is refused, never ignored."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from coe.board.parts_list import Side
from coe.board.rules import Rules
from coe.errors import ConfigError, did_you_mean
from coe.helpers.strict_model import StrictModel
from coe.serve.recipe_content import RecipeContent
from coe.serve.text_checks import Spelt, SpeltText, Word


class ViewRequest(StrictModel):
    """What a view shows: one component."""

    refdes: Spelt
    component: Spelt


class BoardRequest(StrictModel):
    """The body of `POST /api/v1/boards/{key}`; `views` are by the names under which they were handed in.

    Without `version` the active version of the recipe counts; `within_s` counts from the acceptance. Either `views` are
    pictures of components, or `whole` is the name of the view that shows the whole board, or the whole panel. Then
    `serials` may give units of the panel their serials, and `bad_marks` are units that are known to be bad.
    """

    recipe: Word
    version: Annotated[int, Field(ge=1)] | None = None
    serial: SpeltText = ""
    panel: SpeltText = ""
    side: Side = Side.TOP
    work_order: SpeltText = ""
    within_s: Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)] | None = None
    views: dict[Word, ViewRequest] = Field(default_factory=dict)
    whole: Word | None = None
    serials: dict[Word, SpeltText] = Field(default_factory=dict)
    bad_marks: tuple[Word, ...] = ()

    def check(self, content: RecipeContent, rules: Rules, handed_in: Mapping[str, str]) -> None:
        """Raise ConfigError unless the views fit each other, the recipe, and those that were `handed_in`.

        `handed_in` gives the SHA-256 of each view by its name.
        """
        if bool(self.views) == (self.whole is not None):
            raise ConfigError(
                "views: say either what each view shows, or with `whole` which view shows the whole board"
            )
        shown = [*self.views] if self.whole is None else [self.whole]
        for name in shown:
            if name not in handed_in:
                raise ConfigError(f"view '{name}' was not handed in; PUT it first, then the board")
        if self.whole is None:
            self._check_views(content, rules)
            self._check_pictures(handed_in)
        else:
            self._check_side(content)
        self._check_units(content)
        for name in handed_in:
            if name not in shown:
                raise ConfigError(f"view '{name}' was handed in, and the board does not name it; say what it shows")

    def _check_views(self, content: RecipeContent, rules: Rules) -> None:
        components = content.components
        for name, view in self.views.items():
            if view.component not in rules.components:
                hint = did_you_mean(view.component, rules.components)
                raise ConfigError(f"view '{name}': recipe '{self.recipe}' has no component '{view.component}'{hint}")
            if components and components.get(view.refdes) != view.component:
                stated = components.get(view.refdes)
                says = f"'{view.refdes}' is a '{stated}'" if stated else f"there is no '{view.refdes}'"
                raise ConfigError(
                    f"view '{name}' shows '{view.component}' at '{view.refdes}', and by the recipe {says}"
                )
        twice = [
            refdes for refdes, number in Counter(view.refdes for view in self.views.values()).items() if number > 1
        ]
        if twice:
            raise ConfigError(f"two views show '{twice[0]}'; a component has one view")

    def _check_pictures(self, handed_in: Mapping[str, str]) -> None:
        """Raise ConfigError if one picture stands for two components: one of them would be OK, and nobody has seen it.

        Two exposures never have the same bytes, because sensors have noise.
        """
        by_sha256: dict[str, str] = {}
        for name in self.views:
            before = by_sha256.setdefault(handed_in[name], name)
            if before != name:
                both = [f"'{view}' ('{self.views[view].refdes}')" for view in (before, name)]
                raise ConfigError(
                    f"views {both[0]} and {both[1]} are the same picture, byte for byte; hand in a picture of each "
                    "component that was taken for it"
                )

    def _check_side(self, content: RecipeContent) -> None:
        if content.whole is None:
            raise ConfigError(
                f"whole: recipe '{self.recipe}' does not say how whole boards are cut; give it parts.csv and a "
                "board recipe, or hand in a view of each component"
            )
        seen = content.whole.layout.recipe.side
        if seen.value != self.side.value:
            raise ConfigError(
                f"side: the board's view is of the {self.side} side, and recipe '{self.recipe}' of the {seen} side"
            )

    def _check_units(self, content: RecipeContent) -> None:
        """Raise ConfigError for units that a picture of the whole panel does not have."""
        layout = content.whole.layout if content.whole is not None and self.whole is not None else None
        units = [unit for unit in layout.units if unit] if layout is not None else []
        for key, named in (("serials", self.serials), ("bad_marks", self.bad_marks)):
            for unit in named:
                if unit not in units:
                    is_panel = "there is" if units else "the picture shows no panel, so there is"
                    raise ConfigError(f"{key}: {is_panel} no unit '{unit}'{did_you_mean(unit, units)}")


def digest_of(body: Any) -> str:
    """Return a digest of a JSON body; the order of keys does not count."""
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
