"""The pictures of whole boards that a first board is made from: the board in them, and the overlays drawn into them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from math import dist
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from coe.cli.common import err
from coe.cli.console import Progress
from coe.errors import ConfigError, ImageError, did_you_mean

if TYPE_CHECKING:
    from coe.pictures.array_images import DecodedImage
    from coe.placement.board_layout import Bottom, Layout
    from coe.placement.draft_recipe import BoardPlan, Mark
    from coe.placement.fit import Fit
    from coe.placement.found_camera import FoundBoard
    from coe.placement.pose_search import BoardDrawing

MOST_PICTURES = 5
"""So many pictures of boards are looked at."""
_NUMBER = r"-?\d{1,6}(?:\.\d{1,6})?"
_LEAST_APART_PX = 20.0
_TURNED_OVER = (
    "its parts lie as in a mirror: does it show the other side, or does x or y of the placement file grow the other "
    "way (--bottom-x, --form)?"
)
_NOT_FOUND = "the board is not found in it: does it show this board from this side, and is the file's unit right?"


def refuse_beside_pixels(units: str | None, outline: Path | None, side: str, images: Path | None) -> None:
    """Raise ConfigError for what means nothing where places are pixels of pictures."""
    if images is None:
        raise ConfigError("--in-pixels needs --images, the pictures whose pixels the placement file means")
    given = [name for name, is_given in (("--outline", outline), ("--side", side != "top")) if is_given]
    if units not in {None, "mm"}:
        given.append(f"--units {units}")
    if given:
        raise ConfigError(f"--in-pixels says where parts lie in the pictures; leave {', '.join(given)} out")


def marks_of(
    given: Sequence[str], plan: BoardPlan, bottom: Bottom | None
) -> dict[tuple[float, float], tuple[float, float]]:
    """Return where a person sees marks or parts, NAME=X,Y: points in mm, as the camera sees the side, to pixels.

    Raises ConfigError, which names all that are wrong.
    """
    known = {place.refdes: (place.x_mm, place.y_mm) for place in plan.placements}
    if bottom is not None:
        known = {name: (bottom.x_of(x), y) for name, (x, y) in known.items()}
    known |= {mark.name: (mark.x_mm, mark.y_mm) for mark in plan.seen_marks(bottom)}
    seen: dict[tuple[float, float], tuple[float, float]] = {}
    for word in given:
        name, _, at = word.rpartition("=")
        match = re.fullmatch(rf"({_NUMBER}),({_NUMBER})", at)
        if match is None:
            raise ConfigError(f"--mark '{word}' is not NAME=X,Y, as FID1=812,340")
        if name not in known:
            raise ConfigError(f"--mark: the board has no mark and no part '{name}'{did_you_mean(name, known)}")
        seen[known[name]] = float(match[1]), float(match[2])
    if len(seen) == 1:
        raise ConfigError("--mark: one point tells no turn; give two, far from each other, or four")
    if len(seen) > 1 and min(dist(*pair) for pair in combinations(seen.values(), 2)) < _LEAST_APART_PX:
        raise ConfigError(f"--mark: two points lie within {_LEAST_APART_PX:g} pixels; give such as lie far apart")
    return seen


def read_pictures(images: Path) -> dict[Path, DecodedImage]:
    """Return a few pictures of a folder, or one picture, (H, W, 3) uint8 RGB; raises ConfigError."""
    from coe.pictures import photographs
    from coe.pictures.finding import EXTENSIONS
    from coe.pictures.image_source import ImageSource

    if images.is_dir():
        paths = [path for path in photographs.pictures(images, strict=True) if path.parent == images]
        paths = sorted(paths)[:MOST_PICTURES]
    else:
        paths = [images]
    if not paths:
        raise ConfigError(f"{images} holds no pictures of boards ({' '.join(sorted(EXTENSIONS))})")
    pictures = {}
    for path in paths:
        try:
            pictures[path] = ImageSource.of(path, None, None).decode()
        except ImageError as error:
            raise ConfigError(f"{path} {error}; take it out, or save it again") from None
    return pictures


def find_boards(
    pictures: Mapping[Path, DecodedImage], drawing: BoardDrawing, marks: Sequence[Mark], rough: Fit | None
) -> tuple[dict[Path, FoundBoard], list[str]]:
    """Return the board in each picture, and sentences about those in which it is not seen.

    `rough` maps mm to pixels as a person says; without it the board is searched.
    """
    from coe.placement.found_camera import board_at, find_board, is_turned_over

    found: dict[Path, FoundBoard] = {}
    notes: list[str] = []
    with Progress(console=err) as bar:
        for picture, pixels in bar.track(pictures.items(), description="finding the board"):
            board = board_at(pixels, drawing, marks, rough) if rough else find_board(pixels, drawing, marks)
            if is_turned_over(pixels, drawing, marks, board):
                notes.append(f"{picture.name}: {_TURNED_OVER}")
                board = board if rough else None
            elif board is None:
                notes.append(f"{picture.name}: {_NOT_FOUND}")
            if board is not None:
                found[picture] = board
                notes += [f"{picture.name}: {board.doubt}"] if board.doubt else []
    return found, notes


def unusable(found: dict[Path, FoundBoard]) -> str:
    """Return why nothing is measured in pictures; empty if they tell one camera."""
    from coe.placement.found_camera import lie_alike

    if not found:
        return "the board was not found"
    if lie_alike(list(found.values())):
        return ""
    turns = ", ".join(f"{picture.name} by {board.match.fit.turn_deg:.0f}" for picture, board in found.items())
    return f"the boards seem to lie turned otherwise, in degrees: {turns}"


class BoardOverlay(NamedTuple):
    """The overlay picture of a board as PNG, how the board lies in it, as words, and which parts it does not show.

    These are parts of which each crop lies partly outside of the picture; None if the board is not registered.
    """

    file: bytes
    said: str
    outside: frozenset[str] | None


def overlay_of(pixels: DecodedImage, layout: Layout) -> BoardOverlay:
    """Return the overlay of a board in a picture."""
    from coe.pictures.array_images import encoded
    from coe.placement.crops import outline
    from coe.placement.location import locate
    from coe.placement.overlay_picture import overlay

    location = locate(pixels, layout)
    file, (height, width) = encoded(overlay(pixels, layout, location)), pixels.shape[:2]
    fit = location.fit
    if fit is None:
        return BoardOverlay(file, f"not registered: {location.why}", None)
    shown = {site.refdes for site in layout.sites if not outline(site, fit, width, height).outside_px}
    outside = frozenset(site.refdes for site in layout.sites) - shown
    if layout.recipe.held:
        return BoardOverlay(file, "cut where the recipe says; look at the overlay", outside)
    return BoardOverlay(file, f"registered, fiducials within {location.residual_um:.0f} um", outside)
