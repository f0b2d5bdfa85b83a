"""The components of a board and their pictures. Law: every component that is to be judged is named here.

A whole-board picture is located, and cut into the crops of its components, in `items_of`, and nowhere else: whatever
stands there becomes an `Item` with the place of its crop, and the rest of the line does not know the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coe.board.image_source import ImageLike
from coe.serve.database.boards import Board
from coe.serve.database.views import View
from coe.serve.pictures import Pictures
from coe.serve.recipe import RecipeContent
from coe.serve.request import BoardRequest


@dataclass(frozen=True, slots=True)
class Item:
    """A component with its picture: a path, or the pixels of a crop as (H, W, 3) uint8 BGR.

    `place` says where it lies in the view, as JSON; None if the view shows it alone.
    """

    refdes: str
    component: str
    view_id: int
    image: ImageLike
    place: Any = None


@dataclass(frozen=True, slots=True)
class Unseen:
    """A component that no picture shows."""

    refdes: str
    component: str


@dataclass(frozen=True, slots=True)
class Items:
    """What a board consists of. `reason` says why the whole board must be reviewed, as when it cannot be located."""

    seen: Sequence[Item]
    unseen: Sequence[Unseen]
    reason: str = ""

    @property
    def number(self) -> int:
        """How many components there are."""
        return len(self.seen) + len(self.unseen)


def items_of(board: Board, content: RecipeContent, views: Sequence[View], pictures: Pictures) -> Items:
    """Return the components of a board, in the order in which the request names them."""
    request = BoardRequest.model_validate(board.request)
    by_name: Mapping[str, View] = {view.name: view for view in views}
    seen = [
        Item(shown.refdes, shown.component, by_name[name].id, pictures.path(by_name[name].file))
        for name, shown in request.views.items()
    ]
    shown_refdes = {item.refdes for item in seen}
    unseen = [Unseen(*part) for part in content.parts.items() if part[0] not in shown_refdes]
    return Items(seen, unseen)
