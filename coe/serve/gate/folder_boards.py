"""Boards of pictures that lie in a folder: which pictures are one board, and what is handed in of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coe.errors import ConfigError
from coe.pictures.found_image import Components, FoundImage
from coe.serve.recipe_content import RecipeContent

_WHOLE = "board"
"""The name of the view that shows a whole board."""


@dataclass(frozen=True, slots=True)
class FolderGroup:
    """Which pictures are one board: those of a serial; a picture that names neither serial nor place is one alone."""

    serial: str
    alone: str = ""

    @classmethod
    def of(cls, item: FoundImage) -> FolderGroup:
        """Return that of a picture."""
        return cls(item.serial, "" if item.serial or item.refdes else item.name)

    def __str__(self) -> str:
        return self.alone or f"board '{self.serial}'"


@dataclass(slots=True)
class FolderBoard:
    """The pictures of a board that lie in the folder, and until when it is let alone."""

    last_s: float
    again_s: float = 0.0
    names: list[str] = field(default_factory=list)


@dataclass(slots=True)
class FolderRecipe:
    """The recipe whose boards the pictures are."""

    name: str
    id: int
    content: RecipeContent
    known: Components

    def request(self, group: FolderGroup, items: Mapping[str, FoundImage]) -> tuple[dict[str, Any], dict[str, str]]:
        """Return the request of a board of these pictures, by name, and their names by the views that it names.

        Raises ConfigError for pictures that cannot be one board.
        """
        asked: dict[str, Any] = {"recipe": self.name, "serial": group.serial}
        if self.content.whole is not None:
            names = list(items)
            if len(names) > 1:
                raise ConfigError(f"{names[0]} and {names[1]} have one serial; take one of them away")
            side = self.content.whole.layout.recipe.side.value
            return asked | {"whole": _WHOLE, "side": side}, {_WHOLE: names[0]}
        by_view: dict[str, str] = {}
        for name, item in items.items():
            view = item.refdes or item.component
            if by_view.setdefault(view, name) != name:
                raise ConfigError(f"{by_view[view]} and {name} show one part; take one of them away")
        shown = {view: {"refdes": view, "component": items[name].component} for view, name in by_view.items()}
        return asked | {"views": shown}, by_view

    def is_complete(self, group: FolderGroup, items: Sequence[FoundImage]) -> bool:
        """Return whether no picture of a board can be missing."""
        parts = self.content.parts
        return bool(self.content.whole or group.alone or (parts and {item.refdes for item in items} >= parts.keys()))
