"""A first board from a placement file: a board file, and a recipe that finds its parts in pictures of whole boards.

Nothing is written here: a `FirstBoard` holds the files, what is left to decide, and the next commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import dist
from pathlib import Path
from typing import NamedTuple

import numpy as np

from coe import config
from coe.board.drafting import FIRST_EXPERT, TODO
from coe.board.parts_list import NAME as PARTS
from coe.board.steps import polarity_is_known
from coe.bring.board.draft_recipe import BoardPlan, RecipeDraft, drawn_in_pixels, first_draft
from coe.bring.board.found_camera import (
    FoundBoard,
    board_at,
    camera_of,
    drawing_of,
    find_board,
    is_turned_over,
    lie_alike,
    map_through,
)
from coe.bring.parts.answers import NAME as ANSWERS
from coe.bring.parts.converting import Converted
from coe.errors import ConfigError, ImageError, did_you_mean
from coe.pictures import finding
from coe.pictures.array_images import DecodedImage, encoded
from coe.pictures.formats import EXTENSIONS
from coe.pictures.image_source import ImageSource
from coe.placement.board_layout import Layout, lay_out
from coe.placement.board_recipe import parse_recipe
from coe.placement.crops import outline
from coe.placement.location import locate
from coe.placement.overlay_picture import overlay
from coe.placement.wrong_ways import blind_to

_HEAD = """\
# A first board file: one expert compares each part with that of a good board.
board: {name}
experts:
  {expert}: {{kind: difference, labels: [different], input: 160, reject: [different], then: {{none: OK}}}}
