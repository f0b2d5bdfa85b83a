"""The components of a board and their pictures. Every component that is to be judged is named here, once.

`items_of` names them without a look at any picture. `coe.serve.worker.locating` looks at the picture of a whole board,
and says where each of them lies; the rest of the line does not know the difference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coe.errors import ConfigError, sentence_of
from coe.placement import serial_of
from coe.serve.database.tables import Board, View
from coe.serve.enums import CallReason
from coe.serve.picture_folder import Pictures
from coe.serve.recipe_content import RecipeContent, WholeBoard
from coe.serve.request import BoardRequest

NOWHERE: Mapping[str, Any] = {"polygon": []}
"""The place of a component in the picture of a whole board as long as nobody knows where it lies."""


@dataclass(frozen=True, slots=True)
class Item:
    """A component with its picture: a file with its `sha256`, or None for a crop of the board's picture.

    `place` says where it lies in the view, as JSON: `{"polygon": [[x, y], ...], "size": [width, height]}`, the corners
    in pixels of the view, from the upright crop's top left on and round, and the pixels of the crop; see
    `coe.serve.component_pictures.CropPlace`. It is None if the view shows the component alone.
    """

    refdes: str
    component: str
    view_id: int
    image: Path | None
    place: Any = None
    sha256: str = ""


@dataclass(frozen=True, slots=True)
class Unseen:
    """A component, or a whole unit of a panel without a `component`, that no expert can look at; it is REVIEW.

    `reason` and `detail` say why; `view_id` and `place` are as those of an `Item`, None without a picture.
    """

    refdes: str
    component: str
    reason: CallReason
    detail: str
    view_id: int | None = None
    place: Any = None


@dataclass(frozen=True, slots=True)
class Whole:
    """A picture of a whole board, a file with its `sha256`; `cut` divides it, `bad_marks` are bad units.

    `bits` of its 16-bit samples count. `serials` are those of its units as the board was handed in.
    """

    view_id: int
    path: Path
    cut: WholeBoard
    bad_marks: Sequence[str]
    sha256: str
    bits: int | None = None
    serials: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Items:
    """What a board consists of. `reason` says why the whole board must be reviewed, as when it cannot be located.

    `whole` is the picture in which the items are still to be located; None if there is none, or if they are.
    """

    seen: Sequence[Item]
    unseen: Sequence[Unseen]
    reason: str = ""
    whole: Whole | None = None

    @property
    def number(self) -> int:
        """How many components there are."""
        return len(self.seen) + len(self.unseen)


def items_of(board: Board, content: Mapping[str, Any], views: Sequence[View], pictures: Pictures) -> Items:
    """Return the components of a board, in the order in which the request, or parts.csv, names them.

    `content` is that of the recipe's row. Components of a whole board are not located. A board whose components cannot
    be named has one that is unseen.
    """
    try:
        return _named(board, RecipeContent.model_validate(content), views, pictures)
    except Exception as error:  # rows of another version of the service: one board must not end the line
        reason = sentence_of(error, during="the components were named")
        return Items([], [Unseen("", "", CallReason.FAILED, reason)], reason)


def _named(board: Board, content: RecipeContent, views: Sequence[View], pictures: Pictures) -> Items:
    request = BoardRequest.model_validate(board.request)
    by_name: Mapping[str, View] = {view.name: view for view in views}
    if request.whole is not None:
        return _of_whole(request, content, by_name[request.whole], pictures)
    seen = [
        Item(shown.refdes, shown.component, view.id, pictures.path(view.file), sha256=view.sha256)
        for view, shown in ((by_name[name], shown) for name, shown in request.views.items())
    ]
    shown_refdes = {item.refdes for item in seen}
    detail = "the recipe names the component, and no picture of it came"
    unseen = [
        Unseen(refdes, component, CallReason.MISSING_VIEW, detail)
        for refdes, component in content.components.items()
        if refdes not in shown_refdes
    ]
    return Items(seen, unseen)


def _of_whole(request: BoardRequest, content: RecipeContent, view: View, pictures: Pictures) -> Items:
    try:
        if content.whole is None:
            raise ConfigError("the recipe does not say how whole boards are cut")
        sites = content.whole.layout.sites
    except ConfigError as error:  # the recipe was in order when the board was accepted, and an update refuses it
        return Items([], [Unseen("", "", CallReason.FAILED, str(error), view.id, NOWHERE)], str(error))
    bad = list(dict.fromkeys(request.bad_marks))
    units = content.whole.layout.units
    of_panel = {unit: serial_of(request.serial, unit) for unit in units} if request.serial else {}
    return Items(
        [Item(site.name, site.component, view.id, None, NOWHERE) for site in sites if site.unit not in bad],
        [skipped(unit, "it was named as bad", view.id) for unit in bad],
        whole=Whole(
            view.id, pictures.path(view.file), content.whole, bad, view.sha256, content.bits, of_panel | request.serials
        ),
    )


def skipped(unit: str, why: str, view_id: int, place: Any = NOWHERE) -> Unseen:
    """Return the item that stands for all components of a unit that is not inspected."""
    return Unseen(unit, "", CallReason.SKIPPED, f"unit '{unit}' is skipped: {why}", view_id, place)
