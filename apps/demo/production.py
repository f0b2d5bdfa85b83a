"""A lot of demo boards as from a production line: their places, the defects of some, and their images.

Images are `<folder>/<serial>/<refdes>__<component>.png`. Their true defects are in `<folder>.truth.csv` (serial,
refdes, component, defect), outside the folder, where no inspection looks.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from apps.demo.pcb import Style, board_style
from apps.demo.render import COMPONENTS, photograph


@dataclass(frozen=True, slots=True)
class BoardPlace:
    """One component on one physical board; `defect` is empty if nothing is wrong. `seed` decides its picture."""

    serial: str
    refdes: str
    component: str
    defect: str
    seed: tuple[int, ...]

    @property
    def file(self) -> str:
        """The path of the image in the folder."""
        return f"{self.serial}/{self.refdes}__{self.component}.png"


def lot(boards: int, seed: int, defective: float | None = None) -> list[BoardPlace]:
    """Return the places of a lot of boards.

    As on a line, half of the boards, chosen at random, have one to three defects each. With `defective`, this share of
    all places has a defect instead, so that rare defects occur often enough to be counted.
    """
    rng = np.random.default_rng([seed, 77])
    faulty = set(rng.permutation(boards)[: (boards + 1) // 2].tolist())
    places: list[BoardPlace] = []
    for board in range(boards):
        slots = [(name, kind) for name, kind in COMPONENTS.items() for _ in range(kind.count)]
        if defective is not None:
            chosen = set(np.flatnonzero(rng.random(len(slots)) < defective).tolist())
        elif board in faulty:
            # each type has the same chance; if each place had it, resistors would have most of the defects
            weights = np.array([1 / kind.count for _, kind in slots])
            number = int(rng.integers(1, 4))
            chosen = set(rng.choice(len(slots), number, replace=False, p=weights / weights.sum()).tolist())
        else:
            chosen = set()
        numbers: dict[str, int] = {}
        for slot, (name, kind) in enumerate(slots):
            numbers[kind.prefix] = numbers.get(kind.prefix, 0) + 1
            defect = str(rng.choice(kind.defects)) if slot in chosen else ""
            refdes = f"{kind.prefix}{numbers[kind.prefix]}"
            places.append(BoardPlace(f"DB-{seed:03d}-{board + 1:04d}", refdes, name, defect, (seed, board, slot)))
    return places


def take(place: BoardPlace) -> NDArray[np.uint8]:
    """Photograph one place: (H, W, 3) uint8 RGB."""
    rng = np.random.default_rng(place.seed)
    return photograph(place.component, place.defect or None, rng, style=_style(place), refdes=place.refdes).image


def _style(place: BoardPlace) -> Style:
    return board_style(np.random.default_rng([*place.seed[:2], 1_000_003]))


def shoot(places: list[BoardPlace], folder: Path) -> None:
    """Photograph places into a folder."""
    for place in places:
        path = folder / place.file
        path.parent.mkdir(parents=True, exist_ok=True)
        save(path, take(place))


def save(path: Path, image: NDArray[np.uint8]) -> None:
    """Write an RGB image; raises OSError if that fails (OpenCV alone would not)."""
    encoded, data = cv2.imencode(path.suffix, cv2.cvtColor(image, cv2.COLOR_RGB2BGR))
    if not encoded:
        raise OSError(f"'{path}' cannot be encoded")
    path.write_bytes(data.tobytes())


def truth_file(folder: Path) -> Path:
    """Return the path of the truth about a folder of images."""
    return folder.with_name(folder.name + ".truth.csv")


def write_truth(places: list[BoardPlace], folder: Path) -> None:
    """Write the truth about a folder of images."""
    with truth_file(folder).open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("serial", "refdes", "component", "defect"))
        table.writerows((place.serial, place.refdes, place.component, place.defect) for place in places)


def read_truth(folder: Path) -> dict[str, str]:
    """Return the defect ("" for none) of each image, by its path in the folder."""
    with truth_file(folder).open(newline="", encoding="utf-8") as file:
        return {
            f"{row['serial']}/{row['refdes']}__{row['component']}.png": row["defect"] for row in csv.DictReader(file)
        }
