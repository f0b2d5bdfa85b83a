"""Which discs are the fiducials: those that lie to each other as the fiducials do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from math import dist

import numpy as np

from coe.placement.board_layout import Layout, Point
from coe.placement.fiducials import Disc
from coe.placement.fit import Fit, Numbers, fitted, residual_um, similarity


def points_of(points: Iterable[Point]) -> Numbers:
    """Return points as numbers in mm, (n, 2)."""
    return np.array([(point.x_mm, point.y_mm) for point in points], np.float64)


@dataclass(frozen=True, slots=True)
class DiscChoice:
    """A disc for each fiducial, the fit to them, by how much they contradict it, and how well they look."""

    discs: tuple[Disc, ...]
    fit: Fit
    residual_um: float
    score: float

    def is_elsewhere(self, other: DiscChoice) -> bool:
        """Tell whether a disc lies in another place than in another choice."""
        return any(
            dist((mine.x_px, mine.y_px), (its.x_px, its.y_px)) > mine.diameter_px / 2
            for mine, its in zip(self.discs, other.discs, strict=True)
        )


def choices_of(points: Numbers, near: list[list[Disc]], layout: Layout) -> Iterator[DiscChoice]:
    """Yield each choice of discs that lies as the fiducials do.

    Any two discs of the two fiducials that lie farthest apart say where the others must be: the nearest are taken.
    """
    recipe = layout.recipe
    apart = np.hypot(*(points[:, None] - points[None]).transpose(2, 0, 1))
    one, other = (int(index) for index in np.unravel_index(np.argmax(apart), apart.shape))
    ends = points[[one, other]]
    for pair in product(near[one], near[other]):
        if pair[0] == pair[1]:
            continue
        rough = similarity(ends, np.array([(disc.x_px, disc.y_px) for disc in pair]))
        stretch = recipe.um_per_pixel / rough.um_per_pixel - 1
        if abs(stretch) > recipe.most_stretch or abs(rough.turn_deg) > recipe.most_turn:
            continue
        chosen = [
            min(candidates, key=lambda disc, at=at: dist((disc.x_px, disc.y_px), at))  # type: ignore[misc]
            for candidates, at in zip(near, rough.pixels(points), strict=True)
        ]
        chosen[one], chosen[other] = pair
        pixels = np.array([(disc.x_px, disc.y_px) for disc in chosen])
        residual = residual_um(points, pixels, recipe.um_per_pixel)
        yield DiscChoice(tuple(chosen), fitted(points, pixels), residual, sum(disc.score for disc in chosen))
