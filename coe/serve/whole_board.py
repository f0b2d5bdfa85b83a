"""How pictures of whole boards are cut, as a recipe carries it: the texts of a placement file and a board recipe."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from coe import config
from coe.board.rules import Rules
from coe.errors import ConfigError
from coe.placement import Bottom, Layout, blind_to, join, lay_out, parse_recipe, warnings_of
from coe.placement.board_layout import BottomAngle, BottomX
from coe.placement.cad_files import parse_bom, parse_file
from coe.serve.database.tables import NAME
from coe.strict_model import Name, StrictModel
from coe.visible import is_visible

Content = Annotated[str, Field(max_length=config.MAX_RULES_BYTES)]
RECIPE_FILE = Path("whole.recipe")
"""How messages name the board recipe: by its place in the recipe of the service."""


class BottomSide(StrictModel):
    """How a placement file describes the bottom side; see docs/placements.md."""

    x: BottomX
    angle: BottomAngle


class WholeBoard(StrictModel):
    """What docs/placements.md describes, as texts: `placements` with `dialect` and `units`, and a board `recipe`.

    `file` is the name of the placement file: messages name it, and in some dialects its ending says the side. `bottom`
    is needed for a board recipe of the bottom side, and refused for the top side. `bom` is the text of a bill of
    materials, if one says which parts are not fitted, and packages and values that the placement file lacks.
    """

    placements: Content
    dialect: Name
    units: Name
    recipe: Content
    file: Name = "placements.csv"
    bottom: BottomSide | None = None
    bom: Content = ""

    @model_serializer(mode="wrap")
    def _without_bom(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A recipe without one keeps the digest that it had before recipes could have one.
        data: dict[str, Any] = handler(self)
        return {key: value for key, value in data.items() if key != "bom" or value}

    @property
    def layout(self) -> Layout:
        """All sites of the board, or of the panel. Raises ConfigError with the file and the line of the fault."""
        return _layout(self)

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
                    f"{self.file}: '{site.name[:50]}' is longer than {NAME} characters, or has hidden characters"
                )


@lru_cache(maxsize=16)
def _layout(whole: WholeBoard) -> Layout:
    bottom = None if whole.bottom is None else Bottom(whole.bottom.x, whole.bottom.angle)
    recipe, raw = parse_recipe(RECIPE_FILE, whole.recipe.encode()), whole.placements.encode()
    bom = parse_bom(Path("bom.csv"), whole.bom.encode(), whole.dialect, asks=False) if whole.bom else {}
    file = parse_file(Path(whole.file), raw, whole.dialect, whole.units, recipe.placement_file, bom)
    return lay_out(recipe, join(file.placements, bom, said=file.said).placements, bottom)
