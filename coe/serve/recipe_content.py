"""The content of a version of a recipe: the rules of a board, and how pictures of whole boards are cut."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from coe import config
from coe.board import rules
from coe.board.rules import Rules
from coe.errors import ConfigError, RulesError
from coe.helpers.spelling import by_spelling
from coe.helpers.strict_model import StrictModel
from coe.helpers.visible import is_visible
from coe.placement import Layout, blind_to, lay_out, parse_places, parse_recipe, warnings_of
from coe.placement.board_layout import Point
from coe.serve.database.row_types import NAME
from coe.serve.text_checks import Spelt, Word

Count = Annotated[int, Field(ge=0, le=int(config.MAX_COMPONENTS))]
Content = Annotated[str, Field(max_length=config.MAX_RULES_BYTES)]
RECIPE_FILE, PARTS_FILE = Path("whole.recipe"), Path("whole.parts")  # how messages name the two texts


class WholeBoard(StrictModel):
    """What docs/placements.md describes, as texts: `parts`, a parts.csv, and a board `recipe`."""

    parts: Content
    recipe: Content

    @property
    def layout(self) -> Layout:
        """All sites of the board, or of the panel. Raises ConfigError with the file and the line of the fault."""
        return _layout(self)

    @property
    def reading(self) -> str:
        """A digest of crops, pin 1 corners and marks, to a nanometre, as an overlay shows them; raises ConfigError."""
        return _reading(self)

    @property
    def blind_to(self) -> tuple[str, ...]:
        """In which ways a board could lie wrong without being noticed; raises ConfigError."""
        return blind_to(self.layout)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a person must know before the placements are confirmed, in sentences."""
        try:
            return warnings_of(self.layout)
        except ConfigError as error:  # they were in order when the recipe was added, and an update refuses them
            return (str(error),)

    def check(self, board: Rules) -> None:
        """Raise ConfigError unless the layout can be used with the rules of a board."""
        self.layout.check(board.components, board.board)
        for site in self.layout.sites:
            if len(site.name) > NAME or not is_visible(site.name) or "\n" in site.name:
                raise ConfigError(
                    f"{PARTS_FILE}: '{site.name[:50]}' is longer than {NAME} characters, or has hidden characters"
                )


@lru_cache(maxsize=16)
def _layout(whole: WholeBoard) -> Layout:
    return lay_out(parse_recipe(RECIPE_FILE, whole.recipe.encode()), parse_places(PARTS_FILE, whole.parts.encode()))


@lru_cache(maxsize=16)
def _reading(whole: WholeBoard) -> str:
    layout = whole.layout
    marks = [*sorted(layout.fiducials.items()), *sorted(layout.marks.items()), ("landmark", layout.landmark)]
    crops = [(site.name, site.component, site.crop.pin1, *map(_place, site.corners)) for site in layout.sites]
    seen = (crops, [(name, point and _place(point)) for name, point in marks])
    return hashlib.sha256(json.dumps(seen).encode()).hexdigest()


def _place(point: Point) -> tuple[float, float]:
    return round(point.x_mm, 6) + 0.0, round(point.y_mm, 6) + 0.0  # no -0.0


def _told_apart(parts: Any) -> Any:
    """Raise ValueError if two keys are one name in two spellings, or with blanks; one of them would be lost."""
    if isinstance(parts, dict):
        by_spelling((name for name in parts if isinstance(name, str)), str.strip)
    return parts


class RecipeContent(StrictModel):
    """The content of a recipe's version, which never changes; a board keeps the version that it was accepted with.

    `rules` is the text of a board file, `calibration` that of its calibration, if it has one. `within_s` is the time
    that a board has if its feeder gives none; None means without end. `terminations` are the solder joints of a
    component of each type; components that are not named have none. `parts` are the component types by reference
    designator; with it, a component without a picture is REVIEW, and without it the service cannot know that a picture
    is missing. `whole` says how pictures of whole boards are cut; it names all components, so `parts` must not be given
    with it. `feeders` names what each part was placed from, by reference designator (on a panel that of every unit),
    for stop rules and statistics.
    """

    rules: Annotated[str, Field(max_length=config.MAX_RULES_BYTES)]
    calibration: Annotated[str, Field(max_length=config.MAX_RULES_BYTES)] = ""
    within_s: Annotated[float, Field(gt=0, le=86400, allow_inf_nan=False)] | None = None
    terminations: dict[Word, Count] = Field(default_factory=dict)
    parts: Annotated[dict[Spelt, Spelt], BeforeValidator(_told_apart)] = Field(default_factory=dict)
    whole: WholeBoard | None = None
    feeders: Annotated[dict[Spelt, Spelt], BeforeValidator(_told_apart)] = Field(default_factory=dict)

    @property
    def bits(self) -> int | None:
        """How many low bits of 16-bit samples count in pictures; None if the rules do not say, or cannot be read."""
        return _bits(self.rules)

    @property
    def components(self) -> Mapping[str, str]:
        """The component types by reference designator (`unit/refdes` on a panel); empty if the recipe does not say."""
        if self.whole is None:
            return self.parts
        return {site.name: site.component for site in self.whole.layout.sites}

    def board(self, name: str) -> Rules:
        """Return the rules; `name` is the recipe's, for messages.

        Raises ConfigError with file, line and suggestion for what cannot be used.
        """
        calibration = self.calibration.encode() if self.calibration else None
        board = rules.of_bytes(Path(f"{name}.yaml"), self.rules.encode(), calibration)
        for component in self.terminations:
            if component not in board.components:
                raise RulesError(f"{name}: terminations: '{component}' is not a component of board '{board.board}'")
        for refdes, component in self.parts.items():
            if component not in board.components:
                raise RulesError(
                    f"{name}: parts: '{refdes}' is '{component}', which board '{board.board}' does not have"
                )
        if self.whole is not None:
            if self.parts:
                raise ConfigError(f"{name}: `whole` names the components in its own parts.csv; leave `parts` out")
            self.whole.check(board)
        return board

    def opportunities(self, name: str) -> int:
        """Return the opportunities for a defect on a board: its components and their terminations."""
        if by_refdes := self.components:
            return sum(1 + self.terminations.get(component, 0) for component in by_refdes.values())
        components = self.board(name).components.values()
        return round(sum(component.count * (1 + self.terminations.get(component.name, 0)) for component in components))


@lru_cache(maxsize=64)  # reading the rules of a large board takes a while
def _bits(text: str) -> int | None:
    try:
        return rules.of_bytes(Path("recipe.yaml"), text.encode()).bits
    except ConfigError:  # the recipe was in order when it came, and an update refuses it
        return None