components:
"""


def rules_text(name: str, drawn: BoardPlan) -> str:
    """Return the board file: each component is compared with its reference; `polarity` is known by its names."""
    lines = []
    for part in drawn.parts:
        polarity = ", polarity: yes" if any(polarity_is_known(part.name, refdes) for refdes in part.refdes) else ""
        seen = [refdes for refdes in part.refdes if refdes not in drawn.unseen]
        out = "" if seen else "# no picture shows all of it, see not_inspected in answers.yaml: "
        count = len(seen or part.refdes)
        lines.append(
            f"  {out}{part.name}: {{count: {count}, inspect: {FIRST_EXPERT}, reference: {part.name}{polarity}}}\n"
        )
    return _HEAD.format(name=name, expert=FIRST_EXPERT) + "".join(lines)


@dataclass(frozen=True, slots=True)
class FirstBoard:
    """A first board, before anything is written.

    `files` holds the bytes of each file by its path. `notes` are sentences about what was found and guessed.
    `commands` are the next commands, each as its words. `photographs` is where pictures of parts lie that experts learn
    from, and `learn` the command by which they do once more.
    """

    files: Mapping[Path, bytes]
    notes: tuple[str, ...]
    commands: tuple[tuple[str, ...], ...]
    photographs: str = ""
    learn: tuple[str, ...] = ()

    @property
    def open_lines(self) -> tuple[str, ...]:
        """Where a person must decide, each as "file:line: text"."""
        return tuple(
            f"{path}:{number}: {line.strip()}"
            for path, raw in self.files.items()
            if path.suffix in (".yaml", ".csv")
            for number, line in enumerate(raw.decode("utf-8").splitlines(), 1)
            if TODO in line.partition("#")[2]
        )


MOST_PICTURES = 5
"""So many pictures of boards are looked at."""
_LEAST_APART_PX = 20.0
_TURNED_OVER = (
    "its parts are mirrored: does it show the other side, or does x or y of the placement file grow the other "
    "way (--bottom-x, --answers)?"
)
_UNSEEN = (
    "no picture shows all of these: delete this remark, and they are not inspected; or correct the size, remove them "
    "from this list, run coe-board parts, and delete the remark on their line of the board file"
)
_NOT_FOUND = "the board is not found in it: does it show this board from this side, and is the file's unit right?"


def marks_of(shown: Mapping[str, Sequence[float]], plan: BoardPlan) -> dict[tuple[float, float], tuple[float, float]]:
    """Return where a person sees marks or parts, by name: points in mm, as the camera sees the side, to pixels.

    Raises ConfigError.
    """
    known = {place.refdes: (plan.seen_x(place.x_mm), place.y_mm) for place in plan.placements}
    known |= {mark.name: (mark.x_mm, mark.y_mm) for mark in plan.seen_marks}
    if strange := [name for name in shown if name not in known]:
        raise ConfigError(f"the board has no mark and no part '{strange[0]}'{did_you_mean(strange[0], known)}")
    seen = {known[name]: (float(x), float(y)) for name, (x, y) in shown.items()}
    if len(seen) == 1:
        raise ConfigError("one point does not give the rotation; give two, far from each other, or four")
    if len(seen) > 1 and min(dist(*pair) for pair in combinations(seen.values(), 2)) < _LEAST_APART_PX:
        raise ConfigError(f"two points lie within {_LEAST_APART_PX:g} pixels; give points that are far apart")
    return seen


def read_pictures(images: Path) -> dict[Path, DecodedImage]:
    """Return a few pictures of a folder, or one picture, (H, W, 3) uint8 RGB; raises ConfigError."""
    if images.is_dir():
        paths = sorted(path for path in finding.pictures(images) if path.parent == images)[:MOST_PICTURES]
    else:
        paths = [images]
    if not paths:
        raise ConfigError(f"{images} holds no pictures of boards ({' '.join(sorted(EXTENSIONS))})")
    pictures = {}
    for path in paths:
        try:
            pictures[path] = ImageSource.of(path, None, None).decode()
        except ImageError as error:
            raise ConfigError(f"{path} {error}; remove it, or save it again") from None
    return pictures


def unusable(found: dict[Path, FoundBoard]) -> str:
    """Return why nothing is measured in pictures; empty if they tell one camera."""
    if not found:
        return "the board was not found"
    if lie_alike(list(found.values())):
        return ""
    turns = ", ".join(f"{picture.name} by {board.match.fit.turn_deg:.0f}" for picture, board in found.items())
    return f"the boards seem to be rotated differently, in degrees: {turns}"


class BoardOverlay(NamedTuple):
    """The overlay picture of a board as PNG, how the board lies in it, as words, and which parts it does not show.

    These are parts of which each crop lies partly outside of the picture; None if the board is not registered.
    """

    file: bytes
    said: str
    outside: frozenset[str] | None


def overlay_of(pixels: DecodedImage, layout: Layout) -> BoardOverlay:
    """Return the overlay of a board in a picture."""
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


@dataclass(frozen=True, slots=True)
class Making:
    """One run: what was read. `made_of` says of which files, and when."""

    name: str
    to: Path
    converted: Converted
    plan: BoardPlan
    made_of: str
    are_good: bool
    held: bool
    seen: Mapping[tuple[float, float], tuple[float, float]]
    """Where points in mm lie in the first picture, in pixels, as a person says; empty if the board is searched."""
    tick: Callable[[], object]
    """Called once a board was searched in a picture."""

    @property
    def _rules(self) -> Path:
        return self.to / config.RULES_FOLDER / f"{self.name}.yaml"

    @property
    def _recipe(self) -> Path:
        return self.to / self.name / "recipe.yaml"

    def _files(self, plan: BoardPlan) -> dict[Path, bytes]:
        """Return the board file, `parts.csv` and the answers; what no picture shows is not inspected."""
        converted, todo = self.converted, f"{TODO}: {_UNSEEN}" if plan.unseen else ""
        answers = converted.answers
        if plan.unseen:
            answers = answers.model_copy(update={"not_inspected": (*answers.not_inspected, *plan.unseen)})
            places = (replace(p, component="") if p.refdes in plan.unseen else p for p in converted.places)
            converted = replace(converted, places=tuple(places))
        return {
            self._rules: rules_text(self.name, plan).encode(),
            self._recipe.with_name(PARTS): converted.text(self.made_of).encode(),
            self._recipe.with_name(ANSWERS): answers.text(todo).encode(),
        }

    def in_pixels(self, images: Path) -> FirstBoard:
        """Make a board whose placement file says where parts lie in the pictures."""
        pictures = read_pictures(images)
        sizes = sorted({(pixels.shape[1], pixels.shape[0]) for pixels in pictures.values()})
        if len(sizes) > 1:
            listed = " and ".join(f"{width} x {height}" for width, height in sizes)
            raise ConfigError(f"{images}: pictures of {listed} pixels; places in pixels need pictures of one size")
        plan = drawn_in_pixels(self.plan, *sizes[0])
        draft = replace(first_draft(f"{self.name}-{plan.side}", plan, held=True), um_per_pixel=1000.0)
        return replace(self, plan=plan)._drawn(draft, pictures, images, [])

    def board(self, images: Path | None) -> FirstBoard:
        """Make a board that is found in pictures; without pictures, its scale is left to decide."""
        draft = first_draft(f"{self.name}-{self.plan.side}", self.plan, held=self.held)
        files = self._files(self.plan)
        if images is None:
            text = draft.text(todo=f"{TODO}: how many micrometres a pixel is on the board")
            return FirstBoard({**files, self._recipe: text.encode()}, (), ())
        pictures = read_pictures(images)
        found, notes = self._found(pictures, self._layout(draft))
        why = unusable(found)
        if why:
            text = draft.text(todo=f"{TODO}: {why}; state how many micrometres a pixel is on it")
            return FirstBoard({**files, self._recipe: text.encode()}, tuple(notes), ())
        measured, more = self._measured(draft, found)
        is_sure = not any(board.doubt for board in found.values())
        return self._drawn(measured, pictures, images, [*notes, *more], is_sure=is_sure)

    def _drawn(
        self,
        draft: RecipeDraft,
        pictures: dict[Path, DecodedImage],
        images: Path,
        notes: list[str],
        *,
        is_sure: bool = True,
    ) -> FirstBoard:
        """Return the board of a draft that is complete, with its overlays.

        Where it is not sure how the board lies, no part is taken for one that pictures do not show.
        """
        sizes = {(pixels.shape[1], pixels.shape[0]) for pixels in pictures.values()}
        if not draft.fiducials and len(sizes) == 1:
            draft = replace(draft, picture=sizes.pop())
        layout, more, pngs = self._layout(draft), list(notes), dict[Path, bytes]()
        more += [
            f"a board that lies {way} would not be noticed; name a landmark in the recipe" for way in blind_to(layout)
        ]
        overlays = {picture: overlay_of(pixels, layout) for picture, pixels in pictures.items()}
        for picture, drawn in overlays.items():
            pngs[self.to / self.name / f"overlay-{picture.stem}.png"] = drawn.file
            more += [f"{picture.name}: {drawn.said}"]
        outside = [drawn.outside for drawn in overlays.values() if is_sure and drawn.outside is not None]
        if unseen := sorted(frozenset.intersection(*outside)) if outside else []:
            draft = replace(draft, plan=replace(draft.plan, unseen=tuple(unseen)))
        files = {**self._files(draft.plan), self._recipe: draft.text().encode(), **pngs}
        return FirstBoard(files, tuple(more), self._next(images))

    def _layout(self, draft: RecipeDraft) -> Layout:
        return lay_out(parse_recipe(self._recipe, draft.text().encode()), self.converted.parts)

    def _found(self, pictures: dict[Path, DecodedImage], layout: Layout) -> tuple[dict[Path, FoundBoard], list[str]]:
        """Return the board in each picture, and sentences about those in which it is not seen."""
        marks = () if self.held else self.plan.seen_marks
        drawing = drawing_of(layout, marks, outline_is_known=self.plan.outline_is_known)
        rough = None
        if self.seen:
            points, at = np.array(list(self.seen)), np.array(list(self.seen.values()))
            rough = map_through(points, at, layout.middle)
        found: dict[Path, FoundBoard] = {}
        notes: list[str] = []
        for picture, pixels in pictures.items():
            board = board_at(pixels, drawing, marks, rough) if rough else find_board(pixels, drawing, marks)
            if is_turned_over(pixels, drawing, marks, board):
                notes.append(f"{picture.name}: {_TURNED_OVER}")
                board = board if rough else None
            elif board is None:
                notes.append(f"{picture.name}: {_NOT_FOUND}")
            if board is not None:
                found[picture] = board
                notes += [f"{picture.name}: {board.doubt}"] if board.doubt else []
            self.tick()
        return found, notes

    def _measured(self, draft: RecipeDraft, found: dict[Path, FoundBoard]) -> tuple[RecipeDraft, list[str]]:
        """Return the draft with what pictures tell of camera and marks, and sentences about it."""
        middle = self._layout(draft).middle
        camera = camera_of(list(found.values()), middle)
        measured = draft.measured(camera, [board.match.marks for board in found.values()])
        ways = blind_to(self._layout(measured))
        for candidate in measured.landmarks if ways else ():
            tried = measured.with_landmark(candidate)
            if len(blind_to(self._layout(tried))) < len(ways):
                measured, ways = tried, blind_to(self._layout(tried))
        notes = [
            f"{len(found)} pictures: {camera.um_per_pixel:.2f} um a pixel, rotated by {camera.camera.turn:g} degrees"
        ]
        if self.held and camera.spread_mm > _STILL_MM:
            notes.append(
                f"the places of the boards differ by up to {camera.spread_mm:.1f} mm: does a fixture hold them? All "
                "are cut at the mean place"
            )
        if camera.keystones_differ:
            notes.append("the camera was not always in the same place: fix it for pictures that are inspected")
        return measured, notes

    def _next(self, images: Path) -> tuple[tuple[str, ...], ...]:
        rules, folder = str(self._rules), self.to / self.name
        boards = ("--images", str(images), "--recipe", str(self._recipe))
        photos = str(folder / "photos")
        label = ("--label", "good") if self.are_good else ()
        crop = ("coe-experts", "crop", rules, *boards, "--out", photos, *label)
        if not self.are_good:
            return (crop,)
        return (
            crop,
            ("coe-experts", "reference", rules, "--images", photos, "--first-of-two"),
            (
                "coe-experts",
                "train",
                f"{self.name}/{FIRST_EXPERT}",
                "--board",
                rules,
                "--data",
                photos,
                "--epochs",
                "1",
            ),
            ("coe-inspect", "--board", rules, *boards, "--out", str(folder / "run")),
        )
