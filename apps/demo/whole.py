"""Draw pictures of whole demo boards with fiducials, as a camera above a line sees them.

    python -m apps.demo.whole --images build/whole/boards

Each part is drawn as `apps.demo.production` draws it, at its place and angle. Boards are slightly rotated and shifted,
under slightly uneven light. Beside the folder of pictures it writes
`parts.csv`, `recipe.yaml`, and `boards.truth.csv` with the true defects.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import yaml
from numpy.typing import NDArray

from apps.demo.pcb import GOLD
from apps.demo.production import BoardPlace, lot, save, take, write_truth
from apps.demo.render import COMPONENTS

Pixels = NDArray[np.uint8]

IMAGES = Path("build/whole/boards")
UM_PER_PIXEL = 20.0
MARGIN_MM = 0.2
"""The margin around each package in its crop."""
_GAP, _ROW, _EDGE = 12, 1000, 120
"""Pixels between places, of a row of places, and from the places to the edge of the board."""
_AROUND = 70
"""Pixels of the conveyor around the board in a picture."""
_FIDUCIAL_MM, _CLEAR_MM = 1.0, 2.0
_SS = 4
_MOST_TURN_DEG, _MOST_SHIFT_PX = 2.0, 25.0


@dataclass(frozen=True, slots=True)
class Spot:
    """Where a component type lies on every board: its middle in pixels from the board's top left, and its turn.

    `quarter_turns` are counterclockwise.
    """

    refdes: str
    component: str
    x: float
    y: float
    quarter_turns: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan of the demo board: all spots, and its size in pixels."""

    spots: tuple[Spot, ...]
    width: int
    height: int

    @property
    def fiducials(self) -> dict[str, tuple[float, float]]:
        """The middles of the fiducials in pixels from the top left: three, so that no turn is taken for another."""
        near = _EDGE / 2
        return {"F1": (near, self.height - near), "F2": (self.width - near, self.height - near), "F3": (near, near)}

    def mm(self, x: float, y: float) -> tuple[float, float]:
        """Return a point in mm from the board's bottom left, y up."""
        return x * UM_PER_PIXEL / 1000, (self.height - y) * UM_PER_PIXEL / 1000


def plan() -> Plan:
    """Return the plan of the demo board: its parts in rows, turned by 0, 90, 180 and 270 degrees in turn."""
    spots: list[Spot] = []
    x, y, row = _EDGE, _EDGE, 0
    for index, place in enumerate(lot(1, 1)):
        size = COMPONENTS[place.component].size
        if x + size > _EDGE + _ROW:
            x, y, row = _EDGE, y + row + _GAP, 0
        spots.append(Spot(place.refdes, place.component, x + size / 2, y + size / 2, index % 4))
        x, row = x + size + _GAP, max(row, size)
    return Plan(tuple(spots), _ROW + 2 * _EDGE, y + row + _EDGE)


