"""Whole boards: from a placement file, a board recipe and a picture to the pictures of the components.

    placements = read_placements(Path("pnp.csv"), "kicad", "mm")
    layout = lay_out(read_recipe(Path("recipe.yaml")), placements)
    with Inspector("demo", parts=layout.parts) as line:
        board = read_board(Path("boards/SN1.png"), layout, "SN1")
        results = [*board.results(), *line.stream(board.pictures())]

`locate`, `crop` and `overlay` are the steps of `read_board`, and `warnings_of(layout)` says how a board could lie wrong
without being noticed. A `BoardPicture` has `pictures()`, the crops for a line, and `results()` of the components that
cannot be inspected: each component has exactly one of both.

Errors: ConfigError and RulesError for files that cannot be used, before any picture is read. A bad picture raises
nothing: its components get results that say why. Each name is imported at its first use, because OpenCV takes a while.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from coe.board.parts_file import Side
    from coe.placement.board_layout import Bottom, Layout, Site, lay_out
    from coe.placement.board_pictures import BoardPicture, read_board, serial_of
    from coe.placement.board_recipe import BoardRecipe, parse_recipe, read_recipe
    from coe.placement.board_view import BoardView
    from coe.placement.bom_join import BomJoin, BomPart, join
    from coe.placement.cad_files import (
        DIALECTS,
        CadDialect,
        parse_bom,
        parse_placements,
        read_bom,
        read_file,
        read_placements,
    )
    from coe.placement.crops import crop, outline
    from coe.placement.location import Location, locate
    from coe.placement.overlay_picture import overlay, overlay_of
    from coe.placement.placement_file import Placement, PlacementFile, Units
    from coe.placement.wrong_ways import blind_to, warnings_of

# In this order, so that whoever needs no picture waits for no OpenCV.
_MODULES = (
    *("placement_file", "bom_join", "cad_files", "board_recipe", "board_layout", "board_view"),
    *("crops", "wrong_ways", "location", "overlay_picture", "board_pictures"),
)
__all__ = [
    "DIALECTS",
    "BoardPicture",
    "BoardRecipe",
    "BoardView",
    "BomJoin",
    "BomPart",
    "Bottom",
    "CadDialect",
    "Layout",
    "Location",
    "Placement",
    "PlacementFile",
    "Side",
    "Site",
    "Units",
    "blind_to",
    "crop",
    "join",
    "lay_out",
    "locate",
    "outline",
    "overlay",
    "overlay_of",
    "parse_bom",
    "parse_placements",
    "parse_recipe",
    "read_board",
    "read_bom",
    "read_file",
    "read_placements",
    "read_recipe",
    "serial_of",
    "warnings_of",
]


def __getattr__(name: str) -> Any:
    if name == "Dialect":  # where packages with dialects of their own look for it
        return type(import_module("coe.placement.cad_files").DIALECTS["generic"])
    for module in _MODULES if name in __all__ else ():
        home = import_module(f"coe.placement.{module}")
        if name in vars(home):
            return vars(home)[name]
    raise AttributeError(f"module 'coe.placement' has no attribute '{name}'")
