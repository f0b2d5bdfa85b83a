"""Where a board lies in a picture. One whose fiducials contradict the recipe, or fit twice, is not registered.

The board is expected in the middle of the picture, at the recipe's scale, or as the recipe's camera sees it. Discs are
held against the recipe as the board lies levelled: unturned, its middle at (0, 0), seen straight from above. Each
fiducial may have several discs near it; the discs that lie to each other as the fiducials do are chosen together. How
well discs look does not tell two such choices apart: fiducials tarnish, or are out of focus, and test pads beside them
look better then.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import cv2
import numpy as np

from coe.pictures.array_images import DecodedImage
from coe.placement.board_layout import Layout, Point
from coe.placement.disc_choices import DiscChoice, choices_of, points_of
from coe.placement.fiducials import LEAST_CONTRAST, Disc, discs, mean_in
from coe.placement.fit import Fit, Numbers, projective, through, view_of
from coe.placement.wrong_ways import alike, tells


@dataclass(frozen=True, slots=True)
class Location:
    """Where a board lies in a picture; `reasons` says why it is not registered, and is empty if it is.

    Each reason is a sentence's end, and `why` joins them. `expected` maps the board to the middle of the picture, `fit`
    to where it lies (None if it is not registered). `found` are the fiducials found, by name, also of a board that is
    not registered. `residual_um` says by how much the fiducials contradict the recipe, if all were found. `skipped`
    holds the units that are not inspected, and why. A board that a fixture holds has no `found` and no `residual_um`.
    """

    expected: Fit
    found: Mapping[str, Disc]
    fit: Fit | None = None
    residual_um: float | None = None
    reasons: tuple[str, ...] = ()
    skipped: Mapping[str, str] = field(default_factory=dict)

    @property
    def registered(self) -> bool:
        """Whether the board may be cut into crops."""
        return self.fit is not None

    @property
    def why(self) -> str:
        """The reasons as the end of one sentence; empty if the board is registered."""
        return "; ".join(self.reasons)


def locate(pixels: DecodedImage, layout: Layout, skip: Iterable[str] = ()) -> Location:
    """Return where the board of a layout lies in a picture (H, W, 3) uint8 RGB.

    `skip` names units of a panel that are known to be bad. Raises ValueError for a unit that the layout does not have.
    """
    skipped = dict.fromkeys(skip, "it was named as bad")
    if unknown := sorted(set(skipped) - set(layout.units)):
        raise ValueError(f"the layout has no unit '{unknown[0]}'")
    grey = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), np.uint8)
    location = _registered(grey, layout)
    if location.fit is None:
        reasons = location.reasons + _lies_otherwise(grey, layout)
        return replace(location, reasons=reasons, skipped=skipped)
    if reasons := _landmark_contradicts(grey, layout, location.fit):
        return replace(location, fit=None, reasons=reasons, skipped=skipped)
    mark = layout.recipe.bad_mark
    if mark is None:
        return replace(location, skipped=skipped)
    for name, at in layout.marks.items():
        ((x, y),) = location.fit.pixels(points_of([at]))
        # The rim of a mark may be soft, and the mark a little aside.
        level = mean_in(grey, float(x), float(y), 0.7 * mark.diameter * 1000 / location.fit.um_per_pixel)
        if level is None and name not in skipped:
            why = f"the bad mark of unit '{name}' lies partly outside of the picture"
            return replace(location, fit=None, reasons=(why,), skipped=skipped)
        if level is not None and (level >= mark.level if mark.look == "bright" else level <= mark.level):
            skipped.setdefault(name, f"it has a bad mark of grey level {level:.0f}")
    return replace(location, skipped=skipped)


def _view(grey: DecodedImage, layout: Layout) -> Numbers:
    """Return how the recipe's camera sees the levelled board, as a map (3, 3) of pixels."""
    height, width = grey.shape
    camera = layout.recipe.camera
    middle = camera.middle[0] * width - 0.5, camera.middle[1] * height - 0.5
    return view_of(camera.turn, middle, camera.keystone, max(width, height) / 2)


def _expected(view: Numbers, layout: Layout) -> Fit:
    """Return the map that puts the middle of the outline where the camera sees it."""
    scale, (x, y) = 1000 / layout.recipe.um_per_pixel, layout.middle
    levelled = np.array([[scale, 0, -scale * x], [0, -scale, scale * y]], np.float64)
    return Fit(levelled).behind(view, layout.middle)