def flat_board(places: list[BoardPlace]) -> Pixels:
    """Return one board from above, (H, W, 3) uint8 RGB, exactly as the plan has it."""
    drawn, taken = plan(), {place.refdes: take(place) for place in places}
    board = np.empty((drawn.height, drawn.width, 3), np.uint8)
    # The solder mask as the pictures show it at their corners.
    board[:] = np.median([picture[0, 0] for picture in taken.values()], axis=0)
    for spot in drawn.spots:
        picture = np.rot90(taken[spot.refdes], spot.quarter_turns)
        left, top = round(spot.x - picture.shape[1] / 2), round(spot.y - picture.shape[0] / 2)
        board[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    for x, y in drawn.fiducials.values():
        _draw_fiducial(board, x, y)
    return board


def whole_board(places: list[BoardPlace], rng: np.random.Generator) -> Pixels:
    """Return a picture of one board on the conveyor, (H, W, 3) uint8 RGB: turned, shifted, and lit unevenly."""
    board = flat_board(places)
    height, width = board.shape[0] + 2 * _AROUND, board.shape[1] + 2 * _AROUND
    turn = float(rng.uniform(-_MOST_TURN_DEG, _MOST_TURN_DEG))
    scale = float(rng.uniform(0.998, 1.002))
    motion = cv2.getRotationMatrix2D(((board.shape[1] - 1) / 2, (board.shape[0] - 1) / 2), turn, scale)
    motion[:, 2] += _AROUND + rng.uniform(-_MOST_SHIFT_PX, _MOST_SHIFT_PX, 2)
    picture = cv2.warpAffine(
        board, motion, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_CONSTANT, borderValue=(38, 40, 43)
    )
    slope = rng.uniform(-0.02, 0.02, 2)
    across, down = np.linspace(-1, 1, width, dtype=np.float32), np.linspace(-1, 1, height, dtype=np.float32)
    light = 1 + slope[0] * across[None, :, None] + slope[1] * down[:, None, None]
    grain = rng.normal(0, 1.0, (height, width, 1)).astype(np.float32)
    return np.clip(np.round(picture * light + grain), 0, 255).astype(np.uint8)


def parts() -> str:
    """Return the parts.csv of the demo board."""
    drawn = plan()
    lines = ["refdes,x_mm,y_mm,angle,side,component"]
    for spot in drawn.spots:
        x, y = drawn.mm(spot.x, spot.y)
        lines.append(f"{spot.refdes},{x:.6f},{y:.6f},{90 * spot.quarter_turns},top,{spot.component}")
    return "\n".join(lines) + "\n"


def recipe() -> str:
    """Return the board recipe of the demo board."""
    drawn = plan()
    width, height = drawn.mm(drawn.width, 0)
    content = {
        "recipe": "demo-top",
        "side": "top",
        "um_per_pixel": UM_PER_PIXEL,
        "outline": {"x": [0, round(width, 4)], "y": [0, round(height, 4)]},
        "fiducials": {
            "diameter": _FIDUCIAL_MM,
            "look": "bright",
            "search": 2.0,
            "at": {name: [round(value, 4) for value in drawn.mm(*at)] for name, at in drawn.fiducials.items()},
        },
        "tolerance_um": 40,
        "components": {
            name: {
                "size": [round(kind.size * UM_PER_PIXEL / 1000 - 2 * MARGIN_MM, 4)] * 2,
                "margin": MARGIN_MM,
                **({"pin1": "bottom-left"} if kind.prefix == "U" else {}),
            }
            for name, kind in COMPONENTS.items()
        },
    }
    return yaml.safe_dump(content, sort_keys=False, default_flow_style=None)


def build(images: Path, boards: int, seed: int) -> None:
    """Write pictures of whole boards, their truth, parts.csv and the recipe."""
    images.mkdir(parents=True, exist_ok=True)
    (images.parent / "parts.csv").write_text(parts(), encoding="utf-8")
    (images.parent / "recipe.yaml").write_text(recipe(), encoding="utf-8")
    places = lot(boards, seed)
    for number, serial in enumerate(dict.fromkeys(place.serial for place in places)):
        chosen = [place for place in places if place.serial == serial]
        save(images / f"{serial}.png", whole_board(chosen, np.random.default_rng([seed, number, 31])))
    write_truth(places, images)


def _draw_fiducial(board: Pixels, x: float, y: float) -> None:
    """Draw a gilt disc in an opening of the solder mask, with edges of part pixels."""
    reach = round(_CLEAR_MM * 1000 / UM_PER_PIXEL / 2) + 2
    left, top = round(x) - reach, round(y) - reach
    places = (np.arange(2 * reach * _SS) + 0.5) / _SS
    apart = np.hypot(places[None, :] + left - x, places[:, None] + top - y)
    for colour, diameter in ((0.6 * board[0, 0], _CLEAR_MM), (225 * np.asarray(GOLD), _FIDUCIAL_MM)):
        inside = (apart <= diameter * 500 / UM_PER_PIXEL).astype(np.float64)
        share = inside.reshape(2 * reach, _SS, 2 * reach, _SS).mean(axis=(1, 3))[..., None]
        window = board[top : top + 2 * reach, left : left + 2 * reach]
        window[:] = np.round(window * (1 - share) + colour * share)


def main(arguments: list[str] | None = None) -> None:
    """Write what the options ask for."""
    parser = argparse.ArgumentParser(prog="python -m apps.demo.whole", description=__doc__)
    parser.add_argument("--images", type=Path, default=IMAGES, help="folder for the boards' pictures (%(default)s)")
    parser.add_argument("--boards", type=int, default=3, help="number of boards (%(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random choices (%(default)s)")
    options = parser.parse_args(arguments)
    build(options.images, options.boards, options.seed)
    print(f"written: {options.boards} whole boards, in {options.images}")


if __name__ == "__main__":
    main()
