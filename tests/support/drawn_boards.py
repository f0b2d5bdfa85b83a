"""Drawn pictures of boards for tests: discs with edges of part pixels, and parts with a white pin 1."""

from dataclasses import dataclass
from math import ceil, cos, floor, radians, sin
from pathlib import Path

import numpy as np
import yaml

from coe.board.parts_list import BoardPart, Side
from coe.placement import lay_out, parse_recipe
from coe.placement.fit import Fit

UM = 50.0
WIDTH_MM, HEIGHT_MM = 20.0, 16.0
FIDUCIALS = {"F1": [1.5, 1.5], "F2": [18.5, 1.5], "F3": [1.5, 14.5]}
RECIPE = {
    "recipe": "drawn",
    "side": "top",
    "um_per_pixel": UM,
    "outline": {"x": [0, WIDTH_MM], "y": [0, HEIGHT_MM]},
    "fiducials": {"diameter": 1, "search": 2.5, "at": FIDUCIALS},
    "tolerance_um": 30,
    "components": {"A": {"size": [2.4, 1.2], "margin": 0.2}, "B": {"size": [2, 2]}, "C": {"size": [1.6, 1.6]}},
}
PARTS = (
    BoardPart("P1", 5, 5, 0, Side.TOP, "A", 2),
    BoardPart("P2", 10, 8, 90, Side.TOP, "B", 3),
    BoardPart("P3", 15, 11, 215, Side.TOP, "A", 4),
    BoardPart("P4", 6, 11, 30, Side.TOP, "C", 5),
)


@dataclass(frozen=True)
class Pose:
    """Where a board lies in its picture, off the middle; `mirrored` pictures are of the other side."""

    turn_deg: float = 0.0
    stretch: float = 1.0
    x_px: float = 0.0
    y_px: float = 0.0
    mirrored: bool = False


def layout(parts=PARTS, **changes):
    return lay_out(parse_recipe(Path("drawn.yaml"), recipe(**changes).encode()), parts)


def recipe(**changes):
    return yaml.safe_dump({key: value for key, value in {**RECIPE, **changes}.items() if value is not None})


def table(parts=PARTS):
    rows = [f"{one.refdes},{one.x_mm},{one.y_mm},{one.rotation_deg},{one.side},{one.component}\n" for one in parts]
    return "".join(["refdes,x_mm,y_mm,angle,side,component\n", *rows])


def truth(drawn, pose, around_px=40):
    """Return the true map of a board to its picture, and the picture's width and height."""
    span_x, span_y = drawn.high.x_mm - drawn.low.x_mm, drawn.high.y_mm - drawn.low.y_mm
    scale, turn = 1000 / drawn.recipe.um_per_pixel, radians(pose.turn_deg)
    width, height = (round(span * scale) + 2 * around_px for span in (span_x, span_y))
    flip = np.diag([-1.0 if pose.mirrored else 1.0, 1.0])
    linear = scale * pose.stretch * np.array([[cos(turn), -sin(turn)], [-sin(turn), -cos(turn)]]) @ flip
    middle = np.array([drawn.low.x_mm + span_x / 2, drawn.low.y_mm + span_y / 2])
    there = np.array([(width - 1) / 2 + pose.x_px, (height - 1) / 2 + pose.y_px])
    return Fit(np.column_stack([linear, there - linear @ middle])), width, height


def draw(drawn, pose=Pose(), *, without=(), seed=1):
    """Draw a board: grey ground, bright fiducials, dark parts with a white corner; a seed adds light and noise."""
    fit, width, height = truth(drawn, pose)
    picture = np.full((height, width), 60.0)
    for site in drawn.sites:
        _draw_part(picture, fit, site)
    for name, point in drawn.fiducials.items():
        if name not in without:
            disc(picture, *fit.pixels(np.array([[point.x_mm, point.y_mm]]))[0], 1000 / fit.um_per_pixel, 210)
    if seed is not None:
        chance = np.random.default_rng(seed)
        picture *= 1 + np.linspace(-0.1, 0.1, width)[None, :] * chance.uniform(-1, 1)
        picture += chance.normal(0, 2, picture.shape)
    return np.repeat(np.clip(np.round(picture), 0, 255).astype(np.uint8)[..., None], 3, axis=2)


def disc(picture, x, y, diameter, level):
    seen, rows, columns = _around(picture, x, y, diameter / 2 + 1)
    share = np.clip(diameter / 2 - np.hypot(columns - x, rows - y) + 0.5, 0, 1)
    seen += share * (level - seen)


def _around(picture, x, y, reach):
    """Return the part of a picture that lies so near to a place, with the rows and the columns of its pixels."""
    left, top = (max(0, floor(at - reach)) for at in (x, y))
    seen = picture[top : max(0, ceil(y + reach) + 1), left : max(0, ceil(x + reach) + 1)]
    height, width = seen.shape
    return seen, *np.mgrid[top : top + height, left : left + width]


def millimetres(fit, pixels):
    points = (pixels - fit.matrix[:, 2]) @ np.linalg.inv(fit.matrix[:, :2]).T
    return points


def _draw_part(picture, fit, site):
    half = np.array([site.crop.width_mm, site.crop.height_mm]) / 2
    x, y = fit.pixels(np.array([[site.at.x_mm, site.at.y_mm]]))[0]
    seen, rows, columns = _around(picture, x, y, float(np.hypot(*half)) * 1000 / fit.um_per_pixel)
    board = millimetres(fit, np.column_stack([columns.ravel(), rows.ravel()]).astype(float))
    turn = radians(-site.angle_deg)
    offset = board - (site.at.x_mm, site.at.y_mm)
    along = (offset @ np.array([[cos(turn), -sin(turn)], [sin(turn), cos(turn)]]).T).reshape(*seen.shape, 2)
    inside = (np.abs(along) < half * 0.8).all(axis=2)
    corner = inside & (along[..., 0] < -half[0] * 0.4) & (along[..., 1] > half[1] * 0.4)
    seen[inside] = 20
    seen[corner] = 160
