"""`coe-board new` from a placement file: a board file, and a recipe that finds its parts in whole boards."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import dist
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from coe import config
from coe.board.drafting import TODO
from coe.cli.common import err
from coe.cli.console import Progress
from coe.cli.first_board import EXPERT, FirstBoard, rules_text
from coe.cli.options import option
from coe.cli.placing import ReadAs, bom_of, fitted, read_confirmed
from coe.errors import ConfigError, ImageError, did_you_mean

if TYPE_CHECKING:
    from coe.pictures.array_images import DecodedImage
    from coe.placement.board_layout import Bottom, Layout
    from coe.placement.draft_recipe import BoardPlan, Mark
    from coe.placement.fit import Fit
    from coe.placement.found_camera import FoundBoard
    from coe.placement.placement_file import FileForm, Placement
    from coe.placement.pose_search import BoardDrawing
    from coe.placement.recipe_text import RecipeDraft

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


_STILL_MM = 0.3
"""Boards that a fixture holds lie no farther from where they lie on average."""


class Placed(ReadAs):
    """The options of a board that is made from a placement file."""

    placements: Path | None = option("A placement (pick-and-place) file: a board of whole pictures.", metavar="FILE")
    images: Path | None = option(
        "Pictures of whole boards, a folder or one: the board is found in them, at any scale and turn.",
        metavar="FOLDER",
    )
    outline: Path | None = option(
        "The edge: a Gerber file (Edge.Cuts, profile) or .kicad_pcb. Default: as --placements tells it.", metavar="FILE"
    )
    side: str = option("The side that the camera sees: top or bottom.", "top")
    form: Path | None = option(
        "How the placement file is read where it is read wrong: a YAML file with columns, sides, not_fitted, "
        "fitted, decimal, angles, clockwise, y, offset, side, rotation, as placement_file of a recipe has them.",
        metavar="FILE",
    )
    held: bool = option(
        "A fixture holds each board in one place: no mark is searched. The edges of the parts tell the place.", False
    )
    in_pixels: bool = option(
        "x and y are pixels of the pictures, from the top left corner, y downwards. It means --held, too.", False
    )
    marks: list[str] | None = option(
        "Where a mark or a part lies in the first picture, in pixels, as FID1=812,340: two of them, or four where "
        "the camera looks aslant. For a board that is not found, or found wrong.",
        None,
        "--mark",
        metavar="NAME=X,Y",
    )
    leave_out: list[str] | None = option(
        "A part that is not inspected, as J4 or TP*, such as one that no picture shows. May be repeated.",
        metavar="NAME",
    )
    good: bool = option("The boards in the pictures are good: parts are learned from them.", False)

    def placed(self, placements: Path, name: str, to: Path) -> FirstBoard:
        """Make a board from a placement file; raises ConfigError."""
        from coe.placement.board_outline import edge_in, read_outline
        from coe.placement.draft_recipe import plan, read_form
        from coe.placement.drawn_sizes import drawn_sizes
        from coe.placement.package_sizes import LIBRARY, read_library
        from coe.placement.placement_file import FileForm, Side

        dialect, units, images, side = self.dialect, self.units, self.images, self.side
        if side not in set(Side):
            raise ConfigError(f"--side '{side}' is not known; give top or bottom")
        bottom = self.bottom()
        if (bottom is not None) != (side == Side.BOTTOM):
            raise ConfigError(
                "--side bottom, --bottom-x and --bottom-angle belong together: give all or none (docs/placements.md)"
            )
        how = FileForm() if self.form is None else read_form(self.form)
        if self.in_pixels:
            refuse_beside_pixels(units, self.outline, side, images)
            how = how.model_copy(update={"y": "down", "side": how.side or Side.TOP, "rotation": how.rotation or 0.0})
        said = bom_of(self.bom, dialect, how)
        file = read_confirmed(placements, dialect, units, how, said, yes=self.yes, in_pixels=self.in_pixels)
        library = read_library(Path(LIBRARY)) if Path(LIBRARY).is_file() else ()
        edge = None if self.outline is None else read_outline(self.outline)
        there, not_fitted = fitted(file, placements, said, self.bom)
        words = ["--placements", str(placements), "--dialect", dialect or "generic", "--units", str(file.units)]
        words += [] if self.bom is None else ["--bom", str(self.bom)]
        turned = ["--bottom-x", str(self.bottom_x), "--bottom-angle", str(self.bottom_angle)]
        words += [] if bottom is None else turned
        drawn = edge_in(placements, file, how), drawn_sizes(placements, file.drawn)
        planned = plan(there, Side(side), library, edge, *drawn, self.leave_out or ())
        planned = replace(planned, not_fitted=tuple(not_fitted))
        seen = marks_of(self.marks or (), planned, bottom)
        held = self.held or self.in_pixels
        making = _Making(name, to, there, planned, bottom, tuple(words), self.good, how, held, seen)
        return making.board(images) if not self.in_pixels or images is None else making.in_pixels(images)


@dataclass(frozen=True, slots=True)
class _Making:
    """One run: what was read, and the words that further commands need to read it again."""

    name: str
    to: Path
    placements: Sequence[Placement]
    plan: BoardPlan
    bottom: Bottom | None
    words: tuple[str, ...]
    are_good: bool
    form: FileForm
    held: bool
    seen: Mapping[tuple[float, float], tuple[float, float]]
    """Where points in mm lie in the first picture, in pixels, as a person says; empty if the board is searched."""

    def in_pixels(self, images: Path) -> FirstBoard:
        """Make a board whose placement file says where parts lie in the pictures."""
        from coe.placement.recipe_text import drawn_in_pixels, first_draft

        pictures = read_pictures(images)
        sizes = sorted({(pixels.shape[1], pixels.shape[0]) for pixels in pictures.values()})
        if len(sizes) > 1:
            listed = " and ".join(f"{width} x {height}" for width, height in sizes)
            raise ConfigError(f"{images}: pictures of {listed} pixels; places in pixels need pictures of one size")
        plan = drawn_in_pixels(self.plan, *sizes[0])
        draft = replace(first_draft(f"{self.name}-{plan.side}", plan, self.form, held=True), um_per_pixel=1000.0)
        rules = {self.to / config.RULES_FOLDER / f"{self.name}.yaml": rules_text(self.name, plan).encode()}
        return replace(self, plan=plan)._drawn(draft, pictures, images, rules, [])

    def board(self, images: Path | None) -> FirstBoard:
        from coe.placement.recipe_text import first_draft

        draft = first_draft(f"{self.name}-{self.plan.side}", self.plan, self.form, held=self.held)
        files = {self.to / config.RULES_FOLDER / f"{self.name}.yaml": rules_text(self.name, self.plan).encode()}
        recipe = self.to / self.name / "recipe.yaml"
        if images is None:
            text = draft.text(todo=f"{TODO}: how many micrometres a pixel is on the board")
            return FirstBoard({**files, recipe: text.encode()}, (), ())
        pictures = read_pictures(images)
        found, notes = self._found(pictures, self._layout(draft))
        why = unusable(found)
        if why:
            text = draft.text(todo=f"{TODO}: {why}; say how many micrometres a pixel is on it")
            return FirstBoard({**files, recipe: text.encode()}, tuple(notes), ())
        measured, more = self._measured(draft, found)
        return self._drawn(measured, pictures, images, files, [*notes, *more])

    def _drawn(
        self,
        draft: RecipeDraft,
        pictures: dict[Path, DecodedImage],
        images: Path,
        files: dict[Path, bytes],
        notes: list[str],
    ) -> FirstBoard:
        """Return the board of a draft that is complete, with its overlays."""
        from coe.placement.wrong_ways import blind_to

        layout, recipe, more = self._layout(draft), self.to / self.name / "recipe.yaml", list(notes)
        more += [
            f"a board that lies {way} would not be noticed; name a landmark in the recipe" for way in blind_to(layout)
        ]
        overlays = {picture: overlay_of(pixels, layout) for picture, pixels in pictures.items()}
        for picture, drawn in overlays.items():
            files[self.to / self.name / f"overlay-{picture.stem}.png"] = drawn.file
            more += [f"{picture.name}: {drawn.said}"]
        outside = [drawn.outside for drawn in overlays.values() if drawn.outside is not None]
        if unseen := sorted(frozenset.intersection(*outside)) if outside else []:
            draft = replace(draft, plan=draft.plan.without(unseen))
            files[self.to / config.RULES_FOLDER / f"{self.name}.yaml"] = rules_text(self.name, draft.plan).encode()
        files[recipe] = draft.text().encode()
        return FirstBoard(files, tuple(more), self._next(images, recipe))

    def _layout(self, draft: RecipeDraft) -> Layout:
        from coe.placement.board_layout import lay_out
        from coe.placement.board_recipe import parse_recipe

        path = self.to / self.name / "recipe.yaml"
        return lay_out(parse_recipe(path, draft.text().encode()), self.placements, self.bottom)

    def _found(self, pictures: dict[Path, DecodedImage], layout: Layout) -> tuple[dict[Path, FoundBoard], list[str]]:
        """Return the board in each picture, and sentences about those in which it is not seen."""
        from coe.placement.found_camera import drawing_of, map_through

        marks = () if self.held else self.plan.seen_marks(self.bottom)
        drawing = drawing_of(layout, marks, outline_is_known=self.plan.outline_is_known)
        rough = None
        if self.seen:
            points, at = np.array(list(self.seen)), np.array(list(self.seen.values()))
            rough = map_through(points, at, layout.middle)
        return find_boards(pictures, drawing, marks, rough)

    def _measured(self, draft: RecipeDraft, found: dict[Path, FoundBoard]) -> tuple[RecipeDraft, list[str]]:
        """Return the draft with what pictures tell of camera and marks, and sentences about it."""
        from coe.placement.found_camera import camera_of
        from coe.placement.wrong_ways import blind_to

        middle = self._layout(draft).middle
        camera = camera_of(list(found.values()), middle)
        measured = draft.measured(camera, [board.match.marks for board in found.values()])
        ways = blind_to(self._layout(measured))
        for candidate in measured.landmarks if ways else ():
            tried = measured.with_landmark(candidate)
            if len(blind_to(self._layout(tried))) < len(ways):
                measured, ways = tried, blind_to(self._layout(tried))
        notes = [
            f"{len(found)} pictures: {camera.um_per_pixel:.2f} um a pixel, turned by {camera.camera.turn:g} degrees"
        ]
        if self.held and camera.spread_mm > _STILL_MM:
            notes.append(
                f"the boards lie up to {camera.spread_mm:.1f} mm apart in the pictures: does a fixture hold them? They "
                "are cut where the mean is"
            )
        if camera.keystones_differ:
            notes.append("the camera looked from several places: fix it for pictures that are inspected")
        return measured, notes

    def _next(self, images: Path, recipe: Path) -> tuple[tuple[str, ...], ...]:
        rules, folder = str(self.to / config.RULES_FOLDER / f"{self.name}.yaml"), self.to / self.name
        boards = ("--images", str(images), *self.words, "--recipe", str(recipe))
        photos = str(folder / "photos")
        label = ("--label", "good") if self.are_good else ()
        crop = ("coe-experts", "crop", rules, *boards, "--out", photos, *label)
        if not self.are_good:
            return (crop,)
        return (
            crop,
            ("coe-experts", "reference", rules, "--images", photos, "--first-of-two"),
            ("coe-experts", "train", f"{self.name}/{EXPERT}", "--board", rules, "--data", photos, "--epochs", "1"),
            ("coe-inspect", "--board", rules, *boards, "--out", str(folder / "run")),
        )
