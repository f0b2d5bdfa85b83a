"""Whole boards: from `parts.csv`, a board recipe and a picture to the pictures of the components.

    layout = lay_out(read_recipe(Path("recipe.yaml")), read_places(Path("parts.csv")))
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
    from coe.board.parts_list import BoardPart, Side, parse_places, read_places
    from coe.placement.board_layout import Layout, Site, lay_out
    from coe.placement.board_pictures import BoardPicture, read_board, serial_of
    from coe.placement.board_recipe import BoardRecipe, parse_recipe, read_recipe
    from coe.placement.board_view import BoardView
    from coe.placement.crops import crop, outline
    from coe.placement.location import Location, locate
    from coe.placement.overlay_picture import overlay, overlay_of
    from coe.placement.wrong_ways import blind_to, warnings_of

# In this order, so that whoever needs no picture waits for no OpenCV.
_MODULES = (
    *("coe.board.parts_list", "coe.placement.board_recipe", "coe.placement.board_layout", "coe.placement.board_view"),
    *("coe.placement.crops", "coe.placement.wrong_ways", "coe.placement.location", "coe.placement.overlay_picture"),
    "coe.placement.board_pictures",
)
__all__ = [
    "BoardPart",
    "BoardPicture",
    "BoardRecipe",
    "BoardView",
    "Layout",
    "Location",
    "Side",
    "Site",
    "blind_to",
    "crop",
    "lay_out",
    "locate",
    "outline",
    "overlay",
    "overlay_of",
    "parse_places",
    "parse_recipe",
    "read_board",
    "read_places",
    "read_recipe",
    "serial_of",
    "warnings_of",
]


def __getattr__(name: str) -> Any:
    for module in _MODULES if name in __all__ else ():
        home = import_module(module)
        if name in vars(home):
            return vars(home)[name]
    raise AttributeError(f"module 'coe.placement' has no attribute '{name}'")