def _registered(grey: DecodedImage, layout: Layout) -> Location:
    """Find the fiducials where the camera should see them, and fit the board to them."""
    view = _view(grey, layout)
    expected = _expected(view, layout)
    recipe, names = layout.recipe, list(layout.fiducials)
    form, scale = recipe.fiducials, 1000 / recipe.um_per_pixel
    height, width = grey.shape
    if recipe.picture not in (None, (width, height)):
        wanted = " x ".join(map(str, recipe.picture or ()))
        return Location(expected, {}, reasons=(f"the picture has {width} x {height} pixels, not {wanted}",))
    if form is None:  # a fixture holds it
        return Location(expected, {}, expected)
    points = points_of(layout.fiducials.values())
    found = [
        discs(grey, x, y, form.search * scale, form.diameter * scale, form.look) for x, y in expected.pixels(points)
    ]
    near = [[disc for disc in candidates if disc.contrast >= LEAST_CONTRAST] for candidates in found]
    best = {name: candidates[0] for name, candidates in zip(names, near, strict=True) if candidates}
    if missing := [name for name in names if name not in best]:
        where = f"within {form.search:g} mm of where {_listed(missing)} should be"
        return Location(expected, best, reasons=(f"no fiducial was found {where}",))
    back: Numbers = np.asarray(np.linalg.inv(view), np.float64)
    choices = list(choices_of(points, [[_seen(disc, back) for disc in those] for those in near], layout))
    if not choices:
        why = (
            f"the fiducials are not arranged as in the recipe: at {recipe.um_per_pixel:g} um a pixel, plus "
            f"or minus {recipe.most_stretch:.1%}, and rotated by at most {recipe.most_turn:g} degrees"
        )
        return Location(expected, best, reasons=(why,))
    good = [choice for choice in choices if choice.residual_um <= recipe.tolerance_um]
    chosen = max(good, key=lambda choice: choice.score) if good else min(choices, key=lambda c: c.residual_um)
    levelled = [[_seen(disc, back) for disc in those] for those in found] if good else []
    reasons = _contradiction(layout, chosen, list(choices_of(points, levelled, layout)) if good else [])
    by_name = dict(zip(names, (_seen(disc, view) for disc in chosen.discs), strict=True))
    fit = chosen.fit.behind(view, layout.middle)
    if recipe.camera.keystone != (0.0, 0.0) and len(points) > 3:
        # Boards that do not lie quite flat are seen a little more or less aslant each.
        pixels = np.array([(disc.x_px, disc.y_px) for disc in by_name.values()])
        fit = projective(points, pixels, layout.middle)
    return Location(expected, by_name, None if reasons else fit, chosen.residual_um, reasons)


def _seen(disc: Disc, view: Numbers) -> Disc:
    """Return a disc with its middle as a map of pixels takes it."""
    ((x, y),) = through(view, np.array([[disc.x_px, disc.y_px]]))
    return replace(disc, x_px=float(x), y_px=float(y))


def _contradiction(layout: Layout, chosen: DiscChoice, rivals: list[DiscChoice]) -> tuple[str, ...]:
    """Return why a choice of discs is no registration; nothing if it is. Rivals may have faint discs, too."""
    recipe = layout.recipe
    if chosen.residual_um > recipe.tolerance_um:
        return (
            f"the fiducials lie {chosen.residual_um:.0f} um off the recipe, over its tolerance of "
            f"{recipe.tolerance_um:g} um (found at {chosen.fit.um_per_pixel:.3f} um a pixel)",
        )
    if any(rival.residual_um <= recipe.tolerance_um and rival.is_elsewhere(chosen) for rival in rivals):
        search = 0.0 if recipe.fiducials is None else recipe.fiducials.search
        return (
            f"the fiducials fit in two places; set `search` in the recipe below {search:g} mm, or choose fiducials "
            "unlike anything else",
        )
    return ()


def _landmark_contradicts(grey: DecodedImage, layout: Layout, fit: Fit) -> tuple[str, ...]:
    """Return why the landmark says that a board does not lie as its fiducials say; nothing if it does not."""
    mark, at = layout.recipe.landmark, layout.landmark
    if mark is None or at is None:
        return ()
    diameter = mark.diameter * 1000 / fit.um_per_pixel

    def near(point: Point) -> list[Disc]:
        ((x, y),) = fit.pixels(points_of([point]))
        reach = max(diameter / 2, layout.recipe.tolerance_um / fit.um_per_pixel)
        return discs(grey, float(x), float(y), reach, diameter, mark.look)

    others = list(alike(layout))
    if not any(disc.contrast >= LEAST_CONTRAST for disc in near(at)):
        ways = " or ".join(dict.fromkeys(words for words, _ in others))
        return (f"the landmark is not where it should be{f': is the board {ways}?' if ways else ''}",)
    for words, place in others:
        if tells(layout, place) and near(place):
            return (
                f"something like the landmark is also where it would be if the board were {words}; choose a unique "
                "landmark",
            )
    return ()


def _lies_otherwise(grey: DecodedImage, layout: Layout) -> tuple[str, ...]:
    """Return how the board, or its picture, lies if it lies turned over, or round, so that a person need not guess."""
    x, y = layout.middle

    def turned(up: int) -> Layout:
        points = layout.fiducials.items()
        moved = {name: Point(2 * x - point.x_mm, y + up * (point.y_mm - y)) for name, point in points}
        return replace(layout, fiducials=moved)

    ways = {
        "mirrored: does it show the other side?": ((grey, turned(1)), (grey[:, ::-1], layout), (grey[::-1], layout)),
        "turned by 180 degrees: does the board lie the wrong way round?": (
            (grey, turned(-1)),
            (grey[::-1, ::-1], layout),
        ),
        "turned by 90 degrees: is the camera rotated as it was for the recipe?": (
            (np.rot90(grey), layout),
            (np.rot90(grey, 3), layout),
        ),
    }
    for words, tried in ways.items():
        for picture, lying in tried:
            if _registered(np.ascontiguousarray(picture), lying).registered:
                return (f"the picture fits if it is {words}",)
    return ()


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
